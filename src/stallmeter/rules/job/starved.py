"""Ranks whose loader is too slow, though they do not wait for it.

Who waits for another rank has its next batch ready: its loader had all that time. Where two loaders are as slow, one
rank seems to wait for data and the other for that rank, and were the first one cured, the second would be next.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ranks.job import SUPPLY, Job

SHORT = 1.1
"""A loader is too slow whose batches come this much farther apart than the rank's own steps without any wait."""

AS_SLOW = 0.8
"""It is as slow as the late rank's where its batches come no closer than this part of that rank's own steps."""

_WAITS = ("data_wait", "worker_startup")


def starved(job: Job) -> frozenset[int]:
    """Return the ranks whose loader would not keep up with their own steps, if these waited for nobody."""
    if job.merged is None:
        return frozenset()
    found = set()
    for view in job.ranks:
        supply_s, own_s = view.facts.get(SUPPLY), job.merged.own_s.get(view.rank)
        if supply_s is None or not own_s:
            continue
        needed_s = sum(seconds for bucket, seconds in own_s.items() if bucket not in _WAITS)
        if supply_s > SHORT * needed_s:
            found.add(view.rank)
    return frozenset(found)


def as_slow(job: Job, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return other ranks that would be late with their data, were these not.

    Args:
        job: The job.
        ranks: Who is late with its data.
    """
    if job.merged is None:
        return ()
    pace_s = max((sum(job.merged.own_s.get(rank, {}).values()) for rank in ranks), default=0.0)
    hidden = starved(job) - set(ranks)
    return tuple(
        view.rank for view in job.ranks if view.rank in hidden and view.facts.get(SUPPLY, 0.0) >= AS_SLOW * pace_s
    )
