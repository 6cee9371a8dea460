"""Whether a series rises, for good or for a while."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Protocol, TypeVar

from ..records.stats import deviation

MIN_TREND_SAMPLES = 7
"""With fewer even a rise without a single step back may be chance: Mann and Kendall's test reaches `SURE` from here."""

MIN_TREND_S = 4.0
"""However many samples: what rises for a shorter time is the start of something, not a trend."""

SURE = 3.0
"""Standard deviations of Mann and Kendall's statistic by which a rise must exceed chance: 1 in 700 by itself."""

TREND_POINTS = 48
"""Longer series are cut into so many stretches of equal time: all pairs of points are compared."""

STEADY = 2 / 3
"""A leak takes as much in each step. What is slower in the second half by more than this slows down: a cache, say."""


FIFTHS = 5
"""Parts of a series that are compared with each other; the last of them tells whether it still rises."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Robust straight line through a series, in the unit of its values."""

    start: float
    """Value of the line at its beginning."""
    growth: float
    """Rise of the line from its beginning to its end."""
    per_s: float
    """Rise per second."""
    recent_per_s: float
    """The same over the second half."""
    noise: float
    """Spread of the values around the line (scaled median absolute deviation: 1 sigma if they are normal)."""
    last_per_s: float
    """Rise per second over the last fifth, 3 points at the least."""
    is_even: bool
    """Whether each fifth is above the one before by a third of the mean pace at least: no wandering, no few jumps."""
    z: float
    """Mann and Kendall's statistic: by how many standard deviations more pairs rise than fall than by chance."""
    began_s: float
    """Unix time at which the line begins."""

    @property
    def is_sure(self) -> bool:
        """Whether so many pairs of points rise that chance does not explain it, and in every part of the time.

        Memory that wanders passes the first test often, because each reading depends on the one before it.
        """
        return self.z >= SURE and self.is_even

    @property
    def lasts(self) -> bool:
        """Whether it still rises at the end, at nearly the pace of the whole: no cache that has filled up."""
        return (
            self.per_s > 0 and self.recent_per_s >= STEADY * self.per_s and self.last_per_s >= STEADY / 2 * self.per_s
        )


class Timed(Protocol):
    """What is known of a sample here."""

    @property
    def time_s(self) -> float:
        """Unix time."""
        ...


S = TypeVar("S", bound=Timed)


def trend_of(samples: Iterable[S], of: Callable[[S], float | None], *, since_s: float = float("-inf")) -> Trend | None:
    """Return the `trend` of something in samples, where it was measured.

    Args:
        samples: Oldest first.
        of: Returns it; None where it was not measured.
        since_s: Unix time from which on samples count.
    """
    return trend([(s.time_s, v) for s in samples if s.time_s >= since_s and (v := of(s)) is not None])


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Fit a Theil-Sen line, the median of all slopes between two points; None when there are too few.

    Args:
        points: Unix times and values, oldest first, at any intervals. The first quarter of the time is warm-up and left
            out.
    """
    if not points:
        return None
    kept = after_warm_up(points)
    began_s, ended_s = kept[0][0], kept[-1][0]
    if len(kept) < MIN_TREND_SAMPLES or ended_s - began_s < MIN_TREND_S:
        return None
    thin = _thinned(kept)
    if len(thin) < MIN_TREND_SAMPLES:  # many points at a few times, for long pauses lie between them
        return None
    late = thin[-max(3, math.ceil(len(thin) / FIFTHS)) :]
    per_s, recent, last = slope(thin), slope(thin[len(thin) // 2 :]), slope(late)
    if per_s is None or recent is None or last is None:
        return None
    start = statistics.median(v - per_s * (t - began_s) for t, v in thin)
    noise = deviation((v - start - per_s * (t - began_s) for t, v in thin), 0.0)
    return Trend(
        start=start,
        growth=per_s * (ended_s - began_s),
        per_s=per_s,
        recent_per_s=recent,
        noise=noise,
        last_per_s=last,
        is_even=_is_even(thin, per_s),
        z=_mann_kendall([v for _, v in thin]),
        began_s=began_s,
    )


def after_warm_up(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return points of times and values, oldest first, without the first quarter of the time."""
    return [point for point in points if point[0] >= points[0][0] + (points[-1][0] - points[0][0]) / 4]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return medians over stretches of equal time, where there are more points than can be compared."""
    if len(points) <= TREND_POINTS:
        return list(points)
    began_s, span_s = points[0][0], points[-1][0] - points[0][0]
    parts: dict[int, list[tuple[float, float]]] = {}
    for time_s, value in points:
        at = min(TREND_POINTS - 1, int((time_s - began_s) / span_s * TREND_POINTS))
        parts.setdefault(at, []).append((time_s, value))
    return [(statistics.median(t for t, _ in p), statistics.median(v for _, v in p)) for p in parts.values()]


def _is_even(points: Sequence[tuple[float, float]], per_s: float) -> bool:
    """Whether the points rise from each fifth of them to the next."""
    parts = [points[i * len(points) // FIFTHS : (i + 1) * len(points) // FIFTHS] for i in range(FIFTHS)]
    levels = [(statistics.median(t for t, _ in p), statistics.median(v for _, v in p)) for p in parts]
    return all(w - v >= STEADY / 2 * per_s * (u - t) for (t, v), (u, w) in pairwise(levels))


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the median of all slopes between two points of times and values; None when there are none."""
    slopes = [(w - v) / (u - t) for (t, v), (u, w) in combinations(points, 2) if u > t]
    return statistics.median(slopes) if slopes else None


def _mann_kendall(values: Sequence[float]) -> float:
    """Return the test's statistic with its corrections for ties and for being a whole number (Kendall, 1975)."""
    n = len(values)
    score = sum((w > v) - (w < v) for v, w in combinations(values, 2))
    tied = sum(k * (k - 1) * (2 * k + 5) for k in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - tied) / 18
    if variance <= 0 or score == 0:
        return 0.0
    return (score - math.copysign(1, score)) / math.sqrt(variance)
