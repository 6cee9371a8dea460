"""What changed in the course of a run: bounded, filled while its recording is read, drawn by the charts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..records import BUCKETS, LedgerRecord, Record, StepRecord, WorkerBatch
from ..records.stats import Reservoir

LEDGERS = 1024
"""Most ledger readings kept. The ledger is cumulative, so what happened between two kept ones is exact."""

EXCERPT_STEPS = 256
EXCERPT_BATCHES = 1024
"""Most consecutive steps and worker batches kept, to be shown one by one."""

FIRST_EXCERPT = 32
"""The excerpt is renewed after so many steps, then after twice as many, and so on: it lies in the run's second half
where epochs are long enough."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the wall time between two readings of the ledger went."""

    start_s: float
    """Wall time since the run began."""
    end_s: float
    buckets: dict[str, float]
    """Seconds by bucket; they sum to the interval's length."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Consecutive steps of one epoch, and the worker batches made while they ran."""

    start_s: float
    """Unix time."""
    end_s: float
    steps: tuple[StepRecord, ...]
    batches: tuple[WorkerBatch, ...]

    @property
    def thinned(self) -> bool:
        """Whether steps are missing because they came faster than they could be recorded."""
        return any(b.index != a.index + 1 for a, b in pairwise(self.steps))


class Timeline:
    """Bounded history of one run for its charts."""

    def __init__(self) -> None:
        self._ledgers: Reservoir[LedgerRecord] = Reservoir(LEDGERS)
        self._last: LedgerRecord | None = None
        self._steps: deque[StepRecord] = deque(maxlen=EXCERPT_STEPS)
        self._batches: deque[WorkerBatch] = deque(maxlen=EXCERPT_BATCHES)
        self._seen = 0
        self._renew_at = FIRST_EXCERPT
        self._kept: tuple[tuple[StepRecord, ...], tuple[WorkerBatch, ...]] | None = None

    def append(self, record: Record) -> None:
        """Take a record into the history; kinds that no chart needs are ignored."""
        match record:
            case StepRecord():
                self._steps.append(record)
                self._seen += 1
            case WorkerBatch():
                self._batches.append(record)
            case LedgerRecord():
                self._ledgers.add(record)
                self._last = record
                # A reading of the ledger ends a tick: the batches behind the steps before it are in.
                if self._seen >= self._renew_at:
                    self._kept = tuple(self._steps), tuple(self._batches)
                    self._renew_at = 2 * self._seen
            case _:
                pass

    @property
    def readings(self) -> list[LedgerRecord]:
        """Readings of the ledger from the start to the end of the run, the last one included."""
        kept = self._ledgers.items
        return [*kept, self._last] if self._last is not None and kept[-1] is not self._last else list(kept)

    def intervals(self, most: int) -> list[Interval]:
        """Return where the wall time went, piece by piece from the start to the end of the run.

        Args:
            most: Most pieces; none but the first is much shorter than this fraction of the run.
        """
        last = self._last
        if last is None or not last.wall_s > 0:
            return []
        shortest = last.wall_s / most
        found: list[Interval] = []
        before: LedgerRecord | None = None
        for reading in [*self._ledgers.items, last]:
            begun = before.wall_s if before is not None else 0.0
            rest = last.wall_s - reading.wall_s
            if reading is not last and (reading.wall_s - begun < shortest or rest < shortest):
                continue
            if reading.wall_s > begun:
                found.append(Interval(begun, reading.wall_s, _spent(before, reading)))
                before = reading
        return found

    def excerpt(self, most_steps: int) -> Excerpt | None:
        """Return consecutive steps of one epoch, the latest ones known of an epoch that has enough; None without any.

        Args:
            most_steps: Most steps in it.
        """
        steps, batches = self._kept or (tuple(self._steps), tuple(self._batches))
        epochs = _epochs(steps)[::-1]
        shown = next((e for e in epochs if len(e) >= most_steps), max(epochs, key=len))[-most_steps:]
        if not shown:
            return None
        start_s, end_s = shown[0].time_s - shown[0].total_s, shown[-1].time_s
        inside = tuple(b for b in batches if b.time_s > start_s and b.time_s - b.wall_s < end_s)
        return Excerpt(start_s, end_s, tuple(shown), inside)


def _spent(before: LedgerRecord | None, after: LedgerRecord) -> dict[str, float]:
    known = (*BUCKETS, *(b for b in after.buckets if b not in BUCKETS))
    spent = {b: after.buckets.get(b, 0.0) - (before.buckets.get(b, 0.0) if before else 0.0) for b in known}
    # Seconds of an earlier data wait are booked as worker start-up once the steady wait is known.
    return {bucket: max(0.0, seconds) for bucket, seconds in spent.items()}


def _epochs(steps: Iterable[StepRecord]) -> list[list[StepRecord]]:
    """Cut the steps before each first step of an epoch, which waits for its workers and is no ordinary one."""
    pieces: list[list[StepRecord]] = [[]]
    for step in steps:
        if step.epoch_start:
            pieces.append([])
        else:
            pieces[-1].append(step)
    return pieces


def total_of(intervals: Sequence[Interval]) -> dict[str, float]:
    """Return the seconds of each bucket over several intervals."""
    total: dict[str, float] = {}
    for interval in intervals:
        for bucket, seconds in interval.buckets.items():
            total[bucket] = total.get(bucket, 0.0) + seconds
    return total
