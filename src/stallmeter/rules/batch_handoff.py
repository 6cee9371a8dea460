"""Handing batches over from the workers costs the time.

**What it means.** The batch was ready when the loop asked for it, and still the loop was waiting for data. Receiving,
unpickling and mapping a batch from another process happens in the loop's own thread. Each tensor of a batch costs a
handshake of its own, so many small tensors are expensive however fast the workers are. What is no tensor, as NumPy's
arrays, is pickled and sent through one pipe that all workers share. More workers cannot help.

A batch that is finished is not yet there: while a worker runs Python code, the thread that sends its batches waits for
the interpreter. So this is only said of workers that pause between two batches. Workers that never do set the pace
themselves, however their batches arrive.

Where the queue cannot be looked into, as behind a wrapper with stages of its own, the pauses tell alone: workers that
pause for most of the time have handed in all that they may.

**Evidence.** `queue.ready_wait_share`: share of the data wait in steps whose batch was ready, 0 to 1.
`queue.handover_s`: median wait for a batch that was ready, seconds; without it `steps.data_wait_s`.
`queue.mean_handover_s`: its mean, which counts where workers pause for most of the time: nothing else is waited for.
`workers.busy_share`: share of the workers' time in which they made batches. From the num_workers model: the share of
the loss that one tensor a batch would win back, and how many single items are handed over for a batch that a wrapper
puts together.

Of processes that are not torch's workers: `loader.producers.processes` have made batches and are idle while the loop
waits and this process computes (`loader.producers.outside_share`, 0 to 1).

**Advice.** What the num_workers model predicts to win more comes first. Collate into few large tensors, and in the
workers: a loader with `batch_size=None` hands over what its dataset yields, each item by itself where that yields
single ones. Where a batch takes less time to make than to hand over, use `num_workers=0`: nothing is sent then, which
takes CPUs from the loop as well. Use `torch.multiprocessing.set_sharing_strategy("file_system")`.

**When it is wrong.** On a busy machine every hand-over is slow: look at the CPU first.

**References.** Little's law: a server that idles is not what the queue waits for. Our measurement: 1 small tensor
1.5 ms, 4 tensors 2.5 ms, 16 tensors 5.7 ms (one file descriptor each).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import Outlook, forecast, parts_of_batch
from ..workers.pipeline import INSTEAD, Pipeline, diagnosis_of, pipeline_of
from ..workers.snapshots import rarer_snapshots
from .rule import threshold

AS_MUCH = 0.9
"""Part of the gain of lighter batches from which on no workers come first: that costs one line; our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHandoff:
    """Fires when most of the wait is for batches that were ready, and each takes long."""

    id: ClassVar[str] = "batch-handoff"
    title: ClassVar[str] = "Handing batches over from the workers costs the time"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "steps.data_wait_s",
        "workers.busy_share",
        "loader.num_workers",
        "steps.work_s",
    )
    instead: ClassVar[tuple[str, ...]] = INSTEAD
    optional: ClassVar[tuple[str, ...]] = (
        "loader.info",
        "queue.ready_wait_share",
        "queue.handover_s",
        "queue.mean_handover_s",
    )
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    ready_share: float = threshold(0.6, "1", "Most of the wait; our measurement, benchmarks/faults")
    busy_share: float = threshold(0.85, "1", "Workers busy for longer may themselves set the pace; benchmarks/workers")
    idle_share: float = threshold(0.5, "1", "Our choice: workers that pause for most of the time wait for the loop")
    recovers: float = threshold(0.5, "1", "Most of the loss must come back when a batch is one tensor; our choice")
    several: float = threshold(2.0, "1", "our choice: what the workers hand over is no batch of the loop's")
    at_work: float = threshold(0.5, "1", "Somebody is found at work in most looks; our choice")
    slow_handover_s: float = threshold(0.005, "s", "Our measurement: 16 small tensors; a single one takes 1.5 ms")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait for ready batches with the thresholds."""
        pipeline = pipeline_of(window)
        if pipeline is not None:
            return self._of_a_pipeline(window, pipeline)
        share, busy = window.spent.data_wait_share_pct or 0.0, window.workers.busy_share or 0.0
        handed_over = self._handed_over(window, busy)
        predicted = forecast(window)
        if handed_over is None or predicted is None or not window.loader.num_workers or share < self.warn_pct:
            return None
        ready, handover = handed_over
        if ready < self.ready_share or handover < self.slow_handover_s or busy > self.busy_share:
            return None
        without = predicted.without
        if without.recovers(without.light_handover_s) < self.recovers:
            return None
        lost = (window.spent.bucket_s("data_wait") or 0.0) * ready
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"{100 * ready:.0f} % of the data wait was for batches that were ready: handing one over took "
            f"{handover * 1e3:.1f} ms.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.85,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("share of the wait for ready batches", ready, "1", self.ready_share, "benchmarks/faults"),
                Evidence("wait for a ready batch", handover, "s", self.slow_handover_s, "our measurement"),
                Evidence("share of the workers' time making batches", busy, "1", self.busy_share, "benchmarks/workers"),
            ),
            advice=(*rarer_snapshots(window, predicted), *self._fixes(window, predicted)),
        )

    def _fixes(self, window: Window, predicted: Outlook) -> tuple[Advice, ...]:
        """Return what makes handing over cheap and what avoids it, what wins more first, or as much in one line."""
        gain = predicted.without.gain_pct(predicted.without.light_handover_s)
        lighter = Advice.of(
            "Make whole batches in the workers, before they are handed over."
            if parts_of_batch(window) >= self.several
            else "Collate each batch into a few large tensors.",
            expect="Less data wait: each tensor costs a handshake, and other objects are pickled.",
            limit="More workers do not help, the batches are ready.",
            gain_pct=predicted.of_run(gain),
            interval_pct=predicted.interval_pct(gain),
        )
        files = Advice.of(
            'Call torch.multiprocessing.set_sharing_strategy("file_system").',
            limit="It leaves files after a crash.",
        )
        if predicted.recommended or not predicted.gain_pct:
            limit = "Only where making a batch takes less time than handing it over."
            return lighter, files, Advice.of("Set num_workers=0.", limit=limit)
        none = predicted.fixes()[:1]  # no workers, no threads that compete with them
        return (*none, lighter, files) if predicted.gain_pct >= AS_MUCH * (gain or 0.0) else (lighter, *none, files)

    def _of_a_pipeline(self, window: Window, pipeline: Pipeline) -> Diagnosis | None:
        share = window.spent.data_wait_share_pct or 0.0
        if share < self.warn_pct or not pipeline.receives or max(pipeline.at_work, pipeline.loop_share) < self.at_work:
            return None
        outside = window.loader.producers.outside_share or 0.0
        return diagnosis_of(
            self,
            window,
            pipeline,
            summary=f"{share:.0f} % of the training time was spent waiting for data; the processes that make it were "
            f"{100 * outside:.0f} % of those at work: this process was receiving it.",
            warn_pct=self.warn_pct,
            evidence=(
                Evidence("processes that make batches", window.loader.producers.processes or 0.0, "1"),
                Evidence("share of those at work in other processes", outside, "1"),
            ),
            advice=(
                Advice.of(
                    "Collate each batch into a few large tensors, and pass them in shared memory.",
                    expect="Less copying and unpickling in this process.",
                    limit="More processes do not help.",
                ),
            ),
        )

    def _handed_over(self, window: Window, busy: float) -> tuple[float, float] | None:
        """Return the share of the wait for batches that were ready, and what handing one over takes, seconds."""
        queue, wait, idle = window.queue, window.steps.data_wait_s, busy <= 1.0 - self.idle_share
        if queue.ready_wait_share is not None:
            mean_s, handover = queue.mean_handover_s, queue.handover_s
            handover = mean_s if idle and mean_s is not None else handover
            return None if handover is None else (queue.ready_wait_share, handover)
        return (1.0, wait.median) if wait is not None and idle else None
