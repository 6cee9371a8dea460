"""The first epoch of a run apart from the later ones: it may be the only one that reads from storage."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..records import StepRecord, WorkerBatch
from ..records.stats import Reservoir, mean, stats
from .ledger import LedgerSignals
from .memo import Memo
from .warmup import FIRST_STEPS
from .workers import WorkerSignals

MIN_STEPS = 10
"""Steady steps that are needed of the first epoch, and of later ones."""

BLOCKS = 5
"""The first epoch is cut into so many blocks, later ones into blocks of as many steps."""

MIN_OPENERS = 3
"""First steps of epochs without which nothing is said of them: one may be slow for any reason."""


class ForkedSteps(NamedTuple):
    """Steps within an epoch in which the training process was forked, beside those in which it was not; medians."""

    wait_s: float
    """By which their data wait is longer."""
    work_s: float
    """By which the rest of them is: what the loop writes next is copied page by page."""


def own_s(step: StepRecord) -> float:
    """Return the time of a step in copy, forward, backward and the loop's own body."""
    return sum(s or 0.0 for s in (step.h2d_s, step.forward_s, step.backward_s, step.compute_s))


def is_within(step: StepRecord, times: Iterable[tuple[float, float]]) -> bool:
    """Whether a step falls into some times, with a part of it."""
    return any(begin < step.time_s and step.time_s - step.total_s < end for begin, end in times)


class Steps(Protocol):
    """What is asked of the steps here."""

    memo: Memo

    @property
    def steady(self) -> Sequence[StepRecord]:
        """A sample of steady steps, oldest first."""
        ...


class EpochSignals:
    """Signals of the first epoch and of those after it. None while there is only one epoch.

    Args:
        steps: Each knows its epoch.
        workers: Their batches know their time.
        openers: The first steps of epochs.
        ledger: Counts all steps, and the epochs.
        looked: Times, begin and end, in which batches were looked into: the loop waited for that, and no steps of these
            are compared.
    """

    def __init__(
        self,
        steps: Steps,
        workers: WorkerSignals,
        openers: Reservoir[StepRecord],
        ledger: LedgerSignals,
        looked: Mapping[float, float],
    ) -> None:
        self._memo = Memo(steps.memo, workers.memo)
        self._steps, self._workers, self._openers, self._ledger = steps, workers, openers, ledger
        self._looked = looked

    def waits_within(self, seconds: float) -> float:
        """Return the share (0 to 1) of the steps after the first of each epoch that waited so long for data."""
        return self._share(lambda step: step.data_wait_s >= seconds) or 0.0

    @property
    def validations(self) -> float | None:
        """Times that the model was validated in the midst of the steps in an epoch; None with fewer than two epochs.

        Of all steps as many are taken to hold one as of those that are known.
        """
        share, record = self._share(lambda step: bool(step.validation_s)), self._ledger.record
        if share is None or record is None or record.epochs < 2:
            return None
        return share * record.steps / record.epochs

    def _share(self, is_so: Callable[[StepRecord], bool]) -> float | None:
        """Return the share of the steady steps that are so; None without any."""
        steps = self._steps.steady
        return sum(s.every for s in steps if is_so(s)) / sum(s.every for s in steps) if steps else None

    @property
    def first_steps(self) -> int | None:
        """Steps of the first epoch."""
        first = self._split[0]
        return min(s.index for s in self._steps.steady if s.epoch != first[0].epoch) if first else None

    @property
    def first_wait_s(self) -> float | None:
        """Mean data wait of a steady step in the first epoch."""
        return mean(s.data_wait_s for s in self._split[0])

    @property
    def later_wait_s(self) -> float | None:
        """Mean data wait of a steady step after the first epoch."""
        return mean(s.data_wait_s for s in self._split[1])

    @property
    def first_step_s(self) -> float | None:
        """Mean time of a steady step in the first epoch."""
        return mean(s.step_time_s for s in self._split[0])

    @property
    def later_step_s(self) -> float | None:
        """Mean time of a steady step after the first epoch."""
        return mean(s.step_time_s for s in self._split[1])

    @property
    def later_wait_share_pct(self) -> float | None:
        """Data wait of steps after the first epoch as a share of their time, by the host's clock."""
        wait, step = self.later_wait_s, self.later_step_s
        return None if wait is None or not step else 100.0 * wait / step

    @property
    def waits_apart_share(self) -> float | None:
        """Share (0 to 1) of pairs of a first epoch's block and a later one in which the first epoch waited longer."""
        return self._memo("apart", self._find_apart)

    @property
    def first_read_bytes(self) -> float | None:
        """Mean bytes that a batch of the first epoch read from a block device; None where that is not measured."""
        return mean(b.read_bytes for b in self._batches[0])

    @property
    def later_read_bytes(self) -> float | None:
        """Mean bytes that a batch after the first epoch read from a block device."""
        return mean(b.read_bytes for b in self._batches[1])

    @property
    def first_service_s(self) -> float | None:
        """Mean time that a batch of the first epoch took its worker, waiting for a CPU left out."""
        return mean(b.service_s for b in self._batches[0])

    @property
    def later_service_s(self) -> float | None:
        """Mean time that a batch after the first epoch took its worker, waiting for a CPU left out."""
        return mean(b.service_s for b in self._batches[1])

    @property
    def copying_s(self) -> float | None:
        """Seconds by which the first step of an epoch exceeds others in its own work, where its optimizer does, too.

        A fork shares the program's memory with the workers, and what the loop writes next is copied page by page: the
        optimizer's state above all. 0 where the optimizer is as fast as in other steps, whatever else the program does
        in these. None where no optimizer was measured, or fewer than `MIN_OPENERS` such steps are known.
        """
        return self._memo("copying", self._find_copying)

    def _find_copying(self) -> float | None:
        opening, steady = [s for s in self._openers.items if s.optimizer_s is not None], self._steps.steady
        usual = stats(s.optimizer_s for s in steady if s.optimizer_s is not None)
        if usual is None or len(opening) < MIN_OPENERS:
            return None
        updating_s = statistics.median(s.optimizer_s or 0.0 for s in opening)
        if updating_s <= usual.p95:
            return 0.0
        own = statistics.median(map(own_s, opening)) - statistics.median(map(own_s, steady))
        return updating_s - usual.median + max(0.0, own)

    @property
    def forked(self) -> ForkedSteps | None:
        """What forks cost the steps that are no epoch's first; None where fewer than `MIN_OPENERS` have one."""
        return self._memo("forked", self._find_forked)

    def _find_forked(self) -> ForkedSteps | None:
        steady, forks_s = self._steps.steady, sorted(fork.time_s for fork in self._workers.forks)
        forked: dict[bool, list[StepRecord]] = {True: [], False: []}
        for step in steady:
            began_s = step.time_s - step.step_time_s
            forked[bisect_right(forks_s, step.time_s) > bisect_right(forks_s, began_s)].append(step)
        if min(map(len, forked.values())) < MIN_OPENERS:
            return None
        waits, works = (
            [statistics.median(map(of, forked[has])) for has in (True, False)]
            for of in (lambda s: s.data_wait_s, lambda s: s.step_time_s - s.data_wait_s)
        )
        return ForkedSteps(max(0.0, waits[0] - waits[1]), max(0.0, works[0] - works[1]))

    @property
    def _split(self) -> tuple[Sequence[StepRecord], Sequence[StepRecord]]:
        return self._memo("split", self._split_steps)

    def _split_steps(self) -> tuple[Sequence[StepRecord], Sequence[StepRecord]]:
        steady = self._steps.steady
        # A history that begins in the middle of a run, with other workers, has no first epoch.
        if not steady or steady[0].index > FIRST_STEPS:
            return (), ()
        kept = [s for s in steady if not is_within(s, self._looked.items())]
        first = [s for s in kept if s.epoch == steady[0].epoch]
        later = [s for s in kept if s.epoch != steady[0].epoch]
        return (first, later) if min(len(first), len(later)) >= MIN_STEPS else ((), ())

    @property
    def _batches(self) -> tuple[Sequence[WorkerBatch], Sequence[WorkerBatch]]:
        return self._memo("batches", self._split_batches)

    def _split_batches(self) -> tuple[Sequence[WorkerBatch], Sequence[WorkerBatch]]:
        first, later = self._split
        if not first or not later:
            return (), ()
        began_s, ended_s = later[0].time_s, first[-1].time_s
        made = self._workers.batches.items
        return [b for b in made if b.time_s <= ended_s], [b for b in made if b.time_s >= began_s]

    def _find_apart(self) -> float | None:
        first, later = self._split
        if not first or not later:
            return None
        size = len(first) // BLOCKS
        ours, theirs = _blocks(first, size), _blocks(later, min(size, len(later) // BLOCKS))
        return statistics.fmean(a > b for a in ours for b in theirs)


def _blocks(steps: Sequence[StepRecord], size: int) -> list[float]:
    """Return the mean wait of each full block of consecutive steps: waits come in bursts of as many workers."""
    starts = range(0, len(steps) - size + 1, size)
    return [statistics.fmean(s.data_wait_s for s in steps[i : i + size]) for i in starts]
