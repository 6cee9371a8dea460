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
        self._cycle = accumulated
        self._most = accumulated * -(-max(STEPS, 2 * accumulated) // accumulated)
        """Whole cycles: in the middle of one the ranks are apart."""
        self._clear_s = max(LEAST_S, clear_s)
        self._zero = [0.0] * count
        self._sums, self._squares = self._zero, 0.0
        self._met: tuple[list[float], float] = (self._zero, 0.0)
        """The same at the end of the newest exchange that ends a cycle, or of the newest one before there is such."""
        self._first: tuple[list[float], float] | None = None
        """The same at the end of the first one; None before that."""
        self._steps = 0
        """From there on."""
        self._parts: list[float] = []

    def spent(self, spent: Sequence[float]) -> None:
        """Take what each rank spent in a bucket."""
        self._squares += _squares(spent)
        self._sums = list(map(add, self._sums, spent))

    def exchanged(self) -> None:
        """The part of a step has ended that ends with the exchange of gradients."""
        if self._first is None:
            self._first = self._met = (self._sums, self._squares)
            return
        self._steps += 1
        if self._steps < self._cycle or self._steps % self._cycle == 0:
            self._met = (self._sums, self._squares)
        if self._steps >= self._most:
            self._count(*self._since_first(), self._steps)
            self._first, self._steps = self._met, 0

    def cut(self) -> None:
        """The next step does not follow this one."""
        # Before the first exchange some wait for what a rank did in a step that is not known, and what follows the
        # last one is waited for in another.
        if self._steps:
            whole = self._steps - self._steps % self._cycle
            self._count(*self._since_first(), whole or self._steps)
        elif self._first is not None:
            parts = [self._part(*self._met, 1), self._part(self._sums, self._squares, 1)]
            self._parts += [min(part for part in parts if part is not None)] if parts[1] is not None else []
        self._first, self._steps = None, 0
        self._sums, self._squares = self._zero, 0.0

    def _since_first(self) -> tuple[Sequence[float], float]:
        assert self._first is not None
        (now, squares), (before, squares_before) = self._met, self._first
        return list(map(sub, now, before)), squares - squares_before

    def _count(self, sums: Sequence[float], squares: float, steps: int) -> None:
        part = self._part(sums, squares, steps)
        self._parts += [] if part is None else [part]

    def _part(self, sums: Sequence[float], squares: float, steps: int) -> float | None:
        """Return how far sums are apart, 0 to 1; None where nothing differs."""
        least_s = LEAST_S if self._steps else self._clear_s
        if squares <= len(sums) * least_s**2 * steps:
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
