"""Who waits for whom: the steps of several ranks, walked through beside each other.

Ranks that train together meet in each step, in the exchange of gradients or wherever else one needs all others. Who
comes late makes all others wait there, and the ledger of those who wait shows a long backward pass, a long body of the
loop, whatever they wait in. No clock is needed to see it, and between hosts there is none. Walk all ranks through the
buckets of a step and add up what each has spent: their sums drift apart where one is slow, and come together again
where they meet::

    rank 0:  data  2  backward 38 | 40        after data:      rank 1 is 35 ms behind
    rank 1:  data 37  backward  3 | 40        after backward:  nobody is; 35 ms were waited

What one was behind when they met is the loss. It is the late rank's, and of its own bucket in which it fell behind.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from .clocks import starts_s
from .steps import RankSteps, before_exchange, common
from .together import MOST_ACCUMULATED, accumulation
from .walk import WARM_UP, Meeting, Walk

DRIFTS = 0.12
"""Ranks do not train together when their sums have drifted apart by more than this part of what chance would make."""


MOSTLY = 0.5
"""More than this part of what was waited."""

LEAST_EXCHANGE_S = 1e-4
"""Ranks that exchange anything spend more than this in it: one of gloo takes some tenths of a millisecond on a host."""

CALLED = frozenset({"callbacks", "logging", "checkpoint", "validation"})
"""What is called from anywhere in a step, and by one rank alone."""

ANYWHERE = frozenset({"logging"})
"""Of these what is called from within the pass over a batch as well."""

EXCHANGES = frozenset({"backward", "compute"})
"""Buckets in which gradients are exchanged, and in which a plain loop waits wherever else it does."""

LONG = 0.1
"""Part of the pass with the exchange from which on a call tells whether others wait for it; our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What the merge has found."""

    ranks: tuple[int, ...]
    steps: int
    """Steps that all ranks have."""
    first_index: int
    last_index: int
    by_update: bool = False
    """Whether an index is the number of a weight update, because ranks have taken batches of different number."""
    total_s: float
    """Time of these steps, and between epochs; of the longest rank."""
    loss_s: float
    """Of that, waited for late ranks."""
    unmet_s: float
    """By how much ranks were apart when nothing more was known of them; 0 where they train together."""
    lost_s: Mapping[tuple[int, str], float]
    """Loss by late rank and its bucket."""
    waited_s: Mapping[int, float]
    """By rank: how long it waited for others."""
    waited_in_s: Mapping[tuple[int, str], float]
    """The same by the bucket in which it waited."""
    shared_s: Mapping[str, float]
    """By bucket: what the usual rank of each step spends in it of its own; half of all ranks spend that or more."""
    meetings: tuple[Meeting, ...]
    typical_s: float
    """Median time of a step."""
    gaps: int = 0
    """Times between two epochs that lie between these steps, and after the last one."""
    gaps_s: float = 0.0
    """Seconds of these."""
    span_s: float
    """From the first of these steps to the end of the last one, or of the run, with what was not kept in between, and
    what was known before the first and is not here any more."""
    drift: float | None = None
    """How far the ranks' sums drift apart: 0 where all meet, about 1 where nobody does; None where none differ."""
    own_s: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Mean seconds of a step by rank and bucket, the waits for others taken off."""

    @property
    def is_together(self) -> bool:
        """Whether the ranks meet at all."""
        return bool(self.meetings) and (self.drift is None or self.drift <= DRIFTS)

    @property
    def scale(self) -> float:
        """Seconds of the run for one of these steps: of a long run a part of the steps is kept.

        What comes before the first and after the last one is no time of steps: nobody waited there as in these.
        """
        return max(1.0, self.span_s / self.total_s) if self.total_s else 1.0

    @property
    def loss_share(self) -> float:
        """Loss as a share (0 to 1) of the time of the steps."""
        return self.loss_s / self.total_s if self.total_s else 0.0

    def lost_by(self, rank: int) -> float:
        """Seconds lost to one rank."""
        return sum(s for (r, _), s in self.lost_s.items() if r == rank)


def merge(ranks: Sequence[RankSteps], every: int = 1) -> Merged | None:
    """Walk the ranks through the steps that all of them have.

    Args:
        ranks: Their steps.
        every: In each so-many-th step they meet, where something tells: see `steps_apart`.

    Returns:
        None with fewer than two ranks or without steps that all have.
    """
    aligned = common(ranks)
    if len(aligned) < 2 or len(aligned[0]) <= WARM_UP or not any(rank.seconds for rank in aligned):
        return None
    steps_of_update = accumulation(aligned[0])
    if not _is_by_update(aligned[0]):
        steps_of_update = max(steps_of_update, min(every, MOST_ACCUMULATED))
    starts = starts_s(aligned)
    phases = before_exchange(_waited_for_at_once(aligned))
    found = _result(aligned, _walked(aligned, starts, steps_of_update, phases))
    # Who waits for whom in a bucket tells the order: nobody waits in a logger for a rank that calls none. One that
    # seems to was in it before the exchange, for which the other stood in its backward pass.
    by_rank = {rank.rank: rank for rank in aligned}
    alone = [m for m in _in_steps(found) if m.met_in in ANYWHERE and not _took_part(by_rank[m.rank], m)]
    if _waited_s(alone) > MOSTLY * _waited_s(_in_steps(found)):
        other = _result(aligned, _walked(aligned, starts, steps_of_update, before_exchange(ANYWHERE)))
        exchanged = [m for m in _in_steps(other) if m.met_in in EXCHANGES]
        if _waited_s(exchanged) > MOSTLY * _waited_s(_in_steps(other)):
            return other
    return found


def _walked(
    ranks: Sequence[RankSteps],
    starts: Sequence[Sequence[float]] | None,
    steps_of_update: int,
    phases: Sequence[str],
) -> Walk:
    walk = Walk(ranks, starts, steps_of_update, phases)
    for at in range(WARM_UP, len(ranks[0])):
        walk.step(at)
    walk.end_of_run()
    return walk


def _waited_for_at_once(ranks: Sequence[RankSteps]) -> set[str]:
    """Return what one rank calls while the others wait within the same step: in a barrier after it, as a rule.

    In a plain loop that wait lies in the one bucket of the loop's body, and so seems to come before what it waits for.
    Where they wait in the next step, for its gradients, that one is longer than usual.
    """
    waits = [_summed([rank.seconds[name] for name in EXCHANGES if name in rank.seconds]) for rank in ranks]
    if not all(waits):
        return set()
    free_s = [sorted(own)[len(own) // 10] for own in waits]  # little was waited in these steps
    return {name for name in CALLED if _is_waited_for_at_once(ranks, name, waits, free_s)}


def _is_waited_for_at_once(
    ranks: Sequence[RankSteps], name: str, waits: Sequence[Sequence[float]], free_s: Sequence[float]
) -> bool:
    callers: defaultdict[int, list[int]] = defaultdict(list)
    least_s = LONG * max(free_s)
    for i, rank in enumerate(ranks):
        column = rank.seconds.get(name, ())
        # Hundreds of ranks have millions of numbers, and hardly any of them is large.
        for at in compress(range(len(column)), map(least_s.__lt__, column)):
            callers[at].append(i)
    spent_s = here_s = next_s = 0.0
    for at, (i, *others) in callers.items():
        if others:
            continue  # what several do takes each of them its time
        seconds = ranks[i].seconds[name][at]
        spent_s += seconds
        here_s += min(seconds, _longer_s(waits, free_s, at, i))
        next_s += min(seconds, _longer_s(waits, free_s, at + 1, i))
    # Steps of uneven length are now and then longer by chance, and the next ones as often.
    return here_s - next_s > MOSTLY * spent_s


def _longer_s(waits: Sequence[Sequence[float]], free_s: Sequence[float], at: int, caller: int) -> float:
    """Return how much longer than a free one the pass of the other ranks was in a step; 0 after the last one."""
    if at >= len(waits[caller]):
        return 0.0
    beyond_s = (own[at] - least_s for own, least_s in zip(waits, free_s, strict=True))
    return max(0.0, statistics.median_low(s for i, s in enumerate(beyond_s) if i != caller))


def _summed(columns: Sequence[Sequence[float]]) -> Sequence[float]:
    return columns[0] if len(columns) == 1 else [sum(row) for row in zip(*columns, strict=True)]


def _in_steps(merged: Merged) -> list[Meeting]:
    return [meeting for meeting in merged.meetings if not meeting.between]


def _waited_s(meetings: Sequence[Meeting]) -> float:
    return sum(meeting.loss_s for meeting in meetings)


def _took_part(rank: RankSteps, meeting: Meeting) -> bool:
    """Whether a rank did anything in the bucket in which another is said to have waited for it."""
    at = bisect_left(rank.index, meeting.index)
    return meeting.met_in in rank.seconds and rank.seconds[meeting.met_in][at] >= LEAST_EXCHANGE_S


def _result(ranks: Sequence[RankSteps], walk: Walk) -> Merged:
    ids = tuple(rank.rank for rank in ranks)
    drift = walk.drift.value
    together = drift is None or drift <= DRIFTS
    meetings = list(walk.meetings)
    lost = defaultdict(float, walk.lost)
    if together:
        # What ranks were behind where a row of steps ends was waited in the next one, which was not kept.
        meetings += walk.unmet
        for key, seconds in walk.lost_unmet.items():
            lost[key] += seconds
    total_s = max(walk.totals)
    found = _positive({(ids[i], name): s for (i, name), s in lost.items()}, total_s)
    count = max(1, len(ranks[0]) - WARM_UP)
    waited_in = {(ids[i], name): s for (i, name), s in walk.waited.items()}
    return Merged(
        ranks=ids,
        steps=len(ranks[0]),
        first_index=ranks[0].index[0],
        last_index=ranks[0].index[-1],
        by_update=_is_by_update(ranks[0]),
        total_s=total_s,
        loss_s=sum(found.values()),
        unmet_s=0.0 if together else walk.apart_s,
        lost_s=found,
        waited_s={rank: sum(s for (r, _), s in waited_in.items() if r == rank) for rank in ids},
        waited_in_s=waited_in,
        shared_s=dict(walk.shared),
        meetings=tuple(meetings),
        typical_s=walk.typical_s,
        gaps=walk.gaps,
        gaps_s=walk.gaps_s,
        span_s=max(rank.earlier_s + rank.ends_s[-1] + rank.tail_s - rank.ends_s[WARM_UP - 1] for rank in ranks),
        drift=drift,
        own_s={
            rank: {
                name: max(0.0, sum(rank_seconds[WARM_UP:]) - waited_in.get((rank, name), 0.0)) / count
                for name, rank_seconds in ranks[i].seconds.items()
            }
            for i, rank in enumerate(ids)
        },
    )


def _is_by_update(rank: RankSteps) -> bool:
    return list(rank.index) == list(rank.optimizer_step)


def _positive(signed: Mapping[tuple[int, str], float], total_s: float) -> dict[tuple[int, str], float]:
    """Return each rank's loss by the buckets in which it fell behind.

    In another bucket it may have been quicker than the others: by chance, or because its batch was ready when it came.
    """
    whole: defaultdict[int, float] = defaultdict(float)
    behind: defaultdict[int, float] = defaultdict(float)
    for (rank, _), seconds in signed.items():
        whole[rank] += seconds
        behind[rank] += max(0.0, seconds)
    lost_s = sum(seconds for seconds in whole.values() if seconds > 0)
    fits = min(1.0, total_s / lost_s) if lost_s else 0.0
    return {
        (rank, bucket): fits * seconds * whole[rank] / behind[rank]
        for (rank, bucket), seconds in signed.items()
        if seconds > 0 and whole[rank] > 0
    }
