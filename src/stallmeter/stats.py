"""Description and thinning of series, without a thought of what they measure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
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
    max: float


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
        p95=ordered[min(n - 1, int(0.95 * n))],
        max=ordered[-1],
    )


class Sample(Generic[T]):
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

    def __copy__(self) -> Sample[T]:
        twin: Sample[T] = Sample(self._size)
        twin._seen, twin.stride, twin.items = self._seen, self.stride, self.items[:]
        return twin
