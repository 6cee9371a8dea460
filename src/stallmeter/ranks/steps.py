"""The kept steps of one rank as columns of numbers."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

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
    found: dict[str, list[float]] = {}
    for name in PHASES:
        values = [0.0 if value != value else value for value in columns[f"{name}_s"]]
        if any(values):
            found[name] = values
    seconds = with_starts(found, [at for at, first in enumerate(columns["epoch_start"]) if first])
    updates = [None if value != value else int(value) for value in columns["optimizer_step"]]
    return RankSteps(rank, [int(i) for i in columns["index"]], list(columns["time_s"]), seconds, updates, host)


def with_starts(seconds: Mapping[str, Sequence[float]], first: Sequence[int]) -> Mapping[str, Sequence[float]]:
    """Book the wait for data in the first step of an epoch as what it mostly is: the wait for workers that start.

    Args:
        seconds: By bucket.
        first: Positions of these steps.
    """
    if not first or "data_wait" not in seconds:
        return seconds
    waits = list(seconds["data_wait"])
    starts = list(seconds.get("worker_startup", [0.0] * len(waits)))
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
    indices = reduce(lambda kept, rank: kept & set(rank.index), found[1:], set(found[0].index))
    return [rank if len(indices) == len(rank) else _only(rank, indices) for rank in found]


def _only(rank: RankSteps, indices: set[int]) -> RankSteps:
    at = [i for i, index in enumerate(rank.index) if index in indices]
    return RankSteps(
        rank.rank,
        [rank.index[i] for i in at],
        [rank.ends_s[i] for i in at],
        {name: [values[i] for i in at] for name, values in rank.seconds.items()},
        [rank.optimizer_step[i] for i in at] if rank.optimizer_step else (),
        rank.host,
    )


_SHIFTED = 0.01
"""Share of the steps whose weight update may differ between ranks: one may have died inside its last."""


def _shifted(ranks: Sequence[RankSteps]) -> bool:
    """Whether one index is not the same weight update on all ranks."""
    updates = [dict(zip(rank.index, rank.optimizer_step, strict=False)) for rank in ranks]
    known = [i for i in updates[0] if all(u.get(i) is not None for u in updates)]
    differ = sum(1 for i in known if any(u[i] != updates[0][i] for u in updates))
    return differ > max(1.0, _SHIFTED * len(known))


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
