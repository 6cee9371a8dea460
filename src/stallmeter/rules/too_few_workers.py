"""The workers cannot keep up, and there is room for more.

**What it means.** The DataLoader is the bottleneck: the loop is waiting for data because the workers together make
batches more slowly than it uses them. Neither the CPUs nor the memory are used up, so more workers raise the rate.

**Evidence.** `spent.data_wait_share_pct`: data wait as a share of training time, percent. `workers.service_s`: a
worker's time for a batch, seconds. `workers.batch_cpu_s`: CPU time of a batch, seconds. The predicted gain comes from
the num_workers model with the CPUs that are left to this job, not those of the host.

Of threads or processes that are not torch's workers: `loader.producers.computing`, how many compute while the loop
waits, and the CPU time that the whole job spends on a step against the CPUs that it may use.

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
from ..workers.pipeline import CHEAPER, INSTEAD, Pipeline, diagnosis_of, pipeline_of
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
    instead: ClassVar[tuple[str, ...]] = INSTEAD
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "fewer workers"
    cure: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    at_work: float = threshold(0.5, "1", "Somebody is found at work in most looks; our choice")
    blocked: float = threshold(0.6, "1", "From there on `fetch-stall` is asked")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait and the predicted gain with the thresholds."""
        pipeline = pipeline_of(window)
        if pipeline is not None:
            return self._of_a_pipeline(window, pipeline)
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

    def _of_a_pipeline(self, window: Window, pipeline: Pipeline) -> Diagnosis | None:
        share, gain = window.spent.data_wait_share_pct or 0.0, pipeline.more_gain_pct
        if share < self.warn_pct or pipeline.receives or pipeline.blocked_share >= self.blocked:
            return None
        if pipeline.in_loop or pipeline.at_work < self.at_work or gain is None or gain < self.gain_pct:
            return None
        return diagnosis_of(
            self,
            window,
            pipeline,
            summary=f"{share:.0f} % of the training time was spent waiting for {pipeline.who} that make the batches: "
            f"{pipeline.at_work:.1f} were at work, and CPUs were left.",
            warn_pct=self.warn_pct,
            evidence=(
                Evidence(f"{pipeline.who} at work in the wait", pipeline.at_work, "1", self.at_work, "our choice"),
                Evidence("share of them blocked", pipeline.blocked_share, "1", self.blocked, "benchmarks/faults"),
            ),
            advice=(
                Advice.of(
                    f"Let more {pipeline.who} make batches at the same time.",
                    expect="Less data wait, while CPUs are left.",
                    limit=""
                    if pipeline.outside
                    else "More threads help only where the work lets go of Python's lock; else use processes.",
                    gain_pct=gain,
                    interval_pct=pipeline.interval_pct(gain),
                ),
                CHEAPER,
            ),
        )
