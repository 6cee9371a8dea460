"""Fewer workers would be faster.

**What it means.** A batch is made faster than it can be handed over between processes, so the loop waits for the
hand-over alone. The workers cost memory and CPU and give nothing back.

**Evidence.** `queue.ready_wait_share`: share of the data wait in steps whose batch was ready, 0 to 1.
`queue.handover_s`: median wait for such a batch, seconds. `workers.service_s`: time to make a batch, seconds. The gain
comes from the num_workers model.

**Advice.** The predicted number, often 0.

**When it is wrong.** When the cost of a batch varies much over the run, and what was seen so far was its cheap part.

**References.** Lightning issue 17410 (workers that make a small job much slower); `docs/explain/workers-model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyWorkers:
    """Fires when the wait is hand-over and the model predicts that fewer workers are faster."""

    id: ClassVar[str] = "too-many-workers"
    title: ClassVar[str] = "Fewer workers would be faster"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "queue.handover_s",
        "workers.service_s",
        "loader.num_workers",
        "steps.work_s",
        "queue.ready_wait_share",
    )
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "more workers"
    cure: ClassVar[str] = "fewer workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    ready_share: float = threshold(0.5, "1", "Most of the wait; our measurement, benchmarks/faults")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait for ready batches and the predicted gain with the thresholds."""
        share, current, handover = (
            window.spent.data_wait_share_pct or 0.0,
            window.loader.num_workers,
            window.queue.handover_s,
        )
        ready, service = window.queue.ready_wait_share or 0.0, window.workers.service_s
        if not current or handover is None or service is None or share < self.warn_pct or ready < self.ready_share:
            return None
        predicted = forecast(window)
        if predicted is None or predicted.recommended >= current or predicted.gain_pct < self.gain_pct:
            return None
        lost = (window.spent.bucket_s("data_wait") or 0.0) * ready
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"A batch takes {service.mean * 1e3:.1f} ms to make and {handover * 1e3:.1f} ms to hand over "
            f"from one of {current} workers; {share:.0f} % of the training time went into that.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=predicted.confidence,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("share of the wait for ready batches", ready, "1", self.ready_share, "benchmarks/faults"),
                Evidence("wait for a ready batch, median", handover, "s"),
                Evidence("time to make a batch, mean", service.mean, "s"),
                Evidence("predicted gain", predicted.gain_pct, "%", self.gain_pct, "benchmarks/workers"),
            ),
            advice=predicted.fixes(),
        )
