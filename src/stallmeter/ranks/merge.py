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

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import add, sub

from .steps import PHASES, RankSteps, common

NEVER_MEET = frozenset({"data_wait", "worker_startup"})
"""Buckets in which no rank waits for another. A rank that came late finds its next batch ready and waits less for it:
it has not met anybody there. Copies to a device may wait for what it was given before, the exchange included."""

MEETS = 0.5
"""Ranks have met in a bucket when the latest is behind by less than this part of what it was."""

LEAST_S = 2e-4
"""Lateness below this is the clock's and the scheduler's: ranks on one idle host differ by so much in any bucket."""

LEAST_SHARE = 0.02
"""The same as a share of a median step."""

_HEAD = frozenset({"data_wait", "worker_startup", "h2d", "forward", "backward", "compute"})
"""Buckets from the beginning of a step to the exchange of gradients."""

WARM_UP = 1
"""First steps that are left out: ranks enter them after starts of different length."""


LOST_STEPS = 64
"""After so many steps apart without a meeting it is not known any more how far apart the ranks are. More than gradients
are accumulated over, as a rule."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """One time that the ranks came together after one was late."""

    index: int
    """Of the step."""
    rank: int
    """Who came last."""
    loss_s: float
    """How long the others waited for it, by the median of them."""
    bucket: str
    """Its own, in which it lost most of that."""
    met_in: str
    """The bucket of the others in which they waited."""


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
    """Time of these steps; of the longest rank in each."""
    loss_s: float
    """Of that, waited for late ranks."""
    unmet_s: float
    """By how much ranks were apart when nothing more was known of them: with no meetings it grows and grows."""
    lost_s: Mapping[tuple[int, str], float]
    """Loss by late rank and its bucket."""
    waited_s: Mapping[int, float]
    """By rank: how long it waited for others."""
    waited_in_s: Mapping[tuple[int, str], float]
    """The same by the bucket in which it waited."""
    shared_s: Mapping[str, float]
    """By bucket: what all ranks spend in it, however they differ."""
    meetings: tuple[Meeting, ...]
    typical_s: float
    """Median time of a step."""
    own_s: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Mean seconds of a step by rank and bucket, the waits for others taken off."""

    @property
    def is_together(self) -> bool:
        """Whether the ranks meet at all."""
        return bool(self.meetings) and self.loss_s >= self.unmet_s

    @property
    def loss_share(self) -> float:
        """Loss as a share (0 to 1) of the time of the steps."""
        return self.loss_s / self.total_s if self.total_s else 0.0

    def lost_by(self, rank: int) -> float:
        """Seconds lost to one rank."""
        return sum(s for (r, _), s in self.lost_s.items() if r == rank)

    def lost_in(self, bucket: str) -> float:
        """Seconds lost in one bucket, to whichever rank."""
        return sum(s for (_, b), s in self.lost_s.items() if b == bucket)


def merge(ranks: Sequence[RankSteps]) -> Merged | None:
    """Walk the ranks through the steps that all of them have.

    Returns:
        None with fewer than two ranks or without steps that all have.
    """
    aligned = common(ranks)
    if len(aligned) < 2 or len(aligned[0]) <= WARM_UP or not any(rank.seconds for rank in aligned):
        return None
    walk = _Walk(aligned)
    for at in range(WARM_UP, len(aligned[0])):
        walk.step(at)
    by_update = list(aligned[0].index) == list(aligned[0].optimizer_step)
    return replace(walk.result(), by_update=by_update)


class _Walk:
    def __init__(self, ranks: Sequence[RankSteps]) -> None:
        self._ids = tuple(rank.rank for rank in ranks)
        self._index = ranks[0].index
        count = len(self._index)
        self._phases = tuple(name for name in PHASES if any(name in rank.seconds for rank in ranks))
        # By bucket and rank, as they are: hundreds of ranks have millions of numbers.
        nothing = array("d", bytes(8 * count))
        self._columns = {name: [rank.seconds.get(name, nothing) for rank in ranks] for name in self._phases}
        self._totals, self._starts_s = self._times(ranks)
        self._typical_s = sorted(self._totals)[(count - 1) // 2]
        self._least_s = max(LEAST_S, LEAST_SHARE * self._typical_s)
        self._middle = (len(ranks) - 1) // 2
        self._behind = [0.0] * len(ranks)
        self._own = {name: [0.0] * len(ranks) for name in self._phases}
        self._known = False
        self._since_met = 0
        self._entered_s = 0.0
        self._lost: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._waited = [0.0] * len(ranks)
        self._waited_in: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._meetings: list[Meeting] = []
        self._unmet_s = 0.0

    def _times(self, ranks: Sequence[RankSteps]) -> tuple[array[float], list[array[float]] | None]:
        """Return the time of each step, of the longest rank in it, and when each rank began it, if one clock says so.

        Without one clock the beginnings are concluded from sums.
        """
        one_clock = bool(ranks[0].host) and len({rank.host for rank in ranks}) == 1
        longest: array[float] | None = None
        starts_s = []
        for i, rank in enumerate(ranks):
            own = array("d", map(sum, zip(*(self._columns[name][i] for name in self._phases), strict=True)))
            longest = own if longest is None else array("d", map(max, longest, own))
            if one_clock:
                starts_s.append(array("d", map(sub, rank.ends_s, own)))
        assert longest is not None
        return longest, starts_s if one_clock else None

    def step(self, at: int) -> None:
        follows = at > 0 and self._index[at] == self._index[at - 1] + 1
        if not follows or at == WARM_UP or self._since_met >= LOST_STEPS:
            self._count_unmet()
            self._begin(at, at - 1 if follows else at)
        if self._starts_s is not None:
            starts_s = [starts_s[at] for starts_s in self._starts_s]
            least_s = min(starts_s)
            self._behind = [start_s - least_s for start_s in starts_s]
        self._since_met += 1
        for name in self._phases:
            spent = [column[at] for column in self._columns[name]]
            if not any(spent):
                continue
            before = self._behind
            self._behind = list(map(add, before, spent))
            if name not in NEVER_MEET:
                late_s = self._spread(before)
                if late_s > self._least_s and self._spread(self._behind) <= MEETS * late_s:
                    self._meet(at, name, before, late_s - self._spread(self._behind), spent)
                    continue
            self._own[name] = list(map(add, self._own[name], spent))
        if self._known and self._spread(self._behind) <= self._least_s:
            self._since_met = 0

    def _begin(self, at: int, before: int) -> None:
        """Nothing is known of how far apart the ranks are: as far as the tail of a step leaves them, which is usual.

        Args:
            at: The step that begins.
            before: The step whose tail is taken: the one before, or, when that is not kept, this one itself.
        """
        self._since_met = 0
        tail = self._phases[max((i for i, name in enumerate(self._phases) if name in _HEAD), default=-1) + 1 :]
        behind = [sum(self._columns[name][rank][before] for name in tail) for rank in range(len(self._ids))]
        self._restart(behind)
        self._entered_s = self._spread(behind)
        if self._entered_s > self._least_s:
            self._own.update({name: [column[before] for column in self._columns[name]] for name in tail})
        # What follows another step is told apart from it by the first meeting; a step alone has nothing else.
        self._known = before == at and not self._continues(at)

    def _continues(self, at: int) -> bool:
        return at + 1 < len(self._index) and self._index[at + 1] == self._index[at] + 1

    def _count_unmet(self) -> None:
        """Note how far apart the ranks are where the row of steps ends: no farther than a step where they do meet."""
        allowed_s = self._entered_s if self._known else self._typical_s
        self._unmet_s += max(0.0, self._spread(self._behind) - allowed_s)

    def _restart(self, behind: list[float]) -> None:
        least = min(behind)
        self._behind = [lag - least for lag in behind]
        self._own = {name: [0.0] * len(self._ids) for name in self._phases}

    def _spread(self, behind: Sequence[float]) -> float:
        """By how much the last is behind the middle one; with two ranks behind the other."""
        ordered = sorted(behind)
        return ordered[-1] - ordered[self._middle]

    def _meet(self, at: int, name: str, before: Sequence[float], loss_s: float, spent: Sequence[float]) -> None:
        late = max(range(len(before)), key=before.__getitem__)
        usual = sorted(before)[self._middle]
        other = before.index(usual)
        excess = {b: max(0.0, own[late] - own[other]) for b, own in self._own.items()}
        whole = sum(excess.values())
        if self._known and whole > 0:
            for bucket, part in excess.items():
                if part:
                    self._lost[self._ids[late], bucket] += loss_s * part / whole
            for rank, (own, lag) in enumerate(zip(spent, before, strict=True)):
                waited = min(max(0.0, own - spent[late]), before[late] - lag)
                self._waited[rank] += waited
                self._waited_in[rank, name] += waited
            worst = max(excess, key=excess.__getitem__)
            self._meetings.append(Meeting(self._index[at], self._ids[late], loss_s, worst, name))
        self._known, self._since_met = True, 0
        # All leave together: what the sums still show is an error of where they began.
        self._restart([0.0] * len(self._ids))

    def result(self) -> Merged:
        self._count_unmet()
        count = len(self._index)
        own = {
            rank: {name: (sum(self._columns[name][i]) - self._waited_in[i, name]) / count for name in self._phases}
            for i, rank in enumerate(self._ids)
        }
        return Merged(
            ranks=self._ids,
            steps=count,
            first_index=self._index[0],
            last_index=self._index[-1],
            total_s=sum(self._totals[WARM_UP:]),
            loss_s=sum(self._lost.values()),
            unmet_s=self._unmet_s,
            lost_s=dict(self._lost),
            waited_s=dict(zip(self._ids, self._waited, strict=True)),
            waited_in_s={(self._ids[i], name): s for (i, name), s in self._waited_in.items()},
            shared_s={name: sum(islice(map(min, *ranks), WARM_UP, None)) for name, ranks in self._columns.items()},
            meetings=tuple(self._meetings),
            typical_s=self._typical_s,
            own_s=own,
        )
