"""All CPUs of the job are busy while it waits for data.

**What it means.** The CPUs that this job may use have nothing left to give, and the loop waits for data. More workers
would only share the same CPUs. This is a remark beside the verdict on the wait; it claims no time of its own.

**Evidence.** `host.cpu_busy_pct`: CPU use by the job and by others on the CPUs that the job may use, in percent, median
of the samples. Affinity and cgroup quota count, not the host's number of CPUs. `spent.data_wait_share_pct`: data wait
as a share of training time in percent.

**Advice.** Make a batch cheaper before anything else: simpler or batched transforms, decoded or resized data on disk.
Move transforms to the GPU (for images Kornia, DALI) where there is one with time to spare. Ask for more CPUs.

**When it is wrong.** Under a CPU quota the CPU use of other jobs on the same host is counted, although it takes
nothing from this job.

**References.** SageMaker CPUBottleneck: CPUs above 90 % while the GPU is below 10 %. Its advice, more data loaders, is
the one thing that does not help here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .frameworks import has_gpu
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSaturated:
    """Remarks that no CPU is free while the loop waits for data."""

    id: ClassVar[str] = "cpu-saturated"
    title: ClassVar[str] = "All CPUs of the job are busy while it waits for data"
    needs: ClassVar[tuple[str, ...]] = ("host.cpu_busy_pct", "spent.data_wait_share_pct", "host.usable_cpus")
    optional: ClassVar[tuple[str, ...]] = ("gpu.count", "facts.accelerator")

    busy_pct: float = threshold(95.0, "%", "stricter than SageMaker CPUBottleneck (90 %): a median, not a peak")
    wait_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at CPUs and data wait together."""
        busy, wait, usable = window.host.cpu_busy_pct, window.spent.data_wait_share_pct, window.host.usable_cpus
        if busy is None or wait is None or usable is None or busy < self.busy_pct or wait < self.wait_pct:
            return None
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title=self.title,
            summary=f"{busy:.0f} % of the {usable:.1f} usable CPUs were busy in a typical second, "
            f"and {wait:.0f} % of the training time was data wait.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.7,
            evidence=(
                Evidence("busy share of the usable CPUs, median", busy, "%", self.busy_pct, "SageMaker: 90 %"),
                Evidence("data wait, share of training time", wait, "%", self.wait_pct, "MLPerf Storage"),
                Evidence("usable CPUs", usable, "CPUs"),
            ),
            advice=(
                Advice.of(
                    "Make a batch cheaper: batched transforms, data decoded and resized beforehand.",
                    expect="Less CPU use and less waiting for data.",
                    limit="More workers on the same CPUs do not help.",
                ),
                *(
                    (Advice.of("Move transforms of tensors to the GPU.", limit="Only if it has time to spare."),)
                    if has_gpu(window)
                    else ()
                ),
                Advice.of("Ask for more CPUs for this job."),
            ),
        )
