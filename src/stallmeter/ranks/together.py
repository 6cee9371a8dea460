"""Whether ranks train together at all, and how often they meet."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, sub

from .steps import RankSteps

LEAST_S = 2e-4
"""Ranks on one idle host differ by so much in any bucket: the clock's, and the scheduler's."""

STEPS = 16
"""Steps in a row over which the ranks' sums are compared."""

MOST_ACCUMULATED = 1024
"""Steps between two weight updates at most; of more nothing is concluded."""


def accumulation(rank: RankSteps) -> int:
    """Return how many steps make one weight update; 1 where that is not known."""
    known = [(i, u) for i, u in zip(rank.index, rank.optimizer_step, strict=False) if u is not None]
    if len(known) < 2 or known[-1][1] <= known[0][1]:
        return 1
    every = (known[-1][0] - known[0][0]) / (known[-1][1] - known[0][1])
    return max(1, round(every)) if every <= MOST_ACCUMULATED else 1


class Drift:
    """How far the ranks' sums drift apart.

    Ranks that wait for each other differ in each bucket of a step, and hardly in the sum of all: one is long here, the
    others are long there. Of ranks that do not, the squares of the differences add up.

    Args:
        count: Ranks.
        accumulated: Steps of a weight update.
        clear_s: Difference from which on a step without its neighbours tells anything.
    """

    def __init__(self, count: int, accumulated: int = 1, clear_s: float = 0.0) -> None:
        self._count = count
        self._most = max(STEPS, 2 * accumulated)
        self._clear_s = max(LEAST_S, clear_s)
        self._zero = [0.0] * count
        self._sums, self._squares = self._zero, 0.0
        self._met = (self._zero, 0.0)
        """The same at the end of the newest exchange."""
        self._steps = 0
        self._parts: list[float] = []

    def spent(self, spent: Sequence[float]) -> None:
        """Take what each rank spent in a bucket."""
        self._squares += _squares(spent)
        self._sums = list(map(add, self._sums, spent))

    def exchanged(self) -> None:
        """The part of a step has ended that ends with the exchange of gradients."""
        self._met = (self._sums, self._squares)
        self._steps += 1
        if self._steps >= self._most:
            sums, squares = self._met
            part = self._part(sums, squares)
            self._parts += [] if part is None else [part]
            self._met, self._steps = (self._zero, 0.0), 0
            self._sums = list(map(sub, self._sums, sums))
            self._squares -= squares

    def cut(self) -> None:
        """The next step does not follow this one."""
        # What follows the last exchange is waited for in the next one, or is alike in each step.
        part, whole = self._part(*self._met), self._part(self._sums, self._squares)
        self._parts += [min(part or 0.0, whole)] if whole is not None and self._steps else []
        self._met, self._steps = (self._zero, 0.0), 0
        self._sums, self._squares = self._zero, 0.0

    def _part(self, sums: Sequence[float], squares: float) -> float | None:
        """Return how far sums are apart, 0 to 1; None where nothing differs."""
        least_s = self._clear_s if self._steps == 1 else LEAST_S
        if squares <= self._count * least_s**2 * self._steps:
            return None
        return min(1.0, _squares(sums) / squares)

    @property
    def value(self) -> float | None:
        """0 where all meet, about 1 where nobody does; None where they do not differ."""
        # Left out is the largest quarter: where a rank was late at the edge of a row, its others wait in another row.
        kept = sorted(self._parts)[: max(1, len(self._parts) * 3 // 4)]
        return sum(kept) / len(kept) if kept else None


def _squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)
