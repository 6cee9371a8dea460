"""How much a number of one run would differ if the run were made again, from how much it differs within the run.

The method of batch means (Law and Kelton, Simulation Modeling and Analysis, chapter 9.5): steps that follow each
other resemble each other. So single steps would make a run look more certain than it is. A run is cut into up to
`BLOCKS` consecutive blocks, and the number is taken in each. The standard error of the run's number is the standard
deviation of the blocks' numbers, divided by the square root of how many there are.

It knows what varies within a run and nothing of what differs between runs, days or machines: see `ALIKE_PCT`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...records import LedgerRecord

BLOCKS = 20
"""Most blocks: the usual advice is 10 to 30, long enough to be independent and enough to know their spread."""

MIN_BLOCKS = 5
"""Below this many blocks their spread is not known well enough to say anything."""

MIN_BLOCK_STEPS = 5
"""Fewest steps of a block, so that its median is one."""

CONFIDENCE = 0.95

ALIKE_PCT = 5.0
"""One run each that differ by less are called alike: two runs of one program differ by up to 8 % in 8 of 10 cases
(`stallmeter.workers.gains.RUN_NOISE`, from benchmarks/faults), and from 5 % on a loss matters (`rules.weight`)."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Noise:
    """How certain a number of one run is, in the unit of the number."""

    standard_error: float
    blocks: int


def noise_of_steps(values: Sequence[float], number: Callable[[Sequence[float]], float]) -> Noise | None:
    """Return the noise of a number made from all steps; None when there are too few.

    Args:
        values: One value for each step, oldest first.
        number: How a block's number is made, for example `statistics.median`.
    """
    blocks = min(BLOCKS, len(values) // MIN_BLOCK_STEPS)
    if blocks < MIN_BLOCKS:
        return None
    cuts = [i * len(values) // blocks for i in range(blocks + 1)]
    return _noise([number(values[a:b]) for a, b in pairwise(cuts)])


def noise_of_rate(readings: Sequence[LedgerRecord], count: Callable[[LedgerRecord], int | None]) -> Noise | None:
    """Return the noise of a rate over the training time, with everything that happened in it; None with few readings.

    Args:
        readings: The ledger in the course of the run, oldest first.
        count: What is counted, for example the steps so far.
    """
    points = [(r.wall_s - r.buckets.get("start", 0.0), n) for r in readings if r.steps and (n := count(r)) is not None]
    if not points:
        return None
    end_s = points[-1][0]
    # Cut where the readings allow it: a block that is a little longer than the others does no harm.
    blocks: list[tuple[float, int]] = [points[0]]
    least_s = (end_s - points[0][0]) / BLOCKS
    for time_s, n in points[1:]:
        if time_s - blocks[-1][0] >= least_s > 0:
            blocks.append((time_s, n))
    rates = [(m - n) / (t - s) for (s, n), (t, m) in pairwise(blocks)]
    return _noise(rates) if len(rates) >= MIN_BLOCKS else None


def interval_of_difference(
    before: float, noise_before: Noise | None, after: float, noise_after: Noise | None
) -> Interval | None:
    """Return between which values ``after - before`` lies with 95 % confidence; None when a noise is not known.

    Welch's interval: the standard errors add as squares, and Student's t has the Welch-Satterthwaite number of degrees
    of freedom (B. L. Welch, Biometrika 34, 1947).
    """
    if noise_before is None or noise_after is None:
        return None
    squares = [(noise.standard_error**2, noise.blocks - 1) for noise in (noise_before, noise_after)]
    variance = sum(square for square, _ in squares)
    difference = after - before
    if not variance > 0:
        return difference, difference
    freedom = 1.0 / sum((square / variance) ** 2 / df for square, df in squares)
    half = student_t(freedom) * math.sqrt(variance)
    return difference - half, difference + half


def student_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t; off by less than 1 % from 4 degrees of freedom on.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _noise(numbers: Sequence[float]) -> Noise:
    return Noise(statistics.stdev(numbers) / math.sqrt(len(numbers)), len(numbers))
