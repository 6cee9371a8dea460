"""The walk itself: ranks that come through the buckets of their steps beside each other."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add

from .between import BETWEEN
from .steps import BETWEEN_STEPS, HEAD, PHASES, RankSteps
from .together import LEAST_S, Drift

NEVER_MEET = frozenset({"data_wait", "worker_startup"})
"""Buckets in which no rank waits for another. A rank that came late finds its next batch ready and waits less for it:
it has not met anybody there. Copies to a device may wait for what it was given before, the exchange included."""

MEETS = 0.5
"""Ranks have met in a bucket when the latest is behind by less than this part of what it was."""

CLEAR_SHARE = 0.1
"""Share of a median step by which ranks must differ in one for that step alone to tell whether they meet."""

LEAST_SHARE = 0.02
"""Lateness below `LEAST_S`, and below this share of a median step, is nobody's fault."""

FORGETS = 0.75
"""Part of what ranks are apart after they have met that is believed: the rest may be an error of where they began."""

PASSES = 0.1
"""Who was late by less than this part of what the others have spent since was late by chance."""

SHARES = 0.2
"""A rank is late, too, when it is behind by this part of what the latest is."""

WARM_UP = 1
"""First steps that are left out: ranks enter them after starts of different length."""

LOST_STEPS = 64
"""After so many steps apart without a meeting it is not known any more how far apart the ranks are."""

CLOCK_S = 2e-3
"""What is read from clocks must differ by more from what the sums say: a recording keeps whole milliseconds."""

_CARRIED = ""
"""Bucket of what ranks were apart by when a row of steps began."""


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
    """The bucket of the others in which they waited; empty where that was in a step that is not known."""
    between: bool = False
    """Whether they met outside the steps: between two epochs, or after the last step."""


class Walk:
    """Ranks on their way.

    Args:
        ranks: The same steps of each.
        starts_s: When each rank began each step, by one clock; None without one.
        accumulated: Steps of a weight update.
        phases: Buckets of a step in the order in which ranks come through them.
    """

    def __init__(
        self,
        ranks: Sequence[RankSteps],
        starts_s: Sequence[Sequence[float]] | None,
        accumulated: int = 1,
        phases: Sequence[str] = PHASES,
    ) -> None:
        self._ids = tuple(rank.rank for rank in ranks)
        self._index = ranks[0].index
        self._ends_s = [rank.ends_s for rank in ranks]
        self._starts_s = starts_s
        self._epochs = frozenset(ranks[0].starts)
        self._between_shares = [rank.between for rank in ranks]
        self._tails_s = [rank.tail_s for rank in ranks]
        self._between_names = [name for name in PHASES if any(name in shares for shares in self._between_shares)]
        self._lost_steps = max(LOST_STEPS, 2 * accumulated)
        count = len(self._index)
        self._phases = tuple(name for name in phases if any(name in rank.seconds for rank in ranks))
        # By bucket and rank, as they are: hundreds of ranks have millions of numbers.
        nothing = array("d", bytes(8 * count))
        self._columns = {name: [rank.seconds.get(name, nothing) for rank in ranks] for name in self._phases}
        last = max((i for i, name in enumerate(self._phases) if name in HEAD), default=len(self._phases) - 1)
        self._last_of_head, self._tail = "".join(self._phases[last : last + 1]), self._phases[last + 1 :]
        self.typical_s = sorted(self._longest(len(ranks)))[(count - 1) // 2] if self._phases else 0.0
        self.drift = Drift(len(ranks), accumulated, CLEAR_SHARE * self.typical_s)
        """How far their sums drift apart."""
        self._least_s = max(LEAST_S, LEAST_SHARE * self.typical_s)
        self._middle = (len(ranks) - 1) // 2
        self._zero = [0.0] * len(ranks)
        self._behind = self._zero
        self._own: dict[str, list[float]] = {}
        self._known = False
        self._since_met = 0
        self._at = 0
        self._guessed = False
        self._is_between = False
        self.gaps = 0
        """Times between two epochs, and after the last one."""
        self.gaps_s = 0.0
        """Seconds of these, of the longest rank in each."""
        self.totals = list(self._zero)
        """Seconds by rank."""
        self.lost: defaultdict[tuple[int, str], float] = defaultdict(float)
        """By the late rank's position and bucket; below zero where it made up for some of it."""
        self.waited: defaultdict[tuple[int, str], float] = defaultdict(float)
        """By position and bucket."""
        self.shared: defaultdict[str, float] = defaultdict(float)
        """By bucket: what the middle rank of each step spent there of its own."""
        self.meetings: list[Meeting] = []
        self.unmet: list[Meeting] = []
        """As meetings: how far ranks were apart where nothing more is known of them."""
        self.lost_unmet: defaultdict[tuple[int, str], float] = defaultdict(float)
        """What that lost, as `lost`."""
        self.apart_s = 0.0
        """By how much the last was behind where rows of steps end."""

    def step(self, at: int) -> None:
        """Take the ranks through the step at a position; positions come in order."""
        follows = self._index[at] == self._index[at - 1] + 1
        if at == WARM_UP or not follows or self._since_met >= self._lost_steps:
            self.end()
            self._begin(at, at - 1 if follows else at, follows or self._continues(at))
        elif self._index[at] in self._epochs:
            self._between(at)
        self._at = at
        self._since_met += 1
        for name in self._phases:
            spent = self._spent(name, at)
            if any(spent):
                self._spend(at, name, spent)
            if name == self._last_of_head:
                self.drift.exchanged()
                if self._guessed:
                    self._forget_guess(name)
        if self._known and self._spread(self._behind) <= self._least_s:
            self._since_met = 0

    def _longest(self, count: int) -> Iterable[float]:
        """Return the time of each step, of the longest rank in it."""
        longest: Iterable[float] = ()
        for i in range(count):
            own = map(sum, zip(*(self._columns[name][i] for name in self._phases), strict=True))
            longest = array("d", map(max, longest, own) if i else own)
        return longest

    def _spent(self, name: str, at: int) -> list[float]:
        return [column[at] for column in self._columns[name]]

    def end(self) -> None:
        """A row of steps ends: note how far the ranks are apart."""
        self.drift.cut()
        self._note_unmet()

    def _note_unmet(self) -> None:
        late_s = self._spread(self._behind)
        self.apart_s += late_s if late_s > self._least_s else 0.0
        if self._known and late_s > self._least_s:
            met_in = {meeting.met_in for meeting in self.meetings[-LOST_STEPS:]}
            own = {name: self._zero if name in met_in else own for name, own in self._own.items()}
            parts = self._parts(self._behind, own, late_s)
            found = self._counted(self._at, "", parts, self.lost_unmet)
            self.unmet += [found] if found else []

    def _continues(self, at: int) -> bool:
        return at + 1 < len(self._index) and self._index[at + 1] == self._index[at] + 1

    def _begin(self, at: int, before: int, has_more: bool) -> None:
        """A row of steps begins. The ranks are as far apart as clocks say, or else as the tail of a step leaves them.

        Args:
            at: The step that begins.
            before: The step whose tail is taken: the one before, or, when that is not kept, this one itself.
            has_more: Whether other steps follow or have come before it.
        """
        self._since_met, self._guessed = 0, self._starts_s is None and before == at
        # What is between steps may be a wait for others itself.
        tail = {name: self._spent(name, before) for name in self._tail if name not in BETWEEN_STEPS}
        behind = _from_least([sum(parts) for parts in zip(self._zero, *tail.values(), strict=True)])
        # What has others beside it is told apart from them by the first meeting; a step alone has nothing else.
        self._known = not has_more
        if self._starts_s is not None:
            by_clock = _from_least([starts[at] for starts in self._starts_s])
            if max(abs(a - b) for a, b in zip(behind, by_clock, strict=True)) > CLOCK_S:
                self._leave(by_clock, _CARRIED)
                self._known = True
                return
            self._known = True
        self._leave(behind, _CARRIED)
        if before != at:
            self._own = tail

    def _between(self, at: int) -> None:
        """Take the ranks through the time before the first step of an epoch, each by its own clock."""
        spent = [
            ends[at] - ends[at - 1] - sum(self._columns[name][i][at] for name in self._phases)
            for i, ends in enumerate(self._ends_s)
        ]
        self._apart_from_steps(at, spent)

    def end_of_run(self) -> None:
        """After the last step: what one does there alone the others may stand and wait for, up to the end.

        Who was late in the last step may have been waited for there: then that is known, and is not noted as unmet.
        """
        self.drift.cut()
        before, met = (self._behind, self._own, self._known), len(self.meetings)
        self._apart_from_steps(self._at, self._tails_s)
        if len(self.meetings) == met:
            self._behind, self._own, self._known = before
            self._note_unmet()

    def _apart_from_steps(self, at: int, spent: Sequence[float]) -> None:
        if max(spent) <= CLOCK_S:
            return
        self.gaps += 1
        self.gaps_s += max(spent)
        self._is_between = True
        left = whole = [max(0.0, s) for s in spent]
        for name in self._between_names:
            named = [s * shares.get(name, 0.0) for s, shares in zip(whole, self._between_shares, strict=True)]
            left = [max(0.0, s - part) for s, part in zip(left, named, strict=True)]
            self._spend(at, name, named)
        self._spend(at, BETWEEN, left)
        self._is_between = False

    def _spend(self, at: int, name: str, spent: Sequence[float]) -> None:
        self.drift.spent(spent)
        self.totals = list(map(add, self.totals, spent))
        before = self._behind
        self._behind = list(map(add, before, spent))
        if name not in NEVER_MEET:
            late_s = self._spread(before)
            if late_s > self._least_s:
                left_s = self._spread(self._behind)
                if left_s <= MEETS * late_s:
                    self._meet(at, name, before, late_s, spent)
                    return
                if not self._known and self._passed(before, late_s):
                    self._leave(self._zero, _CARRIED)
                    return
        self.shared[name] += sorted(spent)[self._middle]
        own = self._own.get(name)
        self._own[name] = list(spent) if own is None else list(map(add, own, spent))

    def _forget_guess(self, name: str) -> None:
        """The first exchange of a row has not confirmed how far apart the ranks were: what this step shows is left.

        Who took long in the exchange waits for what another rank did in the step before, as far as is known.
        """
        self._guessed = False
        self._own.pop(_CARRIED, None)
        self._own.pop(name, None)
        self._behind = _from_least([sum(parts) for parts in zip(self._zero, *self._own.values(), strict=True)])

    def _passed(self, before: Sequence[float], late_s: float) -> bool:
        """Whether the latest is now the first: all waited for it, longer than was known that it is late."""
        late = max(range(len(before)), key=before.__getitem__)
        first_s = min(self._behind)
        return self._behind[late] <= first_s and late_s > PASSES * (max(self._behind) - first_s)

    def _meet(self, at: int, name: str, before: Sequence[float], late_s: float, spent: Sequence[float]) -> None:
        late = max(range(len(before)), key=before.__getitem__)
        left_s = max(0.0, self._behind[late] - sorted(self._behind)[self._middle])
        waited = [min(max(0.0, s - spent[late]), before[late] - lag) for s, lag in zip(spent, before, strict=True)]
        for i, seconds in enumerate(waited):
            if seconds:
                self.waited[i, name] += seconds
        self.shared[name] += sorted(s - w for s, w in zip(spent, waited, strict=True))[self._middle]
        found = self._counted(at, name, self._parts(before, self._own, late_s - left_s), self.lost)
        self.meetings += [found] if found else []
        self._since_met = 0
        self._guessed = self._guessed and name != self._last_of_head
        # Where it was not known how far they were apart, they are together now.
        behind = _from_least(self._behind) if self._known else self._zero
        self._known = True
        self._leave([FORGETS * lag for lag in behind], name)

    def _leave(self, behind: list[float], name: str) -> None:
        """Go on from here; what the ranks are apart by now was spent in one bucket."""
        self._behind = behind
        self._own = {name: list(behind)} if any(behind) else {}

    def _parts(
        self, behind: Sequence[float], own: Mapping[str, Sequence[float]], loss_s: float
    ) -> dict[tuple[int, str], float]:
        """Share a loss among the late ranks, and by the buckets in which each fell behind the middle one."""
        order = sorted(range(len(behind)), key=behind.__getitem__)
        other = order[self._middle]
        usual_s = behind[other]
        late_s = behind[order[-1]] - usual_s
        late = [i for i in reversed(order) if behind[i] - usual_s > SHARES * late_s]
        found: dict[tuple[int, str], float] = {}
        share_s = 0.0
        # The last stretch was waited for the latest alone, the one before for it and the next: from the end backwards.
        for place in range(len(late) - 1, -1, -1):
            i = late[place]
            begins_s = behind[late[place + 1]] if place + 1 < len(late) else usual_s
            share_s += (behind[i] - begins_s) / (place + 1) * loss_s / late_s
            lag_s = behind[i] - usual_s
            for name, seconds in own.items():
                excess_s = seconds[i] - seconds[other]
                if excess_s:
                    found[i, name] = share_s * excess_s / lag_s
        return found

    def _counted(
        self, at: int, name: str, parts: Mapping[tuple[int, str], float], into: defaultdict[tuple[int, str], float]
    ) -> Meeting | None:
        """Add what was lost; what ranks were behind before the first step of a row is no loss of these steps."""
        counted = {key: seconds for key, seconds in parts.items() if key[1] != _CARRIED}
        loss_s = sum(counted.values())
        if loss_s <= 0:
            return None
        for key, seconds in counted.items():
            into[key] += seconds
        late, bucket = max(counted, key=counted.__getitem__)
        return Meeting(self._index[at], self._ids[late], loss_s, bucket, name, self._is_between)

    def _spread(self, behind: Sequence[float]) -> float:
        """By how much the last is behind the middle one; with two ranks behind the other."""
        ordered = sorted(behind)
        return ordered[-1] - ordered[self._middle]


def _from_least(values: Sequence[float]) -> list[float]:
    least = min(values)
    return [value - least for value in values]
