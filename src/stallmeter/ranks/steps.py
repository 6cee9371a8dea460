"""The kept steps of one rank as columns of numbers."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

COLUMNS = ("index", "time_s", "total_s", "epoch_start", "optimizer_step", "outlier", *(f"{name}_s" for name in PHASES))
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

    def __len__(self) -> int:
        return len(self.index)


def rank_steps(rank: int, columns: Mapping[str, array[float]], host: str = "") -> RankSteps:
    """Make them of columns as `stallmeter.recording.columns` reads them.

    Outliers of a rank that were kept beside the even sample are left out where no other rank keeps them: `common` does
    that. The first step of an epoch waits for workers that start: its wait for data is told as that.

    Args:
        rank: Whose.
        columns: By the names in `COLUMNS`.
        host: Where it ran.
    """
    found: dict[str, array[float]] = {}
    for name in PHASES:
        values = array("d", (0.0 if value != value else value for value in columns[f"{name}_s"]))
        if any(values):
            found[name] = values
    seconds = with_starts(found, [at for at, first in enumerate(columns["epoch_start"]) if first])
    index = array("q", map(int, columns["index"]))
    return RankSteps(rank, index, columns["time_s"], seconds, _updates(columns["optimizer_step"]), host)


def _updates(column: array[float]) -> Sequence[int | None]:
    unknown = sum(1 for value in column if value != value)
    if unknown == len(column):
        return ()
    if not unknown:
        return array("q", map(int, column))
    return [None if value != value else int(value) for value in column]


def with_starts(seconds: Mapping[str, Sequence[float]], first: Sequence[int]) -> Mapping[str, Sequence[float]]:
    """Book the wait for data in the first step of an epoch as what it mostly is: the wait for workers that start.

    Args:
        seconds: By bucket.
        first: Positions of these steps.
    """
    if not first or "data_wait" not in seconds:
        return seconds
    waits = array("d", seconds["data_wait"])
    starts = array("d", seconds.get("worker_startup", [0.0] * len(waits)))
    for at in first:
        starts[at] += waits[at]
        waits[at] = 0.0
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
    )


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
    """Return the batches of each weight update as one step; None where updates are not known."""
    if len(rank.optimizer_step) != len(rank) or any(update is None for update in rank.optimizer_step):
        return None
    places: dict[int, list[int]] = {}
    for at, update in enumerate(rank.optimizer_step):
        places.setdefault(update or 0, []).append(at)
    order = sorted(places)
    return RankSteps(
        rank.rank,
        order,
        [rank.ends_s[places[update][-1]] for update in order],
        {name: [sum(values[i] for i in places[update]) for update in order] for name, values in rank.seconds.items()},
        order,
        rank.host,
    )
