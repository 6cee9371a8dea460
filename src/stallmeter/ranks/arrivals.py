"""Who came late to the collectives, where the ledgers cannot tell.

A rank whose own backward pass is slow, or that is slow somewhere in the body of a plain loop, waits in no bucket of its
own: the buckets of all ranks are alike. When each rank asked for each collective does tell. PyTorch's flight recorder
has noted it anyway.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..records import Arrivals
from .between import gaps_s
from .clocks import ahead_s
from .steps import PHASES, RankSteps, common
from .together import LEAST_S, MOST_ACCUMULATED
from .walk import WARM_UP

MIN_STEPS = 20
"""Fewer steps with collectives say nothing about a run."""


APART = frozenset({"data_wait", "logging", "checkpoint", "validation"})
"""Buckets of a step outside the pass over its batch, in which ranks may wait for each other: for a batch, too, where
one rank reads for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """What the collectives of some steps say."""

    steps: frozenset[int]
    """Indices of the steps that they belong to."""
    total_s: float
    """Time of these steps."""
    lost_s: Mapping[int, float]
    """By rank: what others waited for it."""
    late_steps: Mapping[int, int]
    """By rank: steps in which most was waited for it. Sharded models have many collectives in a step, and each rank is
    the last in some."""
    exchange_s: float | None
    """Time from the last arrival to the end of the exchange, over all these steps; None where that is not known."""
    is_measured: bool
    """Whether that end was noted; else it is taken for the end of the bucket of the backward pass. The body of a plain
    loop goes on after it: there it is not known."""
    bytes_per_step: float
    """What one rank put in."""
    per_step: float
    """Collectives in a step."""
    stood_s: Mapping[int, float] = field(default_factory=dict)
    """By rank: what it waited for others in these steps."""
    waited_s: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """By index of the step and late rank: what was waited for it."""
    apart_s: Mapping[tuple[int, str], float] = field(default_factory=dict)
    """By late rank and bucket: the part of ``lost_s`` that it spent in a bucket outside the pass over a batch, where
    all ranks may have waited: a checkpoint, a report of a logger, a validation."""
    spent_s: Mapping[str, float] = field(default_factory=dict)
    """By such a bucket: what the middle rank spent in it, waits included, in the steps that were seen to their end."""
    bytes_by_step: Mapping[int, int] = field(default_factory=dict)
    """What one rank put in, by index of the step, where it has a collective."""
    apart_steps: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """Of ``late_steps`` those in which most was waited for that."""

    between_s: Mapping[int, float] = field(default_factory=dict)
    """By rank: what others waited for it between two epochs; no part of ``lost_s``."""
    between_times: Mapping[int, int] = field(default_factory=dict)
    """By rank: between how many epochs most was waited for it."""
    gaps: int = 0
    """Times between two epochs that were looked at."""

    @property
    def loss_s(self) -> float:
        """What was waited for late ranks."""
        return sum(self.lost_s.values())


@dataclass(frozen=True, slots=True)
class _Entered:
    began_s: tuple[float, ...]
    """By position of the rank."""
    took_s: tuple[float | None, ...]
    sent_bytes: int


def late_in_exchanges(arrivals: Mapping[int, Sequence[Arrivals]], steps: Sequence[RankSteps]) -> Exchanges | None:
    """Find who came late, from what all ranks noted of the same collectives.

    Between two hosts the clocks differ by an amount that nobody knows: see `ahead_s`.

    Args:
        arrivals: By rank.
        steps: Of the same ranks.

    Returns:
        None where not all ranks noted any, or too few in steps that are known.
    """
    ranks = [rank for rank in steps if arrivals.get(rank.rank)]
    if len(ranks) < 2 or len(ranks) < len(steps):
        return None
    offsets_s = [_offset_s(rank, ranks[0]) for rank in ranks]
    noted = [_by_number(arrivals[rank.rank], offset) for rank, offset in zip(ranks, offsets_s, strict=True)]
    entered = _in_common(noted)
    walk = _Segments(ranks, offsets_s)
    for collective in entered:
        walk.take(collective)
    return walk.result()


def steps_apart(arrivals: Sequence[Arrivals], steps: RankSteps) -> int:
    """Return in each how-manieth step one rank asks for a collective; 1 where that is not known.

    Who averages parameters each ten steps tells by no weight update that the ranks do not meet before.
    """
    ends_s = steps.ends_s
    began_s = (part.base_s + us / 1e6 for part in arrivals for us in part.began_us)
    found = sorted({at for s in began_s if 0 < (at := bisect_left(ends_s, s)) < len(ends_s)})
    apart = [steps.index[b] - steps.index[a] for a, b in pairwise(found)]
    return max(1, statistics.median_low(apart)) if len(apart) >= _TELLING else 1


_TELLING = 3
"""Fewer pauses between collectives do not tell how often there are some."""


def _offset_s(rank: RankSteps, first: RankSteps) -> float:
    if rank.host == first.host:
        return 0.0
    mine, theirs = common([rank, first])
    return ahead_s(mine, theirs)[0]


def _by_number(found: Sequence[Arrivals], offset_s: float) -> dict[tuple[str, int], tuple[float, float | None, int]]:
    noted = {}
    for part in found:
        columns = zip(part.sequence, part.began_us, part.took_us, part.sent_bytes, strict=True)
        for number, began_us, took_us, size in columns:
            took_s = None if took_us < 0 else took_us / 1e6
            noted[part.group, number] = (part.base_s + began_us / 1e6 - offset_s, took_s, size)
    return noted


def _in_common(noted: Sequence[Mapping[tuple[str, int], tuple[float, float | None, int]]]) -> Iterable[_Entered]:
    """Return the collectives that all ranks noted, in the order in which they began."""
    keys = set(noted[0]).intersection(*noted[1:])
    for key in sorted(keys, key=lambda k: min(rank[k][0] for rank in noted)):
        rows = [rank[key] for rank in noted]
        yield _Entered(tuple(r[0] for r in rows), tuple(r[1] for r in rows), max(r[2] for r in rows))


class _Timeline:
    """When a rank was in which bucket of a step, as far as the order of its buckets tells.

    Args:
        rank: Its steps.
        offset_s: By how much its clock is ahead of the first rank's.
    """

    def __init__(self, rank: RankSteps, offset_s: float) -> None:
        self._index, self._ends_s, self._offset_s = rank.index, rank.ends_s, offset_s
        last_first = reversed([name for name in PHASES if name in rank.seconds])
        self._last_first = [(name, rank.seconds[name]) for name in last_first]

    def bucket(self, since_s: float, until_s: float) -> tuple[str, int]:
        """Return the bucket apart from the pass over the batch that most of a time was spent in, and the step's index.

        The name is empty where it was none. Callbacks and the framework's own code are all over a step, so that their
        place in it says nothing.
        """
        # By its middle: a wait often ends where the step does, and the ends of steps are whole milliseconds.
        at = bisect_left(self._ends_s, (since_s + until_s) / 2.0 + self._offset_s)
        if at >= len(self._ends_s):
            return "", -1
        ends_s = self._ends_s[at] - self._offset_s
        for name, seconds in self._last_first:
            begins_s = ends_s - seconds[at]
            if name in APART and min(ends_s, until_s) - max(begins_s, since_s) > (until_s - since_s) / 2.0:
                return name, self._index[at]
            ends_s = begins_s
        return "", -1


class _Segments:
    """Collectives between two times at which all ranks were together.

    Asking for an all-reduce waits for nobody: a rank asks for the next one, as late as for this one. Only
    when nobody has asked for the next one before all had asked for this one may all have been together in between.
    """

    def __init__(self, ranks: Sequence[RankSteps], offsets_s: Sequence[float]) -> None:
        self._ranks = ranks
        self._ids = [rank.rank for rank in ranks]
        self._timelines = [_Timeline(rank, offset) for rank, offset in zip(ranks, offsets_s, strict=True)]
        self._middle = (len(ranks) - 1) // 2
        first = ranks[0]
        self._index, self._ends_s = first.index, first.ends_s
        self._totals = [sum(values[at] for values in first.seconds.values()) for at in range(len(first))]
        self._open: _Entered | None = None
        self._lost: defaultdict[int, float] = defaultdict(float)
        self._stood: defaultdict[int, float] = defaultdict(float)
        self._late: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        """By index of the step and rank: what was waited for it."""
        self._apart: defaultdict[tuple[int, str], defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        """By rank and bucket, then by index of the step: what was waited for that."""
        self._steps: dict[int, float] = {}
        tails = [name for name in PHASES[PHASES.index("optimizer") :] if name in first.seconds]
        after = [first.seconds[name] for name in tails]
        self._exits_s = [end - sum(c[at] for c in after) for at, end in enumerate(first.ends_s)]
        """When the first of the ranks left the part of each step that ends with the exchange."""
        self._last_s: dict[int, float] = {}
        """By position of the step: the last arrival before that."""
        self._exchange_s: list[float] = []
        after_last = {len(first)} if min(rank.tail_s for rank in ranks) > 0 else set()
        self._gaps = frozenset(gaps_s(first)) | after_last
        """Positions of the steps before which an epoch has ended; one more where all runs have ended."""
        self._between: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        """By such a position and rank: what was waited for it between the epochs."""
        self._measured: set[int] = set()
        """Positions of the steps with a collective whose end was noted."""
        self._bytes: Counter[int] = Counter()
        """By index of the step."""
        self._count = 0

    def take(self, entered: _Entered) -> None:
        if self._open is not None and min(entered.began_s) >= max(self._open.began_s):
            self._close(self._open)
        self._open = entered
        if (at := self._step_at(entered)) is not None:
            self._steps[self._index[at]] = self._totals[at]
            self._bytes[self._index[at]] += entered.sent_bytes
            self._count += 1

    def _step_at(self, entered: _Entered) -> int | None:
        """Return the position of the step in which the first of the ranks asked for it."""
        began_s = entered.began_s[0]
        at = bisect_left(self._ends_s, began_s)
        if at < WARM_UP or at >= len(self._ends_s) or began_s < self._ends_s[at] - self._totals[at]:
            return None
        return at

    def _close(self, entered: _Entered) -> None:
        last_s = max(entered.began_s)
        late = entered.began_s.index(last_s)
        loss_s = last_s - sorted(entered.began_s)[self._middle]
        at = self._step_at(entered)
        if at is None:
            before = bisect_left(self._ends_s, entered.began_s[0])
            if before in self._gaps and loss_s > LEAST_S:  # after the last step, too
                self._between[before][self._ids[late]] += loss_s
            return
        if loss_s > LEAST_S:
            self._lost[self._ids[late]] += loss_s
            bucket, index = self._timelines[late].bucket(last_s - loss_s, last_s)
            if bucket:
                self._apart[self._ids[late], bucket][index] += loss_s
            self._late[index if bucket else self._index[at]][self._ids[late]] += loss_s
            for rank, began_s in zip(self._ids, entered.began_s, strict=True):
                self._stood[rank] += last_s - began_s
        if last_s <= self._exits_s[at]:
            self._last_s[at] = max(last_s, self._last_s.get(at, last_s))
        took_s = [began + took for began, took in zip(entered.began_s, entered.took_s, strict=True) if took is not None]
        if took_s:
            self._exchange_s.append(max(0.0, min(took_s) - last_s))
            self._measured.add(at)

    def result(self) -> Exchanges | None:
        if self._open is not None:
            self._close(self._open)
        if len(self._steps) < MIN_STEPS:
            return None
        covered = self._covered()
        latest = {index: max(lost, key=lost.__getitem__) for index, lost in self._late.items()}
        return Exchanges(
            steps=frozenset(self._index[at] for at in covered),
            total_s=sum(self._totals[at] for at in covered),
            lost_s=dict(self._lost),
            late_steps=Counter(latest.values()),
            exchange_s=self._exchanged_s(),
            is_measured=bool(self._exchange_s),
            bytes_per_step=self._bytes.total() / len(covered),
            bytes_by_step=dict(self._bytes),
            per_step=self._count / len(covered),
            stood_s=dict(self._stood),
            waited_s={index: dict(lost) for index, lost in self._late.items()},
            apart_s={key: sum(by_step.values()) for key, by_step in self._apart.items()},
            spent_s=self._spent_s(),
            apart_steps={
                key: sum(latest[i] == key[0] and 2 * s >= self._late[i][key[0]] for i, s in by_step.items())
                for key, by_step in self._apart.items()
            },
            between_s=_summed(self._between.values()),
            between_times=Counter(max(lost, key=lost.__getitem__) for lost in self._between.values()),
            gaps=sum(1 for at in self._gaps if at in self._between or self._is_noted_around(at)),
        )

    def _is_noted_around(self, at: int) -> bool:
        return {self._index[i] for i in (at - 1, at) if i < len(self._index)} <= self._steps.keys()

    def _covered(self) -> set[int]:
        """Return the positions of the steps that the collectives stand for: those since the ones before, too.

        Where gradients are accumulated, or parameters are averaged, not each step has any.
        """
        noted = sorted(self._steps)
        every = min(MOST_ACCUMULATED, statistics.median_low([b - a for a, b in pairwise(noted)]))
        places = {index: at for at, index in enumerate(self._index) if at >= WARM_UP}
        return {places[i] for index in noted for i in range(index - every + 1, index + 1) if i in places}

    def _spent_s(self) -> dict[str, float]:
        # Of the last step before a gap it is not known whether all of its collectives were noted.
        whole = {index for index in self._steps if index + 1 in self._steps}
        spent: dict[str, float] = {}
        for name in {bucket for _, bucket in self._apart}:
            waited = {index for (_, bucket), by_step in self._apart.items() if bucket == name for index in by_step}
            columns = [dict(zip(rank.index, rank.seconds.get(name, ()), strict=False)) for rank in self._ranks]
            rows = [sorted(column.get(index, 0.0) for column in columns) for index in whole | waited]
            spent[name] = sum(row[self._middle] for row in rows)
        return spent

    def _exchanged_s(self) -> float | None:
        if self._exchange_s:
            # Ends are noted from a moment on: the steps before it are taken for like these.
            seen_s = sum(self._totals[at] for at in self._measured)
            return sum(self._exchange_s) * sum(self._steps.values()) / seen_s if seen_s else None
        buckets = self._ranks[0].seconds
        if not self._last_s or "backward" not in buckets or "compute" in buckets:
            return None
        return sum(self._exits_s[at] - last_s for at, last_s in self._last_s.items())


def _summed(losses: Iterable[Mapping[int, float]]) -> dict[int, float]:
    found: defaultdict[int, float] = defaultdict(float)
    for lost in losses:
        for rank, seconds in lost.items():
            found[rank] += seconds
    return dict(found)
