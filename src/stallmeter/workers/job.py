"""One number of workers for all ranks of a job, from what each rank's own measurements advise.

Programs give every rank the same arguments, so one number is what can be changed. CPUs need no look at the others here:
each rank's advice knows what the others of its node use (`available_cpus`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..records.diagnosis import WorkerAdvice

NEARLY_ALL = 0.9
"""Of the ranks that would have more workers, so many get enough: one too few costs time, one too many memory. The
highest of many numbers is noise."""


def advise_job(advices: Mapping[int, WorkerAdvice], late: Sequence[int] = ()) -> WorkerAdvice | None:
    """Return what is advised for all ranks; None where the ranks that matter have no advice.

    Args:
        advices: Of each rank alone.
        late: Ranks that the others wait for because of their data; empty where there is none. What the others advise
            says nothing then: their steps are as long as their waits.
    """
    asked = {rank: advices[rank] for rank in late if rank in advices} if late else dict(advices)
    if not asked:
        return None
    current = Counter(advice.current for _, advice in sorted(asked.items())).most_common(1)[0][0]
    asked = {rank: advice for rank, advice in asked.items() if advice.current == current}
    chosen = _chosen(list(asked.values()), alone=not late)
    if not chosen.reason:  # ranks of large jobs send none
        chosen = replace(chosen, reason="the ranks that matter advise it")
    if late:
        rank = min(asked, key=lambda rank: (asked[rank].recommended != chosen.recommended, rank))
        chosen = replace(chosen, reason=f"rank {rank} sets the pace: {chosen.reason}")
    return _fitting(chosen, {rank: advice for rank, advice in advices.items() if advice.current == current})


def _chosen(asked: Sequence[WorkerAdvice], *, alone: bool) -> WorkerAdvice:
    """Return the advice that holds for all: more where half of those asked would have more."""
    more = sorted((a for a in asked if a.recommended > a.current), key=lambda a: a.recommended)
    fewer = [a for a in asked if a.recommended < a.current and not a.saves_processes]
    saving = [a for a in asked if a.recommended < a.current and a.saves_processes]
    if more and 2 * len(more) >= len(asked):
        return more[math.ceil(NEARLY_ALL * len(more)) - 1]
    if fewer and not more and 2 * len(fewer + saving) >= len(asked):
        return max(fewer + saving, key=lambda a: a.recommended)
    if len(saving) == len(asked) and alone:
        return max(saving, key=lambda a: a.recommended)
    staying = [a for a in asked if a.recommended == a.current]
    return staying[0] if staying else _staying(asked[0], "the ranks do not agree on another number")


def _staying(advice: WorkerAdvice, reason: str) -> WorkerAdvice:
    return replace(
        advice,
        recommended=advice.current,
        predicted_step_time_s=None,
        predicted_gain_pct=0.0,
        reason=reason,
        prefetch_factor=None,
        prefetch_gain_pct=None,
        saves_processes=None,
        saves_bytes=None,
        torch_threads=None,
    )


def _fitting(advice: WorkerAdvice, known: Mapping[int, WorkerAdvice]) -> WorkerAdvice:
    """Return the advice with a number that every rank has room for, since every rank gets it."""
    if advice.recommended <= advice.current:
        return advice
    would = f"{advice.recommended} would help"
    most = {rank: one.most for rank, one in known.items() if one.most is not None}
    tightest = min(most, key=lambda rank: (most[rank], rank), default=None)
    if tightest is None or most[tightest] >= advice.recommended:
        return advice
    if most[tightest] <= advice.current:
        reason = f"{would}, but rank {tightest} has no room for more"
        return replace(_staying(advice, reason), limited_by="memory")
    return replace(
        advice,
        recommended=most[tightest],
        predicted_step_time_s=None,
        predicted_gain_pct=None,
        limited_by="memory",
        reason=f"rank {tightest} has room for {most[tightest]}, {would}. {advice.reason}",
        prefetch_factor=None,
        prefetch_gain_pct=None,
    )
