"""Who makes the batches where torch's workers do not, and what they do while the loop waits for them."""

from __future__ import annotations

from collections.abc import Mapping

from ..records import LibraryWait, ProducerLooks
from ..records.stats import Reservoir
from .memo import Memo

BLOCKED = ("sleep", "socket", "file")

MIN_LOOKS = 12
"""Fewer tell nothing; the window's own `waits` asks for as many."""

MIN_WAITS = 8
"""Fewer waits of the loop tell nothing about what it waits for; our choice."""

MIN_RECORDS = 2
"""Looks of one second may show anything."""


class BodyWaits:
    """Signals of the loop's waits in the steps' own work.

    Args:
        records: A sample of all.
    """

    def __init__(self, records: Reservoir[ProducerLooks]) -> None:
        self._records = records

    @property
    def lock_share(self) -> float | None:
        """Share (0 to 1) of the steps' own time in which the loop waits for the interpreter's lock with producers."""
        looks = sum(r.body_looks for r in self._records.items)
        enough = looks >= MIN_LOOKS and len(self._records.items) >= MIN_RECORDS
        return sum(r.body_interpreter for r in self._records.items) / looks if enough else None

    @property
    def lock_part(self) -> float | None:
        """Share (0 to 1) of the waits seen in the steps' own work that is for the interpreter's lock; None of a few.

        Looks meet waits for the lock too seldom, for whoever looks must have it, and the others not too often.
        """
        known = [r for r in self._records.items if r.body_blocked is not None]
        at_lock = sum(r.body_interpreter for r in known)
        waits = at_lock + sum(r.body_blocked or 0 for r in known)
        return at_lock / waits if waits >= MIN_WAITS else None


class ProducerSignals:
    """Signals of threads and processes that make batches, but for torch's workers.

    Args:
        size: Most records kept.
    """

    def __init__(self, *, size: int = 1024) -> None:
        self.memo = Memo()
        self._records: Reservoir[ProducerLooks] = Reservoir(size)
        self._library: LibraryWait | None = None
        self.body = BodyWaits(self._records)

    def append(self, record: ProducerLooks | LibraryWait) -> None:
        """Take what a few looks have shown, or what a library has counted."""
        self.memo.changes += 1
        match record:
            case ProducerLooks():
                self._records.add(record)
            case LibraryWait():
                self._library = record

    @property
    def looks(self) -> int | None:
        """Looks at the producers while the loop waited for data; None when there were too few."""
        looks = self._total("looks")
        return int(looks) if looks >= MIN_LOOKS and len(self._records.items) >= MIN_RECORDS else None

    @property
    def loop_share(self) -> float | None:
        """Share (0 to 1) of the data wait in which the loop's own thread made the batch."""
        return self._ratio(self._total("loop_running") + self._total("loop_blocked"), self.looks)

    @property
    def loop_blocked_share(self) -> float | None:
        """Of that time, the share (0 to 1) in which it waited for storage, a connection or in a sleep."""
        blocked = self._total("loop_blocked")
        return self._ratio(blocked, None if self.looks is None else blocked + self._total("loop_running"))

    @property
    def at_work(self) -> float | None:
        """Producers at work while the loop waits for data, mean: those that compute and those that are blocked."""
        computing, blocked = self.computing, self._blocked
        return None if computing is None or blocked is None else computing + sum(blocked.values())

    @property
    def computing(self) -> float | None:
        """Of these, those that compute, wait for a CPU or for the interpreter's lock."""
        running, waiting = self._mean("running"), self.lock_waiters
        return None if running is None or waiting is None else running + waiting

    @property
    def lock_waiters(self) -> float | None:
        """Of these, those that wait for the interpreter's lock."""
        return self._mean("interpreter")

    @property
    def blocked_share(self) -> float | None:
        """Share (0 to 1) of the producers at work that wait for storage, a connection or in a sleep."""
        blocked, at_work = self._blocked, self.at_work
        return None if blocked is None else self._ratio(sum(blocked.values()), at_work)

    @property
    def kinds(self) -> Mapping[str, float] | None:
        """Shares (0 to 1) of what blocked producers wait in: sleep, socket, file."""
        blocked = self._blocked
        total = sum(blocked.values()) if blocked else 0.0
        return {kind: count / total for kind, count in blocked.items()} if blocked and total > 0 else None

    @property
    def outside_share(self) -> float | None:
        """Share (0 to 1) of the producers at work that are in other processes."""
        return self._ratio(self._mean("outside") or 0.0, self.at_work)

    @property
    def processes(self) -> float | None:
        """Child processes that had something to do, mean."""
        return None if self.looks is None else self._weighed("processes") / self.looks

    @property
    def batch_cpu_s(self) -> float | None:
        """CPU time of the producers for a step, seconds."""
        known = [r for r in self._records.items if r.cpu_s is not None]
        steps = sum(r.steps for r in known)
        return sum(r.cpu_s or 0.0 for r in known) / steps if steps else None

    @property
    def cpus(self) -> float | None:
        """CPUs that the producers keep busy, mean over the run."""
        known = [r for r in self._records.items if r.cpu_s is not None]
        period_s = sum(r.period_s for r in known)
        return sum(r.cpu_s or 0.0 for r in known) / period_s if period_s > 0 else None

    @property
    def library(self) -> LibraryWait | None:
        """What the library that makes the batches has itself counted of the loop's waits, newest iteration."""
        return self._library

    @property
    def _blocked(self) -> Mapping[str, float] | None:
        found = {kind: mean for kind in BLOCKED if (mean := self._mean(kind)) is not None}
        return found or None

    def _mean(self, name: str) -> float | None:
        return None if self.looks is None else self._weighed(name) / self.looks

    def _weighed(self, name: str) -> float:
        return float(sum(getattr(r, name) * r.looks for r in self._records.items))

    def _total(self, name: str) -> float:
        return float(sum(getattr(r, name) for r in self._records.items))

    @staticmethod
    def _ratio(part: float, whole: float | None) -> float | None:
        return min(1.0, part / whole) if whole else None
