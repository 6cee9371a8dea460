"""Neither the GPU nor the CPUs are busy.

**What it means.** Data are there in time, and still the GPU idles half of the time or more while most CPUs do nothing.
Nothing in the machine is at its limit: the program does one small thing after the other. Usually each step gives the
GPU so little work that the Python thread which starts it sets the pace.

**Evidence.** `gpu.utilization_pct`: mean utilization of this rank's busiest GPU, while steps ran, in percent: the share
of time with at least one kernel running. `host.job_cpus` and `host.cpus_per_rank`: CPUs kept busy by this rank's own
processes and CPUs that it may use, which is its part of the node's where several ranks share one.
`spent.data_wait_share_pct`: data wait as a share of training time in percent. `gpu.idleness`: share of that GPU's
samples that were idle, and the longest stretch of them in a row, in seconds. A GPU that is busy in between and then has
nothing to do is looked at as well, when nothing beside the steps explains it.

**Advice.** Give each step more work: a larger batch, if memory allows and the learning rate is adapted. Let the GPU run
ahead: no `.item()`, `.cpu()` or print in each step. Start fewer, larger kernels: `torch.compile`, fused optimizers. Run
what is independent in parallel: several runs on one GPU.

**When it is wrong.** Utilization counts time with any kernel, however small, so a GPU can be at 100 % and do little. It
is low for good reasons where checkpoints, callbacks or validation on the CPU take the time: those have their own rules.

**References.** PyTorch Profiler's TensorBoard plugin: utilization below 50 % is low. SageMaker BatchSize: CPU, GPU and
its memory all below 70 %; LowGPUUtilization: 95th percentile above 70 %, 5th below 10 % is fluctuating. neptune.ai,
"How to optimize GPU usage": both low means that the code uses resources badly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class LowUtilization:
    """Fires when GPU and CPUs idle although data come in time."""

    id: ClassVar[str] = "low-utilization"
    title: ClassVar[str] = "Neither the GPU nor the CPUs are busy"
    family: ClassVar[str] = "compute"
    needs: ClassVar[tuple[str, ...]] = (
        "gpu.utilization_pct",
        "host.job_cpus",
        "host.cpus_per_rank",
        "spent.data_wait_share_pct",
        "spent.largest_loss_pct",
    )
    optional: ClassVar[tuple[str, ...]] = ("gpu.idleness",)

    gpu_pct: float = threshold(50.0, "%", "PyTorch Profiler's TensorBoard plugin: below 50 % is low")
    cpu_pct: float = threshold(50.0, "%", "our choice, as for the GPU; SageMaker BatchSize asks for 70 % of peaks")
    wait_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    idle_pct: float = threshold(
        10.0, "%", "our choice; SageMaker LowGPUUtilization calls 5 % of idle samples fluctuating"
    )
    peak_pct: float = threshold(70.0, "%", "SageMaker LowGPUUtilization: 95th percentile above 70 %")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at GPU, CPUs and data wait together."""
        gpu, job, usable, wait = (
            window.gpu.utilization_pct,
            window.host.job_cpus,
            window.host.cpus_per_rank,
            window.spent.data_wait_share_pct,
        )
        if gpu is None or job is None or not usable or wait is None:
            return None
        cpu, idle = 100.0 * job / usable, window.gpu.idleness
        low, dips = gpu < self.gpu_pct, self._dips(window)
        if not (low or dips) or cpu >= self.cpu_pct or wait >= self.wait_pct:
            return None
        stretch = ""
        if idle is not None and dips and not low:
            stretch = f"; {idle.share_pct:.0f} % of the time it was idle, for up to {idle.longest_s:.0f} s in a row"
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title if low else "The GPU is busy, and idle again and again",
            summary=f"The busiest GPU worked {gpu:.0f} % of the time{stretch} and the job kept {job:.1f} of "
            f"{usable:.1f} CPUs busy, with only {wait:.0f} % data wait.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.6,
            evidence=(
                Evidence("utilization of the busiest GPU, mean", gpu, "%", self.gpu_pct, "PyTorch Profiler: 50 %"),
                Evidence("busy share of the usable CPUs, median", cpu, "%", self.cpu_pct, "our choice"),
                Evidence("data wait, share of training time", wait, "%", self.wait_pct, "MLPerf Storage"),
                *(
                    (
                        Evidence("idle samples of that GPU", idle.share_pct, "%", self.idle_pct, "our choice"),
                        Evidence("longest stretch of idle samples", idle.longest_s, "s"),
                    )
                    if idle is not None
                    else ()
                ),
            ),
            advice=(
                Advice.of(
                    "Raise the batch size, and the learning rate with it.",
                    expect="Higher GPU utilization and more samples per second.",
                    limit="As far as the GPU's memory allows.",
                ),
                Advice.of(
                    "Read no values off the GPU in each step: .item(), .cpu(), print.",
                    expect="A loop that runs ahead of the GPU again.",
                ),
                Advice.of("Start fewer, larger kernels: torch.compile, fused optimizers, batched operations."),
                Advice.of("Run independent work in parallel, for example several runs on this GPU."),
            ),
        )

    def _dips(self, window: Window) -> bool:
        """Whether the GPU is busy in between and then idle, with nothing beside the steps that explains it."""
        idle, loss = window.gpu.idleness, window.spent.largest_loss_pct
        aside = window.ledger.training_share_pct(window.spent.bucket_s("validation") or 0.0)
        if idle is None or loss is None or aside is None or max(loss, aside) >= self.wait_pct:
            return False
        return idle.share_pct >= self.idle_pct and idle.p95_pct >= self.peak_pct
