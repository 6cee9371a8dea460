"""What the beginning of epochs cost, the start of workers above all: by how much the first wait exceeds the others."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

LONG = 5.0
"""Times the steps that batches are made ahead for, from which on a first wait is none for a batch; our choice."""

FEWEST_LATE = 2
"""So many late ones: what is long once is done once, as where a table is read when it is first asked for."""


class ExcessOfFirstWaits(NamedTuple):
    """Seconds by which first waits of epochs exceed a steady one."""

    all_s: float
    """Of workers that had to start, and of late ones."""
    late_s: float
    """That no worker's start explains, nor the making of a batch; 0 of a single one."""


class FirstWaits:
    """The waits for the first batches of epochs. Old ones are settled and forgotten, their excess is not.

    Args:
        fewest: So many must be long; fewer count for nothing.
    """

    def __init__(self, fewest: int = 1) -> None:
        self._fewest = fewest
        self._open_s: deque[float] = deque(maxlen=64)
        self._settled_s = 0.0
        self._settled = 0

    def __len__(self) -> int:
        return len(self._open_s)

    def add(self, wait_s: float) -> None:
        """Take the first wait of an epoch."""
        self._open_s.append(wait_s)

    def settle(self, steady_s: float | None, least_s: float = 0.0) -> None:
        """Compare those that are open with a steady wait, for good; they stay open while that is None.

        Args:
            steady_s: Of a steady step.
            least_s: A shorter one counts for nothing.
        """
        if steady_s is not None:
            long = self._long(steady_s, least_s)
            self._settled_s += sum(long)
            self._settled += len(long)
            self._open_s.clear()

    def excess_s(self, steady_s: float | None, least_s: float = 0.0) -> float:
        """Seconds by which all of them exceed a steady wait; those that are open count once that is known.

        Args:
            steady_s: As for `settle`.
            least_s: As for `settle`.
        """
        long = [] if steady_s is None else self._long(steady_s, least_s)
        return self._settled_s + sum(long) if self._settled + len(long) >= self._fewest else 0.0

    def _long(self, steady_s: float, least_s: float) -> list[float]:
        return [wait_s - steady_s for wait_s in self._open_s if wait_s >= max(steady_s, least_s)]
