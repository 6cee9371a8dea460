"""When each rank began a step, by one clock, where the ranks have one."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence

from .steps import PHASES, RankSteps, tail_of

TIGHT = 0.1
"""Clocks differ by a constant when what is read of it varies by less than this part of it."""

TICK_S = 1e-3
"""To which a recording rounds Unix times."""

READ_S = 2e-3
"""What is read of one clock on two ranks may differ by so much."""

MANY = 512
"""Steps that are looked at for it, evenly over the run."""


def starts_s(ranks: Sequence[RankSteps]) -> list[list[float]] | None:
    """Return when each rank began each step, by the clock of the first; by rank, then by position.

    Ranks of one host have one clock. Of ranks of several hosts all ends of steps are apart by the same, beyond what
    follows the exchange, and that is taken off. Where that is so on one host its name may be another's, too, or one
    rank numbers its steps differently, unless the ranks meet once more behind the exchange.

    Args:
        ranks: The same steps of each.

    Returns:
        None where the clocks differ by an amount that nobody knows, or do not seem to be one.
    """
    first = ranks[0]
    typical_s = _typical_s(first)
    found = []
    for rank in ranks:
        offset_s, is_one_amount = (0.0, True) if rank is first else ahead_s(rank, first)
        one_host = bool(rank.host) and rank.host == first.host
        if not is_one_amount and not one_host:
            return None
        # Less than a step is lateness on one host: its ranks may meet after the head of a step, in the optimizer.
        late = abs(offset_s) < typical_s or _is_one_clock(rank, first, offset_s)
        if one_host and (not is_one_amount or late):
            offset_s = 0.0
        found.append([end - offset_s - sum(parts) for end, parts in zip(rank.ends_s, _by_step(rank), strict=True)])
    return found


def _is_one_clock(rank: RankSteps, first: RankSteps, offset_s: float) -> bool:
    """Whether two ranks of one host's name read one clock: somewhere in the tail of a step they are together.

    Else these are two hosts of one name, or one rank numbers its steps differently.
    """
    seen = (offset_s, *(ahead_s(rank, first, without)[0] for without in _met_later(rank, first)))
    return any(abs(each) <= READ_S for each in seen)


def _met_later(rank: RankSteps, first: RankSteps) -> Iterator[Collection[str]]:
    """Yield what to leave out of the tail of a step where ranks meet once more in it: all up to there."""
    tail = [name for name in PHASES[PHASES.index("optimizer") :] if name in rank.seconds or name in first.seconds]
    yield from (tail[: count + 1] for count in range(len(tail)))


def _typical_s(rank: RankSteps) -> float:
    return statistics.median(map(sum, _by_step(rank))) if len(rank) else 0.0


def _by_step(rank: RankSteps) -> Sequence[Sequence[float]]:
    return list(zip(*rank.seconds.values(), strict=True)) or [()] * len(rank)


def ahead_s(rank: RankSteps, first: RankSteps, without: Collection[str] = ()) -> tuple[float, bool]:
    """Return by how much a rank's clock seems to be ahead of another's, and whether that is one amount.

    All leave an exchange together: what is apart there beyond what each does until its step ends is the clocks'.

    Args:
        rank: The same steps as the other's.
        first: The other.
        without: Buckets behind the exchange in which they may have met once more.
    """
    mine, theirs = tail_of(rank, without), tail_of(first, without)
    places = range(0, len(rank), max(1, len(rank) // MANY))
    apart = [rank.ends_s[at] - mine[at] - first.ends_s[at] + theirs[at] for at in places]
    if not apart:
        return 0.0, False
    offset_s = statistics.median(apart)
    varies_s = statistics.median(abs(each - offset_s) for each in apart)
    return offset_s, varies_s <= max(TICK_S, TIGHT * abs(offset_s))
