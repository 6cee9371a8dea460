"""A few slow batches hold up those that are ready.

**What it means.** Batches are handed out in order. When one takes much longer than the others, the loop waits for it
although later ones are ready. Once the prefetch queue is full the other workers stop as well. A single worker leaves
the loop without data in the same way, though it is fast enough on average. Without workers the loop makes the slow
batch itself: a group of samples that is taken apart, a file that is opened, a buffer that is filled.

**Evidence.** `queue.blocked_wait_share`: share of the data wait in steps whose batch was late while others were ready,
0 to 1. `queue.top_wait_share`: share of the wait in the tenth of the steps that waited longest. `workers.service_s`:
time a worker needs for a batch, seconds, median and maximum; of a single worker the mean, against `steps.work_s`, the
steps' own work in seconds. From the num_workers model: the share of the loss that
comes back when each slow batch takes as long as a typical one. Without workers that is the wait beyond the median
(`queue.usual_wait_in_loop_s`, seconds), where workers are not predicted to win more.

**Advice.** Find out what makes these batches slow: large files, retries, a rebuilt cache. Let the queue bridge the
gap with a larger `prefetch_factor`; how large comes from playing the loader through with the measured batches. Where
the order of samples does not matter, `in_order=False` (torch 2.6 and later).

**When it is wrong.** Several workers need an order to keep. With very few steps one hiccup looks like a habit.

**References.** PyTorch issue 105203 and pull request 141833 on head-of-line blocking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import Outlook, forecast
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowBatches:
    """Fires when most of the wait is for late batches that block others."""

    id: ClassVar[str] = "slow-batches"
    title: ClassVar[str] = "A few slow batches hold up those that are ready"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "queue.blocked_wait_share",
        "queue.top_wait_share",
        "workers.service_s",
        "loader.num_workers",
        "steps.work_s",
    )
    optional: ClassVar[tuple[str, ...]] = ("ledger.training_s", "loader.info", "steps.step_time_s")
    instead: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "queue.top_wait_share",
        "workers.service_s",
        "queue.usual_wait_in_loop_s",
        "ledger.record",
    )
    family: ClassVar[str] = "input"
    cure: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    blocked_share: float = threshold(0.3, "1", "With two workers the other one runs dry, too; benchmarks/faults")
    top_share: float = threshold(0.6, "1", "An even wait has 0.1 here; our measurement, benchmarks/faults")
    recovers: float = threshold(
        0.5, "1", "Most of the loss must come back when slow batches are like others; our choice"
    )
    tail_factor: float = threshold(4.0, "1", "Slowest batch over the median; our measurement, benchmarks/faults")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare where the wait is with the thresholds."""
        if window.queue.usual_wait_in_loop_s is not None:
            return self._in_the_loop(window, window.queue.usual_wait_in_loop_s)
        share, service = window.spent.data_wait_share_pct or 0.0, window.workers.service_s
        held_up, top = self._held_up(window), window.queue.top_wait_share or 0.0
        if service is None or held_up is None or share < self.warn_pct:
            return None
        tail = _tail(window)
        predicted = forecast(window)
        if predicted is None or top < self.top_share or tail < self.tail_factor:
            return None
        part = _recovered(window, predicted)
        if part < self.recovers:
            return None
        # Of the ledger and not of the model's step: that leaves the slowest hundredth out, and here it decides.
        training_s, wait_s = window.ledger.training_s, window.spent.bucket_s("data_wait") or 0.0
        gain = 100.0 * (training_s / (training_s - part * wait_s) - 1.0) if training_s else None
        lost = wait_s * held_up.share
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=held_up.title,
            summary=f"{held_up.summary}; the slowest took {service.max * 1e3:.0f} ms, a typical one "
            f"{service.median * 1e3:.0f} ms.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.85,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                held_up.evidence,
                *self._uneven(top, tail),
            ),
            advice=(
                Advice.of(
                    "Find what makes these batches slow: large files, retries, a cache that is rebuilt.",
                    expect="A slowest batch that takes little more than a typical one.",
                    gain_pct=gain,
                    interval_pct=predicted.interval_pct(gain, eased=True, whole=True),
                ),
                _deeper_queue(predicted),
                *((_IN_ANY_ORDER,) if (window.loader.num_workers or 0) > 1 else ()),
            ),
        )

    def _in_the_loop(self, window: Window, usual_s: float) -> Diagnosis | None:
        """Judge batches that the loop makes itself: what a few of them take beyond a typical one."""
        ledger, service = window.ledger.record, window.workers.service_s
        wait_s, top = window.spent.bucket_s("data_wait"), window.queue.top_wait_share or 0.0
        if ledger is None or service is None or wait_s is None:
            return None
        tail = _tail(window)
        lost_s = wait_s - ledger.steps * usual_s
        share = window.ledger.training_share_pct(lost_s)
        if share is None or share < self.warn_pct or top < self.top_share or tail < self.tail_factor:
            return None
        predicted = forecast(window)
        if predicted is not None and predicted.recommended and predicted.gain_pct >= self.gain_pct:
            return None  # then no-workers tells what wins more
        gain = gain_without(window, lost_s, least=1.0 - _UNSURE, most=1.0)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=_IN_THE_LOOP,
            summary=f"{100 * top:.0f} % of the data wait was in a tenth of the steps: the slowest batch took "
            f"{service.max * 1e3:.0f} ms, a typical one {service.median * 1e3:.2g} ms.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence(
                    "wait beyond typical batches, share of training time", share, "%", self.warn_pct, "MLPerf Storage"
                ),
                *self._uneven(top, tail),
            ),
            advice=(
                Advice.of(
                    "Find what makes these batches slow: groups of samples, large files, buffers that are filled.",
                    expect="A slowest batch that takes little more than a typical one.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Preprocess it before training, or once for all epochs."),
            ),
        )

    def _held_up(self, window: Window) -> _HeldUp | None:
        """Return what late batches hold up: those behind them, or a loop whose one worker is fast enough else."""
        workers, service, work = window.loader.num_workers or 0, window.workers.service_s, window.steps.work_s
        if workers > 1:
            return self._behind(window.queue.blocked_wait_share or 0.0)
        if not workers or service is None or work is None:
            return None
        info, top = window.loader.info, window.queue.top_wait_share or 0.0
        each_s = service.mean * ((info and info.batches_per_step) or 1.0)
        if each_s >= work.mean:
            return None
        return _HeldUp(
            top,
            _IN_THE_LOOP,
            f"{100 * top:.0f} % of the data wait was in a tenth of the steps, and on average the worker is fast enough",
            Evidence("a worker's time for a step's batches, mean", each_s, "s", work.mean, "the steps' own work"),
        )

    def _uneven(self, top: float, tail: float) -> tuple[Evidence, ...]:
        return (
            Evidence("share of the wait in a tenth of the steps", top, "1", self.top_share, "benchmarks/faults"),
            Evidence("slowest batch over the median", tail, "1", self.tail_factor, "benchmarks/faults"),
        )

    def _behind(self, blocked: float) -> _HeldUp | None:
        if blocked < self.blocked_share:
            return None
        return _HeldUp(
            blocked,
            self.title,
            f"{100 * blocked:.0f} % of the data wait was for a late batch while others were ready",
            Evidence("share of the wait behind a late batch", blocked, "1", self.blocked_share, "benchmarks/faults"),
        )


def _tail(window: Window) -> float:
    """Return how many times as long as a typical batch the slowest one took; 0 where that is not known."""
    service = window.workers.service_s
    return service.max / service.median if service is not None and service.median > 0 else 0.0


def _recovered(window: Window, predicted: Outlook) -> float:
    """Return the share (0 to 1) of the loss to data that comes back when slow batches take as long as others.

    The model leaves the slowest hundredth of the steps out. What they wait, as far as it is beyond its own prediction,
    is lost to slow batches alone.
    """
    without, step, work = predicted.without, window.steps.step_time_s, window.steps.work_s
    if step is None or work is None or predicted.asked is None:
        return without.recovers(without.even_s)
    work_s = predicted.asked[0].work_s
    modelled_s = max(without.observed_s, without.now_s, work_s) - work_s
    return without.recovers(without.even_s, beside_s=max(0.0, step.mean - work.mean - modelled_s))


_IN_THE_LOOP = "A few slow batches hold up the loop"

_UNSURE = 0.5
"""Part of the wait beyond typical batches that may stay: what a slow one does for many others is made cheaper, or is
spread over them; our choice."""

_IN_ANY_ORDER = Advice.of(
    "Set in_order=False in the DataLoader (torch 2.6 and later).",
    limit="Only where the order of samples does not matter.",
)


class _HeldUp(NamedTuple):
    """What late batches hold up, in words."""

    share: float
    """Of the data wait, 0 to 1."""
    title: str
    summary: str
    evidence: Evidence


def _deeper_queue(predicted: Outlook) -> Advice:
    deeper = predicted.deeper
    return Advice.of(
        f"Set prefetch_factor={deeper.prefetch_factor}." if deeper else "Raise prefetch_factor.",
        expect="A queue that bridges a slow batch.",
        limit="It costs memory.",
        gain_pct=deeper.gain_pct if deeper else None,
    )
