"""Description and thinning of series, without a thought of what they measure."""

from __future__ import annotations

import math
import operator
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stats:
    """Robust description of a series, in the unit of its values."""

    count: int
    mean: float
    trimmed_mean: float
    """Mean without the lowest and highest tenth."""
    median: float
    p95: float
    """See `percentile`."""
    max: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of sorted values lies, between two of them by linear interpolation.

    The most usual definition, number 7 of Hyndman and Fan and the default of numpy and R: 19.05 for 95 % of 1 to 20.

    Args:
        ordered: Values from low to high, at least one.
        share: 0 to 1.
    """
    at = share * (len(ordered) - 1)
    below = ordered[math.floor(at)]
    above = ordered[math.ceil(at)]
    return min(above, below + (above - below) * (at % 1))


def deviation(values: Iterable[float], about: float) -> float:
    """Return the standard deviation by the median absolute one, which a few large values do not widen.

    Args:
        values: At least one.
        about: Their middle.
    """
    # Of a normal distribution they differ by that.
    return 1.4826 * statistics.median(abs(value - about) for value in values)


def weighted_sum(values: Sequence[float], weights: Sequence[int]) -> float:
    """Return the sum of values, each as often as its weight says."""
    return float(sum(map(operator.mul, values, weights)))


def weighted_percentile(values: Sequence[float], weights: Sequence[int], share: float) -> float:
    """Return the `percentile` of values of which each stands there as often as its weight says.

    Args:
        values: At least one.
        weights: How often each is there; 1 or more.
        share: 0 to 1.
    """
    ordered = sorted(zip(values, weights, strict=True))
    ends = list(accumulate(weight for _, weight in ordered))
    at = share * (ends[-1] - 1)
    below, above = (ordered[bisect_right(ends, rank)][0] for rank in (math.floor(at), math.ceil(at)))
    return min(above, below + (above - below) * (at % 1))


def stats(values: Iterable[float]) -> Stats | None:
    """Describe a series; None when it is empty."""
    ordered = sorted(values)
    if not ordered:
        return None
    n = len(ordered)
    cut = n // 10
    kept = ordered[cut : n - cut]
    return Stats(
        count=n,
        mean=sum(ordered) / n,
        trimmed_mean=sum(kept) / len(kept),
        median=statistics.median(ordered),
        p95=percentile(ordered, 0.95),
        max=ordered[-1],
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Return the arithmetic mean of what was measured; None when nothing was."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of what was measured; None when nothing was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def percent(part: float | None, whole: float | None) -> float | None:
    """Return a share in percent; None where one of the two was not measured, or there is no whole."""
    return None if part is None or not whole else 100.0 * part / whole


def scaled(value: float | None, unit: float) -> float | None:
    """Return a value in another unit, for example 1e6 for bytes in MB; None where it was not measured."""
    return None if value is None else value / unit


class Reservoir(Generic[T]):
    """At most ``size`` items spread evenly over everything that was added: every 2^k-th one is kept."""

    __slots__ = ("_seen", "_size", "items", "stride")

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen = 0
        self.stride = 1
        self.items: list[T] = []

    def add(self, item: T) -> None:
        """Offer an item."""
        if self._seen % self.stride == 0:
            self.items.append(item)
            if len(self.items) > self._size:
                self.items = self.items[::2]
                self.stride *= 2
        self._seen += 1

    def __len__(self) -> int:
        return self._seen

    def __deepcopy__(self, copied: dict[int, object]) -> Reservoir[T]:
        """Return a copy that shares the items: they are never changed."""
        twin: Reservoir[T] = Reservoir(self._size)
        twin._seen, twin.stride, twin.items = self._seen, self.stride, self.items[:]
        return twin
