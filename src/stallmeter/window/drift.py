"""Whether steps get slower over the run, and where the time goes that is added."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from ..records import LedgerRecord, StepRecord

PARTS = (
    "data_wait", "h2d", "forward", "backward", "optimizer", "callbacks", "logging", "checkpoint", "loop", "compute",
    "other",
)  # fmt: skip
"""Buckets of a step that may grow; validation is no part of the step time."""

BLOCKS = 24
"""The steps are cut into so many blocks of consecutive ones: all pairs of blocks are compared."""

MIN_BLOCKS = 12
MIN_BLOCK_STEPS = 5

MIN_READINGS = 4
"""Below this many readings of the ledger no callback is named."""

SURE = 3.0
"""Standard deviations by which blocks must be in order (Mann-Kendall): one run in 700 without any trend has that."""

STEP_LIKE = 0.9
"""A line must leave less than this share of what a single step up leaves, or the change came at once."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Steps that get slower, by blocks of consecutive ones."""

    bucket: str
    """The one that grew most."""
    bucket_share: float
    """Its share (0 to 1) of the growth."""
    early_s: float
    """Time of a step in the first eighth of the run."""
    late_s: float
    """The same in the last eighth."""
    name: str | None
    """Of the callback or logger that made most of it; None where that is not known."""
    bucket_early_s: float
    bucket_late_s: float
    excess_s: float
    """Seconds that a step took beyond the early level, averaged over all steps."""


def find_drift(steps: Sequence[StepRecord], readings: Sequence[LedgerRecord] = ()) -> Drift | None:
    """Return by how much steps grew; None when they did not, or too few are known.

    Grown means: the blocks rise all through the run and beyond chance, to its end, and a straight line
    describes it better than one step from low to high, which a neighbour or another phase of the program makes.

    Args:
        steps: Steady ones, oldest first.
        readings: Of the ledger, oldest first: they tell which callback or logger it was.
    """
    count = min(BLOCKS, len(steps) // MIN_BLOCK_STEPS)
    if count < MIN_BLOCKS:
        return None
    cuts = [i * len(steps) // count for i in range(count + 1)]
    blocks = [steps[a:b] for a, b in pairwise(cuts)]
    return _find(blocks, readings, _trimmed) or _find(blocks, readings, statistics.fmean)


def _find(
    blocks: Sequence[Sequence[StepRecord]],
    readings: Sequence[LedgerRecord],
    typical: Callable[[Sequence[float]], float],
) -> Drift | None:
    total = [typical([s.step_time_s for s in block]) for block in blocks]
    if not _rises(total):
        return None
    series = {part: [typical([getattr(s, f"{part}_s") or 0.0 for s in block]) for block in blocks] for part in PARTS}
    grown = {part: _growth(values) for part, values in series.items()}
    rising = sum(max(0.0, late - early) for early, late in grown.values())
    bucket = max(grown, key=lambda part: grown[part][1] - grown[part][0])
    if rising <= 0 or not _rises(series[bucket]):
        return None
    (level, end), (early, late) = _growth(total), grown[bucket]
    return Drift(
        bucket=bucket,
        bucket_share=(late - early) / rising,
        name=_name_of(bucket, readings, late - early),
        early_s=level,
        late_s=end,
        bucket_early_s=early,
        bucket_late_s=late,
        excess_s=statistics.fmean(max(0.0, value - level) for value in total),
    )


def _trimmed(values: Sequence[float]) -> float:
    """Mean without the highest tenth: one stall must not make a block. What works in each tenth step needs the mean."""
    ordered = sorted(values)
    return statistics.fmean(ordered[: len(ordered) - (len(ordered) + 4) // 10])


def _name_of(bucket: str, readings: Sequence[LedgerRecord], growth_s: float) -> str | None:
    """Return which callback or logger made most of the growth, in seconds a step."""
    if bucket not in ("callbacks", "logging") or len(readings) < MIN_READINGS:
        return None
    third = len(readings) // 3
    early, late = _per_step(bucket, *readings[: third + 1 : third]), _per_step(bucket, *readings[-1 - third :: third])
    by_name = {name: seconds - early.get(name, 0.0) for name, seconds in late.items()}
    name = max(by_name, key=lambda known: by_name[known], default=None)
    return name if name is not None and by_name[name] >= 0.4 * growth_s else None


def _per_step(bucket: str, before: LedgerRecord, after: LedgerRecord) -> dict[str, float]:
    now, then = getattr(after, bucket), getattr(before, bucket)
    steps = max(1, after.steps - before.steps)
    return {name: (seconds - then.get(name, 0.0)) / steps for name, seconds in now.items()}


def _growth(series: Sequence[float]) -> tuple[float, float]:
    """Return the levels of the first and the last eighth."""
    eighth = max(2, len(series) // 8)
    return statistics.median(series[:eighth]), statistics.median(series[-eighth:])


def _rises(series: Sequence[float]) -> bool:
    n = len(series)
    pairs = list(combinations(range(n), 2))
    order = sum((series[j] > series[i]) - (series[j] < series[i]) for i, j in pairs)
    if order / math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0) < SURE:
        return False
    # Each third must be above the one before it, and the last one no lower than half-way up from there.
    low, middle, high = (statistics.median(series[i * n // 3 : (i + 1) * n // 3]) for i in range(3))
    if not low < middle < high:
        return False
    slope = statistics.median((series[j] - series[i]) / (j - i) for i, j in pairs)
    start = statistics.median(value - slope * i for i, value in enumerate(series))
    line = sum(abs(value - start - slope * i) for i, value in enumerate(series))
    return slope > 0 and line < STEP_LIKE * min(_around_step(series, at) for at in range(2, n - 1))


def _around_step(series: Sequence[float], at: int) -> float:
    """Return the absolute deviations from one level before and another after."""
    return sum(
        abs(value - level)
        for part in (series[:at], series[at:])
        for level in (statistics.median(part),)
        for value in part
    )
