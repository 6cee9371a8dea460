"""The workers cannot keep up, and there is room for more.

**What it means.** The DataLoader is the bottleneck: the loop is waiting for data because the workers together make
batches more slowly than it uses them. Neither the CPUs nor the memory are used up, so more workers raise the rate.

**Evidence.** `spent.data_wait_share_pct`: data wait as a share of training time, percent. `workers.service_s`: a
worker's time for a batch, seconds. `workers.batch_cpu_s`: CPU time of a batch, seconds. The predicted gain comes from
the num_workers model with the CPUs that are left to this job, not those of the host.

**Advice.** The predicted number of workers with its gain. Low use of host memory is room for workers.

**When it is wrong.** When making a batch slows down as more workers make one (a shared disk or network): the gain is
then smaller than predicted.

**References.** PyTorch `DataLoader(num_workers=...)`; `docs/explain/workers-model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewWorkers:
    """Fires when workers that compute are the limit and the model predicts that more would help."""

    id: ClassVar[str] = "too-few-workers"
    title: ClassVar[str] = "The workers cannot keep up, and there is room for more"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "workers.service_s",
        "workers.batch_cpu_s",
        "loader.num_workers",
        "steps.work_s",
        "workers.cpu_wait_share",
    )
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "fewer workers"
    cure: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait and the predicted gain with the thresholds."""
        share, service, cpu = (
            window.spent.data_wait_share_pct or 0.0,
            window.workers.service_s,
            window.workers.batch_cpu_s,
        )
        current = window.loader.num_workers
        if not current or service is None or cpu is None or share < self.warn_pct:
            return None
        predicted = forecast(window)
        if predicted is None or predicted.recommended <= current or predicted.gain_pct < self.gain_pct:
            return None
        without = predicted.without
        if not without.is_the_setting(without.best_workers_s):
            return None
        lost = window.spent.bucket_s("data_wait") or 0.0
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= 2 * self.warn_pct else Severity.WARNING,
            title=self.title,
            summary=f"{share:.0f} % of the training time was spent waiting for {current} worker"
            f"{'s that need' if current > 1 else ' that needs'} {service.mean * 1e3:.0f} ms for a batch."
            f"{predicted.neighbours}",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=predicted.confidence,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("a worker's time for a batch, mean", service.mean, "s"),
                Evidence("CPU time of a batch, mean", cpu.mean, "s"),
                Evidence("CPUs left for workers", predicted.available_cpus, "CPUs"),
                Evidence("predicted gain", predicted.gain_pct, "%", self.gain_pct, "benchmarks/workers"),
            ),
            advice=(
                *predicted.fixes(),
                Advice.of("Make one batch cheaper: simpler or batched transforms, a faster format, a cache."),
            ),
        )
