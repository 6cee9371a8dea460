"""The container's CPU quota stops the loader.

**What it means.** A container with a CPU quota may use so much CPU time in each period (usually 100 ms). Then the
kernel stops all its processes until the next one. The loader's workers and the loop are stopped together.

**Evidence.** Share of quota periods in which the job was throttled, percent, median over the run.
`spent.data_wait_share_pct`: data wait as a share of training time, percent.

**Advice.** Raise the quota (`resources.limits.cpu` in Kubernetes, `docker run --cpus`), or make one batch cheaper.
More workers use the quota up sooner.

**When it is wrong.** Short bursts are throttled although the average is low; then nothing waits and this rule is
silent.

**References.** Linux documentation, `cpu.stat` of control groups (`nr_periods`, `nr_throttled`, `throttled_usec`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_with_more_cpus
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuThrottled:
    """Fires when the loop waits for data while the quota throttles the job."""

    id: ClassVar[str] = "cpu-throttled"
    title: ClassVar[str] = "The container's CPU quota stops the loader"
    needs: ClassVar[tuple[str, ...]] = ("spent.data_wait_share_pct", "host.cpu_throttled_pct", "host.usable_cpus")
    optional: ClassVar[tuple[str, ...]] = ("host.loop.wait_pct",)
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    throttled_pct: float = threshold(25.0, "%", "A common alert threshold in Kubernetes monitoring")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait and the throttled periods with the thresholds."""
        share, throttled = window.spent.data_wait_share_pct or 0.0, window.host.cpu_throttled_pct
        usable = window.host.usable_cpus
        if throttled is None or usable is None or share < self.warn_pct or throttled < self.throttled_pct:
            return None
        lost = window.spent.bucket_s("data_wait") or 0.0
        gain = gain_with_more_cpus(window)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"The job was throttled in {throttled:.0f} % of the quota's periods (quota {usable:.1f} CPUs), and "
            f"{share:.0f} % of the training time was spent waiting for data.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("quota periods throttled", throttled, "%", self.throttled_pct, "Kubernetes monitoring"),
                Evidence("CPUs this job may use", usable, "CPUs"),
            ),
            advice=(
                Advice.of(
                    "Raise the CPU quota: resources.limits.cpu in Kubernetes, docker run --cpus.",
                    expect="Fewer throttled periods and less data wait.",
                    limit="More workers do not help, they share the quota.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Make one batch cheaper: simpler or batched transforms, a faster format, a cache."),
            ),
        )
