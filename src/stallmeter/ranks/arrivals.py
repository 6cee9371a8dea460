"""Who came late to the collectives, where the ledgers cannot tell.

A rank whose own backward pass is slow, or that is slow somewhere in the body of a plain loop, waits in no bucket of its
own: the buckets of all ranks are alike. When each rank asked for each collective does tell. PyTorch's flight recorder
has noted it anyway.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..records import Arrivals
from .clocks import ahead_s
from .steps import PHASES, RankSteps, common
from .together import LEAST_S
from .walk import WARM_UP

MIN_STEPS = 20
"""Fewer steps with collectives say nothing about a run."""


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
    """Whether that end was noted; else it is taken for the end of the backward pass, or of a plain loop's body."""
    bytes_per_step: float
    """What one rank put in."""
    per_step: float
    """Collectives in a step."""
    waited_s: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """By index of the step and late rank: what was waited for it."""

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
    entered = _in_common([_by_number(arrivals[rank.rank], _offset_s(rank, ranks[0])) for rank in ranks])
    walk = _Segments(ranks, len(ranks))
    for collective in entered:
        walk.take(collective)
    return walk.result()


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


class _Segments:
    """Collectives between two times at which all ranks were together.

    Asking for an all-reduce waits for nobody: a rank asks for the next one, as late as for this one. Only
    when nobody has asked for the next one before all had asked for this one may all have been together in between.
    """

    def __init__(self, ranks: Sequence[RankSteps], count: int) -> None:
        self._ids = [rank.rank for rank in ranks]
        self._middle = (count - 1) // 2
        first = ranks[0]
        self._index, self._ends_s = first.index, first.ends_s
        self._totals = [sum(values[at] for values in first.seconds.values()) for at in range(len(first))]
        self._open: _Entered | None = None
        self._lost: defaultdict[int, float] = defaultdict(float)
        self._late: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        """By index of the step and rank: what was waited for it."""
        self._steps: dict[int, float] = {}
        tails = [name for name in PHASES[PHASES.index("optimizer") :] if name in first.seconds]
        after = [first.seconds[name] for name in tails]
        self._exits_s = [end - sum(c[at] for c in after) for at, end in enumerate(first.ends_s)]
        """When the first of the ranks left the part of each step that ends with the exchange."""
        self._last_s: dict[int, float] = {}
        """By position of the step: the last arrival before that."""
        self._exchange_s: list[float] = []
        self._bytes = self._count = 0

    def take(self, entered: _Entered) -> None:
        if self._open is not None and min(entered.began_s) >= max(self._open.began_s):
            self._close(self._open)
        self._open = entered
        if (at := self._step_at(entered)) is not None:
            self._steps[self._index[at]] = self._totals[at]
            self._bytes += entered.sent_bytes
            self._count += 1

    def _step_at(self, entered: _Entered) -> int | None:
        """Return the position of the step in which the first of the ranks asked for it."""
        began_s = entered.began_s[0]
        at = bisect_left(self._ends_s, began_s)
        if at < WARM_UP or at >= len(self._ends_s) or began_s < self._ends_s[at] - self._totals[at]:
            return None
        return at

    def _close(self, entered: _Entered) -> None:
        at = self._step_at(entered)
        if at is None:
            return
        last_s = max(entered.began_s)
        late = entered.began_s.index(last_s)
        loss_s = last_s - sorted(entered.began_s)[self._middle]
        if loss_s > LEAST_S:
            self._lost[self._ids[late]] += loss_s
            self._late[self._index[at]][self._ids[late]] += loss_s
        if last_s <= self._exits_s[at]:
            self._last_s[at] = max(last_s, self._last_s.get(at, last_s))
        took_s = [began + took for began, took in zip(entered.began_s, entered.took_s, strict=True) if took is not None]
        if took_s:
            self._exchange_s.append(max(0.0, min(took_s) - last_s))

    def result(self) -> Exchanges | None:
        if self._open is not None:
            self._close(self._open)
        if len(self._steps) < MIN_STEPS:
            return None
        return Exchanges(
            steps=frozenset(self._steps),
            total_s=sum(self._steps.values()),
            lost_s=dict(self._lost),
            late_steps=Counter(max(lost, key=lost.__getitem__) for lost in self._late.values()),
            exchange_s=self._exchanged_s(),
            is_measured=bool(self._exchange_s),
            bytes_per_step=self._bytes / len(self._steps),
            per_step=self._count / len(self._steps),
            waited_s={index: dict(lost) for index, lost in self._late.items()},
        )

    def _exchanged_s(self) -> float | None:
        if self._exchange_s:
            return sum(self._exchange_s)
        if not self._last_s:
            return None
        return sum(self._exits_s[at] - last_s for at, last_s in self._last_s.items())
