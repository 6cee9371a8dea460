"""How long a step takes with fewer items than the others have: what of it depends on their number, and what not."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..records import StepRecord
from ..records.stats import Reservoir, deviation
from .epochs import own_s
from .memo import Memo

ALIKE = 0.9
"""Share of the steps that must have one size: where sizes change all the time, the items do as well."""

SMALLER = 0.75
"""Part of the usual items from which down a batch tells: the nearer to them, the more its noise weighs."""

MIN_STEPS = 20
MIN_SMALLER = 3
"""One of them may be slow for any reason."""

ERROR = 1.28 * 1.2533
"""Standard errors of a mean that make 8 of 10 medians' intervals."""

MANY = 8
"""Smaller ones from which on their spread is told by the median deviation, which a few slow steps do not widen."""


@dataclass(frozen=True, slots=True)
class Smaller:
    """Steps with fewer items beside those with as many as usual. Work is copy, forward, backward and optimizer."""

    items: int
    """In a batch, usually."""
    work_s: float
    """Of a step with as many, median."""
    fewer: int
    """Items of the smaller ones, median."""
    fewer_s: float
    """Their work, median."""
    count: int
    """Of the smaller ones."""
    fixed_s: float
    """What a step would take without items, on the straight line through both; at most ``work_s``."""
    error_s: float
    """Of that, in 8 of 10 runs."""


class Steps(Protocol):
    """What is asked of the steps here."""

    memo: Memo

    @property
    def steady(self) -> Sequence[StepRecord]:
        """A sample of steady steps, oldest first."""
        ...


class SizeSignals:
    """What smaller batches tell.

    Args:
        steps: Of any size.
        smaller: Those that had fewer items than the one before.
    """

    def __init__(self, steps: Steps, smaller: Reservoir[StepRecord]) -> None:
        self._steps, self._smaller = steps, smaller

    @property
    def smaller(self) -> Smaller | None:
        """Steps with fewer items beside the others.

        None with fewer than three that are small enough, where sizes are not known, or nearly all steps have not one.
        """
        return self._steps.memo("smaller", self._find)

    def _find(self) -> Smaller | None:
        sized = [(s.samples, s) for s in self._steps.steady if s.samples]
        if len(sized) < MIN_STEPS:
            return None
        times = Counter[int]()
        for size, step in sized:
            times[size] += step.every
        items, alike = times.most_common(1)[0]
        if alike < ALIKE * times.total():
            return None
        work_s = statistics.median(_work_s(step) for size, step in sized if size == items)
        fewer = [(s.samples, _work_s(s)) for s in self._smaller.items if s.samples and s.samples <= SMALLER * items]
        if len(fewer) < MIN_SMALLER or work_s <= 0:
            return None
        fixed = [(took_s * items - work_s * size) / (items - size) for size, took_s in fewer]
        return Smaller(
            items=items,
            work_s=work_s,
            fewer=round(statistics.median(size for size, _ in fewer)),
            fewer_s=statistics.median(took_s for _, took_s in fewer),
            count=len(fewer),
            fixed_s=min(work_s, max(0.0, statistics.median(fixed))),
            error_s=ERROR * _spread(fixed) / math.sqrt(len(fixed)),
        )


def _work_s(step: StepRecord) -> float:
    return own_s(step) + (step.optimizer_s or 0.0)


def _spread(values: Sequence[float]) -> float:
    if len(values) < MANY:
        return statistics.stdev(values)
    return deviation(values, statistics.median(values))
