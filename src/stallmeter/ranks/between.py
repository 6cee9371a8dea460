"""What a rank does between two epochs: that time belongs to no step, and only the ledger says what it was spent in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from ..records import LedgerRecord
from .steps import RankSteps

BETWEEN = "between epochs"
"""Where the walk books that time as far as it has no name: as a bucket of its own, which the ledger does not have."""

NAMED = ("callbacks", "logging", "checkpoint", "validation")
"""Buckets that have a name there, in the order in which a rank comes through them; all else is `BETWEEN`."""

SAMPLED = 0.1
"""Steps that were kept tell what all of them spent in a bucket to within this part of it; our choice."""


def gaps_s(steps: RankSteps) -> Mapping[int, float]:
    """Return the seconds before the first step of each epoch but the first, by its position.

    Only where the step before it was kept, too.
    """
    index = steps.index
    found = {}
    for begin in steps.starts:
        at = bisect_left(index, begin)
        if 0 < at < len(index) and index[at] == begin == index[at - 1] + 1:
            inside_s = sum(values[at] for values in steps.seconds.values())
            found[at] = max(0.0, steps.ends_s[at] - steps.ends_s[at - 1] - inside_s)
    return found


def tail_s(steps: RankSteps, ledger: LedgerRecord | None) -> float:
    """Return the seconds from the last step to the ledger's reading; 0 where that step was not kept.

    Args:
        steps: Of a rank whose run has ended.
        ledger: Its last one.
    """
    if ledger is None or not len(steps) or steps.index[-1] != ledger.steps - 1:
        return 0.0
    return max(0.0, ledger.time_s - steps.ends_s[-1])


def shares_between(steps: RankSteps, ledger: LedgerRecord | None) -> Mapping[str, float]:
    """Return the share (0 to 1) of a rank's time between epochs by bucket, of those that have a name.

    It is what the ledger has of them beyond the steps. What follows the last epoch is one of these times, where it is
    known. Empty where nothing is known.
    """
    gaps = list(gaps_s(steps).values())
    if ledger is None or sum(gaps) + steps.tail_s <= 0:
        return {}
    between_s = steps.tail_s + (sum(gaps) / len(gaps) * max(len(gaps), ledger.epochs - 1) if gaps else 0.0)
    scale = max(1.0, ledger.steps / len(steps))
    found: dict[str, float] = {}
    for name in NAMED:
        in_steps_s = scale * sum(steps.seconds.get(name, ()))
        beyond_s = ledger.buckets.get(name, 0.0) - in_steps_s
        if beyond_s > SAMPLED * in_steps_s:
            found[name] = beyond_s / between_s
    whole = max(1.0, sum(found.values()))
    return {name: share / whole for name, share in found.items()}
