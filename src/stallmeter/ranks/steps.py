"""The kept steps of one rank as columns of numbers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise

from ..records import LoaderInfo

PHASES = (
    "data_wait",
    "worker_startup",
    "h2d",
    "forward",
    "backward",
    "compute",
    "optimizer",
    "callbacks",
    "logging",
    "checkpoint",
    "validation",
    "loop",
    "other",
)
"""Buckets that a step has, in the order in which a rank comes through them."""

_EXCHANGED = PHASES.index("backward")


def before_exchange(names: Collection[str]) -> tuple[str, ...]:
    """Return the same order where some buckets come before the exchange: what is called from within a step."""
    moved = (name for name in PHASES if name in names)
    return (*PHASES[:_EXCHANGED], *moved, *(name for name in PHASES[_EXCHANGED:] if name not in names))


HEAD = frozenset({"data_wait", "worker_startup", "h2d", "forward", "backward", "compute"})
"""Buckets from the beginning of a step to the exchange of gradients."""

COLUMNS = ("index", "time_s", "epoch_start", "optimizer_step", "outlier", *(f"{name}_s" for name in PHASES))
"""Fields of a `StepRecord` that the merge reads."""


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Steps of one rank, in order."""

    rank: int
    index: Sequence[int]
    ends_s: Sequence[float]
    """Unix time at the end of each step, by this rank's clock."""
    seconds: Mapping[str, Sequence[float]]
    """By bucket; only buckets in which some step spent time."""
    optimizer_step: Sequence[int | None] = ()
    host: str = ""
    """Where it ran: ranks of one host have one clock. Empty: not known."""
    starts: Sequence[int] = ()
    """Indices of the steps that begin an epoch: between it and the one before is time that belongs to no step."""
    between: Mapping[str, float] = field(default_factory=dict)
    """Share (0 to 1) of that time by bucket, where it has a name: see `stallmeter.ranks.between`."""
    tail_s: float = 0.0
    """From the last step to the end of the run; 0 where the run goes on, or the run's last step is not here."""
    earlier_s: float = 0.0
    """From the first step that was known once to the first one here: of a large job rank 0 keeps the newest."""

    def __len__(self) -> int:
        return len(self.index)


def updates_per_step(steps: RankSteps) -> float | None:
    """Return updates of the weights in a step, less than one where they accumulate; None where nobody counts."""
    known = [(index, u) for index, u in zip(steps.index, steps.optimizer_step, strict=False) if u is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0] or known[-1][1] <= known[0][1]:
        return None
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def updating(steps: RankSteps) -> dict[int, bool]:
    """Return by index of a step whether the weights are updated in it, of those whose step before is known, too."""
    rows = list(zip(steps.index, steps.optimizer_step, strict=False))
    return {
        index: now > before
        for (previous, before), (index, now) in pairwise(rows)
        if index == previous + 1 and before is not None and now is not None
    }


def rank_steps(rank: int, columns: Mapping[str, array[float]], host: str = "", *, live_on: bool = False) -> RankSteps:
    """Make them of columns as `stallmeter.recording.columns` reads them.

    What was kept beside the even sample because it took long is left out: it would count for more than what was not.
    The first step of an epoch waits for workers that start: see `with_starts`.

    Args:
        rank: Whose.
        columns: By the names in `COLUMNS`.
        host: Where it ran.
        live_on: See `starting_steps`.
    """
    even = bytes(is_outlier != 1.0 for is_outlier in columns["outlier"])
    found: dict[str, array[float]] = {}
    for name in PHASES:
        values = array("d", (0.0 if value != value else value for value in compress(columns[f"{name}_s"], even)))
        if any(values):
            found[name] = values
    first = [at for at, is_first in enumerate(compress(columns["epoch_start"], even)) if is_first == 1.0]
    index = array("q", map(int, compress(columns["index"], even)))
    ends_s = array("d", compress(columns["time_s"], even))
    updates = _updates(array("d", compress(columns["optimizer_step"], even)))
    starting = starting_steps(first, index, live_on=live_on)
    return RankSteps(rank, index, ends_s, with_starts(found, starting), updates, host, [index[at] for at in first])


def lives_on(loader: object) -> bool:
    """Return whether a loader's workers are known to live on from epoch to epoch."""
    return isinstance(loader, LoaderInfo) and loader.lives_on


def starting_steps(first: Sequence[int], index: Sequence[int], *, live_on: bool) -> list[int]:
    """Return the positions of the steps that wait for workers to start.

    Args:
        first: Positions of the first steps of epochs.
        index: Of all steps.
        live_on: Whether the workers are known to live on: then they start with the first epoch alone.
    """
    return [at for at in first if not live_on or not index[at]]


def _updates(column: array[float]) -> Sequence[int | None]:
    unknown = sum(1 for value in column if value != value)
    if unknown == len(column):
        return ()
    if not unknown:
        return array("q", map(int, column))
    return [None if value != value else int(value) for value in column]


def with_starts(seconds: Mapping[str, Sequence[float]], first: Sequence[int]) -> Mapping[str, Sequence[float]]:
    """Book what the first step of an epoch waits for data beyond others as what it is: the wait for workers that start.

    Where the loop makes its batches itself a first one takes as long as others.

    Args:
        seconds: By bucket.
        first: Positions of these steps.
    """
    if not first or "data_wait" not in seconds:
        return seconds
    waits = array("d", seconds["data_wait"])
    starts = array("d", seconds.get("worker_startup", [0.0] * len(waits)))
    begins = frozenset(first)
    later = sorted(wait for at, wait in enumerate(waits) if at not in begins)
    usual = later[len(later) // 2] if later else 0.0
    for at in first:
        starts[at] += max(0.0, waits[at] - usual)
        waits[at] = min(waits[at], usual)
    return {**seconds, "data_wait": waits, "worker_startup": starts}


def common(ranks: Sequence[RankSteps]) -> list[RankSteps]:
    """Return the steps that all ranks have.

    They go by their index: ranks keep the same ones, see `StepClock.drain`. Where one index is not the same weight
    update on all ranks (one has skipped a batch), the batches of each update are one step.
    """
    if not ranks:
        return []
    by_update = [r for r in (_by_update(rank) for rank in ranks) if r is not None] if _shifted(ranks) else []
    found = by_update if len(by_update) == len(ranks) else ranks
    first = found[0]
    indices = set(first.index)
    for rank in found[1:]:
        if rank.index != first.index:
            indices &= set(rank.index)
    return [rank if len(indices) == len(rank) else _only(rank, indices) for rank in found]


def _only(rank: RankSteps, indices: set[int]) -> RankSteps:
    at = [i for i, index in enumerate(rank.index) if index in indices]
    return RankSteps(
        rank.rank,
        array("q", (rank.index[i] for i in at)),
        array("d", (rank.ends_s[i] for i in at)),
        {name: array("d", (values[i] for i in at)) for name, values in rank.seconds.items()},
        [rank.optimizer_step[i] for i in at] if rank.optimizer_step else (),
        rank.host,
        [index for index in rank.starts if index in indices],
        rank.between,
        rank.tail_s if at and at[-1] == len(rank) - 1 else 0.0,
        rank.earlier_s,
    )


BETWEEN_STEPS = frozenset({"loop", "other"})
"""Buckets at the end of a step, in which frameworks exchange words of their own: ranks may wait there, too."""


def tail_of(rank: RankSteps, without: Collection[str] = ()) -> list[float]:
    """Return the seconds of each step after the exchange of gradients.

    Args:
        rank: Its steps.
        without: Buckets to leave out.
    """
    last = max((at for at, name in enumerate(PHASES) if name in HEAD and name in rank.seconds), default=-1)
    parts = [values for name, values in rank.seconds.items() if PHASES.index(name) > last and name not in without]
    return [sum(row) for row in zip(*parts, strict=True)] if parts else [0.0] * len(rank)


_SHIFTED = 0.01
"""Share of the steps whose weight update may differ between ranks: one may have died inside its last."""


def _shifted(ranks: Sequence[RankSteps]) -> bool:
    """Whether one index is not the same weight update on all ranks."""
    first = ranks[0]
    usual = {i: update for i, update in zip(first.index, first.optimizer_step, strict=False) if update is not None}
    known, differ = set(usual), set()
    for rank in ranks[1:]:
        if rank.index == first.index and rank.optimizer_step == first.optimizer_step:
            continue
        theirs = dict(zip(rank.index, rank.optimizer_step, strict=False))
        known = {i for i in known if theirs.get(i) is not None}
        differ |= {i for i in known if theirs[i] != usual[i]}
    return len(differ & known) > max(1.0, _SHIFTED * len(known))


def _by_update(rank: RankSteps) -> RankSteps | None:
    """Return the batches of each weight update as one step; None where updates are not known.

    A step tells how many updates were done when it ended: its own batch belongs to the one after those that were done
    when the step before ended. Of an update that begins or ends outside a row of steps only a part is there.
    """
    if len(rank.optimizer_step) != len(rank) or any(update is None for update in rank.optimizer_step):
        return None
    places: dict[int, list[int]] = {}
    for at, update in enumerate(rank.optimizer_step):
        follows = at > 0 and rank.index[at] == rank.index[at - 1] + 1
        places.setdefault((rank.optimizer_step[at - 1] or 0) + 1 if follows else update or 0, []).append(at)
    if not places:
        return rank
    usual = Counter(map(len, places.values())).most_common(1)[0][0]
    order = sorted(update for update, found in places.items() if len(found) == usual)
    begins = frozenset(rank.starts)
    return RankSteps(
        rank.rank,
        order,
        [rank.ends_s[places[update][-1]] for update in order],
        {name: [sum(values[i] for i in places[update]) for update in order] for name, values in rank.seconds.items()},
        order,
        rank.host,
        [update for update in order if rank.index[places[update][0]] in begins],
        rank.between,
        rank.tail_s if order and places[order[-1]][-1] == len(rank) - 1 else 0.0,
        rank.earlier_s,
    )
