"""Batches are made in the loop's own thread.

**What it means.** With `num_workers=0` the loop makes each batch itself, and the accelerator idles meanwhile. Worker
processes would make the next batches while the current one is computed.

**Evidence.** `spent.data_wait_share_pct`: data wait as a share of training time, percent. `workers.service_s`: time to
make a batch, seconds. The predicted gain comes from the num_workers model with the CPUs that are left.

**Advice.** The number of workers that the model predicts to be best here, with its gain. Not for data that are made
faster than a batch can be handed over (about 1.5 ms): then 0 is right, and this rule is silent.

Of a loader that is no DataLoader the loop's thread is looked at from beside: `loader.producers.loop_share` is the share
of the wait in which it made the batch itself, 0 to 1. No number is recommended then, and the gain is what the loop's
own work and the CPUs bound.

Where making a batch takes memory of a CUDA device (`loader.info`, from the allocator's counts), no number is
recommended: forked workers could not use the device. Then what is done item by item is to be done for a whole batch.

**When it is wrong.** Where the dataset cannot be used from another process (open handles).

**References.** PyTorch `DataLoader(num_workers=...)`; `docs/explain/workers-model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from ..workers.gains import gain_without
from ..workers.pipeline import CHEAPER, INSTEAD, Pipeline, diagnosis_of, pipeline_of
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWorkers:
    """Fires when there are no workers and the model predicts that some would help."""

    id: ClassVar[str] = "no-workers"
    title: ClassVar[str] = "Batches are made in the loop's own thread"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "workers.service_s",
        "loader.num_workers",
        "steps.work_s",
    )
    optional: ClassVar[tuple[str, ...]] = ("loader.info",)
    instead: ClassVar[tuple[str, ...]] = INSTEAD
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "fewer workers"
    cure: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    loop_share: float = threshold(0.6, "1", "Most of the wait, with room for noise; our choice")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait and the predicted gain with the thresholds."""
        pipeline = pipeline_of(window)
        if pipeline is not None:
            return self._in_the_loop(window, pipeline)
        share, service = window.spent.data_wait_share_pct or 0.0, window.workers.service_s
        if window.loader.num_workers != 0 or service is None or share < self.warn_pct:
            return None
        if window.loader.info is not None and window.loader.info.makes_on_device:
            return self._on_the_device(window, share, service.mean)
        predicted = forecast(window)
        if predicted is None or predicted.gain_pct < self.gain_pct or predicted.recommended == 0:
            return None
        if not predicted.without.is_the_setting(predicted.without.best_workers_s):
            return None
        lost = window.spent.bucket_s("data_wait") or 0.0
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= 2 * self.warn_pct else Severity.WARNING,
            title=self.title,
            summary=f"{share:.0f} % of the training time was spent making batches in the loop, "
            f"{service.mean * 1e3:.1f} ms each, while nothing was computed.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=predicted.confidence,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("time to make a batch, mean", service.mean, "s"),
                Evidence("CPUs left for workers", predicted.available_cpus, "CPUs"),
                Evidence("predicted gain", predicted.gain_pct, "%", self.gain_pct, "benchmarks/workers"),
            ),
            advice=(
                *predicted.fixes(" and persistent_workers=True"),
                Advice.of("Make one batch cheaper: simpler or batched transforms, a faster format, a cache."),
            ),
        )

    def _on_the_device(self, window: Window, share: float, service_s: float) -> Diagnosis:
        """Tell of batches that the dataset makes with the help of the device: workers are no advice."""
        lost = window.spent.bucket_s("data_wait") or 0.0
        # Large operations in place of many small ones: 94 % of the wait was saved by one program (H200).
        gain = gain_without(window, 0.85 * lost, least=0.5, most=1.1, on_device=True)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= 2 * self.warn_pct else Severity.WARNING,
            title="Batches are made on the GPU, by the loop's own thread",
            summary=f"{share:.0f} % of the training time was spent making batches in the loop, "
            f"{service_s * 1e3:.1f} ms each, with operations on the GPU.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("time to make a batch, mean", service_s, "s"),
            ),
            advice=(
                Advice.of(
                    "Run what each item does on the GPU once for the whole batch.",
                    expect="A few large operations, after the copy, instead of many small ones.",
                    limit="Workers that are forked cannot use the GPU.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Make items on the CPU in workers: with num_workers set.",
                    limit="Only once no item needs the GPU any more.",
                ),
            ),
        )

    def _in_the_loop(self, window: Window, pipeline: Pipeline) -> Diagnosis | None:
        share, gain = window.spent.data_wait_share_pct or 0.0, pipeline.more_gain_pct
        if share < self.warn_pct or pipeline.loop_share < self.loop_share or pipeline.receives:
            return None
        if gain is None or gain < self.gain_pct:
            return None
        blocked = pipeline.blocked_share
        threads = (
            f"Threads will do: the loop's thread was blocked for {100 * blocked:.0f} % of that time."
            if blocked >= 0.5  # computing is the smaller part of it
            else "Threads help only where the work lets go of Python's lock; processes do always."
        )
        return diagnosis_of(
            self,
            window,
            pipeline,
            summary=f"{share:.0f} % of the training time was spent making batches in the loop's own thread, "
            f"{1e3 * (pipeline.step_s - pipeline.work_s):.1f} ms each, while nothing was computed.",
            warn_pct=self.warn_pct,
            evidence=(
                Evidence(
                    "share of the wait in which the loop's thread made the batch",
                    pipeline.loop_share,
                    "1",
                    self.loop_share,
                    "our choice",
                ),
                Evidence("share of that time blocked", blocked, "1"),
            ),
            advice=(
                Advice.of(
                    "Make batches beside the loop: in DataLoader workers, or with a library that prefetches.",
                    expect="The next batch is made while the loop computes.",
                    limit=threads,
                    gain_pct=gain,
                    interval_pct=pipeline.interval_pct(gain),
                ),
                CHEAPER,
            ),
        )
