"""Intervals that hold the true value with 95 % confidence, whatever the noise of a shared machine looks like."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

RESAMPLES = 2000


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


def median(differences: Sequence[float]) -> Estimate:
    """The median of one difference a round, by a sign test."""
    ordered = sorted(differences)
    rank = max(0, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))  # 1.96 standard deviations of a fair coin
    return Estimate(statistics.median(ordered), ordered[rank], ordered[-1 - rank])


def mean(differences: Sequence[float]) -> Estimate:
    """The mean of one difference a round, by bootstrap over the rounds."""
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    return Estimate(statistics.fmean(differences), means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1])
