"""What the beginning of epochs cost, the start of workers above all: by how much the first wait exceeds the others."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

LONG = 5.0
"""Times the steps that batches are made ahead for, from which on a first wait is none for a batch; our choice."""

LEAST = 2
"""So many long ones: what is long once is done once, as where a table is read when it is first asked for."""


class ExcessOfFirstWaits(NamedTuple):
    """Seconds by which first waits of epochs exceed a steady one."""

    all_s: float
    """Of workers that had to start, and of late ones."""
    late_s: float
    """That no worker's start explains, nor the making of a batch; 0 of a single one."""


class FirstWaits:
    """The waits for the first batches of epochs. Old ones are settled and forgotten, their excess is not."""

    def __init__(self) -> None:
        self._open_s: deque[float] = deque(maxlen=64)
        self._settled_s = 0.0

    def __len__(self) -> int:
        return len(self._open_s)

    def add(self, wait_s: float) -> None:
        """Take the first wait of an epoch."""
        self._open_s.append(wait_s)

    def settle(self, steady_s: float | None) -> None:
        """Compare those that are open with a steady wait, for good; they stay open while that is None."""
        if steady_s is not None:
            self._settled_s = self.excess_s(steady_s)
            self._open_s.clear()

    def excess_s(self, steady_s: float | None) -> float:
        """Seconds by which all of them exceed a steady wait; those that are open count once that is known."""
        if steady_s is None:
            return self._settled_s
        return self._settled_s + sum(max(0.0, wait_s - steady_s) for wait_s in self._open_s)


class LateFirstWaits:
    """The waits for the first batches of epochs in which no worker starts: an ordinary one is a wait for a batch.

    Long ones are what a loader does where an epoch begins: a sampler that reads the dataset, a table read anew.
    """

    def __init__(self) -> None:
        self._open_s: deque[float] = deque(maxlen=64)
        self._settled_s = 0.0
        self._settled = 0

    def __len__(self) -> int:
        return len(self._open_s)

    def add(self, wait_s: float) -> None:
        """Take the first wait of an epoch."""
        self._open_s.append(wait_s)

    def settle(self, steady_s: float | None, usual_s: float | None) -> None:
        """Compare those that are open for good; they stay open while what is usual is not known.

        Args:
            steady_s: Of a steady step's wait.
            usual_s: That the making of a first batch may take.
        """
        if steady_s is not None and usual_s is not None:
            long = self._long(steady_s, usual_s)
            self._settled_s += sum(long)
            self._settled += len(long)
            self._open_s.clear()

    def excess_s(self, steady_s: float | None, usual_s: float | None) -> float:
        """Seconds by which the long ones exceed a steady wait; 0 of a single one.

        Args:
            steady_s: As for `settle`.
            usual_s: As for `settle`.
        """
        long = self._long(steady_s, usual_s) if steady_s is not None and usual_s is not None else []
        return self._settled_s + sum(long) if self._settled + len(long) >= LEAST else 0.0

    def _long(self, steady_s: float, usual_s: float) -> list[float]:
        return [wait_s - steady_s for wait_s in self._open_s if wait_s >= max(steady_s, LONG * usual_s)]
