"""Whether a series rises, for good or for a while."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

MIN_TREND_SAMPLES = 12
"""Below this many samples a slope is no trend."""

TREND_POINTS = 48
"""Longer series are cut into this many blocks: all pairs of points are compared."""


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

    @property
    def lasts(self) -> bool:
        """Whether it still rises at the end, at no less than half the pace: no cache that has filled up."""
        return self.per_s > 0 and self.recent_per_s >= 0.5 * self.per_s


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Fit a Theil-Sen line, the median of all slopes between two points; None when there are too few.

    Args:
        points: Unix times and values, oldest first. The first quarter is warm-up and left out.
    """
    kept = points[len(points) // 4 :]
    if len(kept) < MIN_TREND_SAMPLES:
        return None
    blocks = min(len(kept), TREND_POINTS)
    cuts = [i * len(kept) // blocks for i in range(blocks + 1)]
    parts = [kept[a:b] for a, b in pairwise(cuts)]
    thin = [(statistics.median(t for t, _ in part), statistics.median(v for _, v in part)) for part in parts]
    slope, recent = _slope(thin), _slope(thin[len(thin) // 2 :])
    if slope is None or recent is None:
        return None
    began_s, ended_s = kept[0][0], kept[-1][0]
    start = statistics.median(v - slope * (t - began_s) for t, v in thin)
    noise = 1.4826 * statistics.median(abs(v - start - slope * (t - began_s)) for t, v in thin)
    return Trend(start=start, growth=slope * (ended_s - began_s), per_s=slope, recent_per_s=recent, noise=noise)


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    slopes = [(w - v) / (u - t) for (t, v), (u, w) in combinations(points, 2) if u > t]
    return statistics.median(slopes) if slopes else None
