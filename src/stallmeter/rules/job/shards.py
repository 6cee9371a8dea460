"""Ranks that take more steps than the others, which stand, or are gone, until they have come to the end."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from ...ranks.job import Job

MORE = 1.05
"""Times as many steps as the mean from which on shards are uneven: a few more are a sampler's rounding; our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenShards:
    """Whose share of the data is longer."""

    ranks: tuple[int, ...]
    """Who has more than the mean."""
    most: int
    """Steps of the longest."""
    usual: float
    """Steps of the others, median."""
    alone_s: float
    """From the last step of the others to that of the longest."""
    saved_s: float
    """Of that, what the job would not take if all had the mean."""


def uneven_shards(job: Job) -> UnevenShards | None:
    """Return which ranks have longer shards; None where none has, where a rank was cut short, or is not known."""
    steps = {view.rank: view.ledger.steps for view in job.ranks if view.ledger is not None}
    if len(steps) < 2 or len(steps) < len(job.ranks) or job.missing or any(view.is_cut_short for view in job.ranks):
        return None
    most, mean = max(steps.values()), statistics.fmean(steps.values())
    ranks = tuple(rank for rank, count in sorted(steps.items()) if count > MORE * mean)
    others = [view for view in job.ranks if view.rank not in ranks]
    if not ranks or not others or not all(len(view.steps) for view in job.ranks):
        return None
    if len({view.steps.index[0] for view in job.ranks}) > 1:
        return None
    usual = statistics.median(steps[view.rank] for view in others)
    # From the same step on, each by its own clock: those of two hosts differ by what nobody knows.
    took_s = {view.rank: view.steps.ends_s[-1] - view.steps.ends_s[0] for view in job.ranks}
    alone_s = max(took_s[rank] for rank in ranks) - statistics.median(took_s[view.rank] for view in others)
    if alone_s <= 0 or not math.isfinite(alone_s):
        return None
    return UnevenShards(
        ranks=ranks,
        most=most,
        usual=usual,
        alone_s=alone_s,
        saved_s=min(alone_s, job.training_s) * (most - mean) / (most - usual),
    )
