"""Fewer workers would be faster, or do the same.

**What it means.** As a warning: a batch is made faster than it can be handed over between processes, so the loop waits
for the hand-over alone. The workers cost memory and CPU and give nothing back. As information: the run is as fast with
fewer workers, since the step or the CPUs set the pace. No time is lost, but each worker costs memory and start-up.

**Evidence.** `queue.ready_wait_share`: share of the data wait in steps whose batch was ready, 0 to 1.
`queue.handover_s`: median wait for such a batch, seconds. `workers.service_s`: time to make a batch, seconds. Gain and
savings come from the num_workers model.

**Advice.** The predicted number, often 0 where it is faster. The same speed is said of a smaller number only when it
saves two processes and a third of them at least, and when workers that take 30 % longer would still be enough.

**When it is wrong.** When the cost of a batch varies much over the run, and what was seen so far was its cheap part.

**References.** Lightning issue 17410 (workers that make a small job much slower); `docs/explain/workers-model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import Outlook, forecast
from ..workers.snapshots import rarer_snapshots
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyWorkers:
    """Fires when the wait is hand-over and fewer workers are predicted to be faster; informs when they do the same."""

    id: ClassVar[str] = "too-many-workers"
    title: ClassVar[str] = "Fewer workers would be faster"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "workers.service_s",
        "loader.num_workers",
        "steps.work_s",
        "queue.ready_wait_share",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "loader.info",
        "queue.handover_s",
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
        predicted = forecast(window) if current and service is not None else None
        if not current or service is None or predicted is None or predicted.recommended >= current:
            return None
        if predicted.advice.saves_processes:
            return self._same(predicted, service.mean, share)
        if handover is None or share < self.warn_pct or ready < self.ready_share or predicted.gain_pct < self.gain_pct:
            return None
        if not predicted.is_certain:
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
            advice=(*predicted.fixes(), *rarer_snapshots(window, predicted, alone=False)),
        )

    def _same(self, predicted: Outlook, service_s: float, share: float) -> Diagnosis:
        """Say what fewer workers save where they are as fast."""
        advice = predicted.advice
        evidence: tuple[Evidence, ...] = (
            Evidence("workers of the loader", float(advice.current), "1"),
            Evidence("workers predicted to do the same", float(advice.recommended), "1"),
            Evidence("time to make a batch, mean", service_s, "s"),
            Evidence("data wait, share of training time", share, "%"),
        )
        if advice.saves_bytes is not None:
            evidence += (Evidence("memory that only the others hold", float(advice.saves_bytes), "B"),)
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title="Fewer workers would do the same",
            summary=f"{advice.recommended} of the {advice.current} workers are predicted to be as fast: "
            f"{predicted.saves}.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=predicted.confidence,
            evidence=evidence,
            advice=predicted.fixes(),
        )
