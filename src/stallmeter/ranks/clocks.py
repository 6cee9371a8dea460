"""When each rank began a step, by one clock, where the ranks have one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .steps import RankSteps, tail_of

TIGHT = 0.1
"""Clocks differ by a constant when what is read of it varies by less than this part of it."""

TICK_S = 1e-3
"""To which a recording rounds Unix times."""

MANY = 512
"""Steps that are looked at for it, evenly over the run."""


def starts_s(ranks: Sequence[RankSteps]) -> list[list[float]] | None:
    """Return when each rank began each step, by the clock of the first; by rank, then by position.

    Ranks of one host have one clock. Names of hosts need not be unique, and one rank may number its steps differently:
    then all ends of steps are apart by the same, beyond what follows the exchange, and that is taken off. For ranks of
    several hosts the same tells how far their clocks are apart.

    Args:
        ranks: The same steps of each.

    Returns:
        None where the clocks differ by an amount that nobody knows.
    """
    first = ranks[0]
    found = []
    for rank in ranks:
        offset_s, is_one_amount = (0.0, True) if rank is first else ahead_s(rank, first)
        if not is_one_amount:
            if not rank.host or rank.host != first.host:
                return None
            offset_s = 0.0
        found.append([end - offset_s - sum(parts) for end, parts in zip(rank.ends_s, _by_step(rank), strict=True)])
    return found


def _by_step(rank: RankSteps) -> Sequence[Sequence[float]]:
    return list(zip(*rank.seconds.values(), strict=True)) or [()] * len(rank)


def ahead_s(rank: RankSteps, first: RankSteps) -> tuple[float, bool]:
    """Return by how much a rank's clock seems to be ahead of another's, and whether that is one amount.

    All leave an exchange together: what is apart there beyond what each does until its step ends is the clocks'.

    Args:
        rank: The same steps as the other's.
        first: The other.
    """
    mine, theirs = tail_of(rank), tail_of(first)
    places = range(0, len(rank), max(1, len(rank) // MANY))
    apart = [rank.ends_s[at] - mine[at] - first.ends_s[at] + theirs[at] for at in places]
    if not apart:
        return 0.0, False
    offset_s = statistics.median(apart)
    varies_s = statistics.median(abs(each - offset_s) for each in apart)
    return offset_s, varies_s <= max(TICK_S, TIGHT * abs(offset_s))
