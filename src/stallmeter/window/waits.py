"""What the workers wait for while they make a batch: a lock, a store that they share, or each for itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..records import WorkerMemory, WorkerWaits
from ..records.stats import mean
from .memo import Memo
from .pace import MIN_BATCHES, Pace
from .sharing import Growth, growth

KINDS = ("lock", "threads", "sleep", "socket", "file", "other")

MIN_POLLS = 3
"""Looks that follow each other see the same batches: so many seconds apart they do not."""

MIN_LOOKS = 12

MIN_LOCKED_POLLS = 2
"""A lock that somebody waited for at one moment of the run may be anything."""


class WaitSignals:
    """Signals of what workers wait for.

    Args:
        pace: Knows the batches that they made.
        memo: That changes with each of them, and with what is appended here.
    """

    def __init__(self, pace: Pace, memo: Memo) -> None:
        self._pace, self._memo = pace, memo
        self._polls = self._locked_polls = self._looks = self._seen = self._queued = self._contended = 0
        self._kinds = dict.fromkeys(KINDS, 0)
        self._cpus: int | None = None
        self._process_cpus: int | None = None

    def append(self, record: WorkerWaits | WorkerMemory) -> None:
        """Take a few looks at the workers, or on which CPUs they may run."""
        if isinstance(record, WorkerMemory):
            self._cpus, self._process_cpus = record.cpus, record.process_cpus
            return
        self._polls += 1
        self._locked_polls += record.contended > 0
        self._looks += record.looks
        self._seen += record.workers
        self._queued += record.queued
        self._contended += record.contended
        for kind in KINDS:
            self._kinds[kind] += getattr(record, kind)

    @property
    def cpus(self) -> int | None:
        """CPUs that the workers may run on, all together; None where the system does not say."""
        return self._cpus

    @property
    def process_cpus(self) -> int | None:
        """CPUs that the training process may run on, as known when its workers were last looked at."""
        return self._process_cpus

    @property
    def threads(self) -> float | None:
        """Threads that compute in a worker at a time, the others waiting for it or it for them.

        CPU time of its process over that of the thread that makes the batches; None where one of them is not known.
        """
        made = [b for b in self._pace.leading.batches.items if b.worker >= 0]
        known = [(b.process_cpu_s, b.cpu_s) for b in made if b.process_cpu_s is not None]
        own_s = sum(own_s for _, own_s in known)
        return sum(whole_s for whole_s, _ in known) / own_s if len(known) >= MIN_BATCHES and own_s > 0 else None

    @property
    def kinds(self) -> Mapping[str, float] | None:
        """Shares (0 to 1) of what blocked workers wait in: lock, threads, sleep, socket, file, other."""
        total = sum(self._kinds.values())
        if not self._is_enough() or total < MIN_LOOKS:
            return None
        return {kind: count / total for kind, count in self._kinds.items()}

    @property
    def lock_share(self) -> float | None:
        """Share (0 to 1) of the blocked workers that wait for a lock which another process holds."""
        kinds = self.kinds
        return None if kinds is None else kinds["lock"]

    @property
    def lock_time_share(self) -> float | None:
        """Share (0 to 1) of a batch's time in which its worker waits for the lock that is waited for most."""
        return self._queued / self._seen if self._is_enough() else None

    @property
    def contended_share(self) -> float | None:
        """Share (0 to 1) of the time in which at least one worker waits for that lock: somebody else holds it."""
        return self._contended / self._looks if self._is_enough() else None

    @property
    def lock_use(self) -> float | None:
        """Share (0 to 1) of the time in which that lock is held, with or without others that wait for it."""
        contended = self.contended_share
        if contended is None:
            return None
        if self._locked_polls < MIN_LOCKED_POLLS:
            return 0.0
        return held(contended, max(2, round(self._seen / self._looks)))

    @property
    def at_work(self) -> float | None:
        """Workers that make a batch at a time, while one is made: mean."""
        return mean(batch.in_flight for batch in self._pace.leading.batches.items)

    @property
    def serial_s(self) -> float | None:
        """Time that each worker at work adds to a batch of the others; None where none is seen to add any."""
        known = self._growth()
        return known.per_worker_s if known is not None and known.shows_sharing else None

    @property
    def serial_share(self) -> float | None:
        """Share (0 to 1) of the blocked time that grows with the workers at work: 1 if one at a time gets through."""
        known = self._growth()
        return known.share if known is not None and known.shows_sharing else None

    def _growth(self) -> Growth | None:
        return self._memo("growth", lambda: growth(self._pace.leading.batches.items))

    def _is_enough(self) -> bool:
        return self._polls >= MIN_POLLS and self._looks >= MIN_LOOKS


def held(contended: float, workers: int) -> float:
    """Return the share of the time in which a lock is held, from the share in which somebody waits for it.

    The model of a repairman: each worker goes on for a while without the lock, then holds it for a while, both of
    random length. Where all hold it equally long they wait less: then it is held a little more than this says.

    Args:
        contended: 0 to 1.
        workers: That come for it, 2 or more.
    """
    if contended <= 0.0:
        return 0.0

    def states(ratio: float) -> tuple[float, float]:
        """Shares in which at least one and at least two are there, for a hold that is this much of the time between."""
        weights = [1.0]
        for k in range(workers):
            weights.append(weights[-1] * (workers - k) * ratio)
        total = math.fsum(weights)
        return 1 - weights[0] / total, 1 - (weights[0] + weights[1]) / total

    low, high = 1e-4, 1e4
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if states(middle)[1] < contended else (low, middle)
    return max(contended, states(low)[0])
