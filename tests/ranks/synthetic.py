"""Ranks that train together, computed: what each does of its own is given, who waits where and how long follows."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stallmeter.ranks.steps import PHASES, RankSteps
from stallmeter.records import StepRecord

Own = Callable[[int, int], float]
"""Seconds that a rank spends in a bucket in a step: of step and rank."""

STARTED_S = 1.7e9
EXCHANGE_S = 0.001
"""What the exchange itself takes, for each rank."""


def always(seconds: float) -> Own:
    """Return the same for all."""
    return lambda step, rank: seconds


NOTHING = always(0.0)


def late(
    seconds: float, extra_s: float, ranks: Collection[int], every: int = 1, at: int = 0, slower: float = 1.0
) -> Own:
    """Return more for some ranks, each so-many-th step."""
    return lambda step, rank: seconds * slower + extra_s * (rank in ranks and step % every == at % every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the ranks run."""

    ranks: int = 2
    steps: int = 200
    own: Mapping[str, Own]
    """By bucket."""
    meets_in: Collection[str] = ("backward",)
    """Buckets in which each waits for all others, after its own work there."""
    accumulation: int = 1
    """They meet in each so-many-th step only."""
    epoch: int = 0
    """Steps of one; 0: there is one only."""
    between: Own = NOTHING
    """Seconds between two epochs."""
    startup: Own = NOTHING
    """Wait for the first batch of an epoch."""
    jitter_s: float = 0.0003
    """Standard deviation of what each spends of its own in each bucket."""
    offset_s: Mapping[int, float] = field(default_factory=dict)
    """By which the clocks of some ranks are ahead."""
    hosts: Sequence[str] = ()
    """Of each rank; by default they are not known."""
    seed: int = 0
    counts_updates: bool = True
    """Whether the weight update of each step is known."""
    tick_s: float = 0.0
    """To which Unix times are rounded: a recording keeps whole milliseconds."""
    order: Sequence[str] = PHASES
    """In which a rank comes through the buckets of a step."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What was recorded."""

    ranks: list[RankSteps]
    wall_s: float
    lost_s: float
    """What was waited for the last, by the middle one, where they met."""

    def of(self, keep: Callable[[int], bool]) -> list[RankSteps]:
        """Return the steps of these indices."""
        return [chosen(rank, keep) for rank in self.ranks]


def chosen(rank: RankSteps, keep: Callable[[int], bool]) -> RankSteps:
    """Return the steps of these indices."""
    at = [i for i, index in enumerate(rank.index) if keep(index)]
    return replace(
        rank,
        index=[rank.index[i] for i in at],
        ends_s=[rank.ends_s[i] for i in at],
        seconds={name: [values[i] for i in at] for name, values in rank.seconds.items()},
        optimizer_step=[rank.optimizer_step[i] for i in at],
        starts=[i for i in rank.starts if keep(i)],
    )


def train(program: Program) -> Trained:
    """Let them train."""
    draw = random.Random(program.seed)
    ranks = range(program.ranks)
    now, lost_s = [0.0] * program.ranks, 0.0
    rows: list[dict[str, list[float]]] = [{name: [] for name in program.order if _has(program, name)} for _ in ranks]
    ends: list[list[float]] = [[] for _ in ranks]
    for step in range(program.steps):
        first = step == 0 or (program.epoch > 0 and step % program.epoch == 0)
        if first and step:
            now = [now[rank] + program.between(step // program.epoch, rank) for rank in ranks]
        for name in rows[0]:
            before = list(now)
            for rank in ranks:
                own = program.own[name](step, rank) if name in program.own else 0.0
                if first and name == "worker_startup":
                    own += program.startup(step, rank)
                noise_s = draw.gauss(0.0, program.jitter_s)  # drawn in any case: so two programs have the same
                if own:
                    now[rank] += max(0.0, own + noise_s)
            if name in program.meets_in and (step + 1) % program.accumulation == 0:
                if step:
                    lost_s += max(now) - sorted(now)[(program.ranks - 1) // 2]
                now = [max(now) + EXCHANGE_S] * program.ranks
            for rank in ranks:
                rows[rank][name].append(now[rank] - before[rank])
        for rank in ranks:
            end_s = STARTED_S + now[rank] + program.offset_s.get(rank, 0.0)
            ends[rank].append(round(end_s / program.tick_s) * program.tick_s if program.tick_s else end_s)
    updates = [(step + 1) // program.accumulation if program.counts_updates else None for step in range(program.steps)]
    starts = list(range(0, program.steps, program.epoch or program.steps))
    found = [
        RankSteps(
            rank,
            list(range(program.steps)),
            ends[rank],
            rows[rank],
            updates,
            program.hosts[rank] if program.hosts else "",
            starts,
        )
        for rank in ranks
    ]
    return Trained(found, max(now), lost_s)


def _has(program: Program, name: str) -> bool:
    return name in program.own or name in program.meets_in or name == "worker_startup"


def records(steps: RankSteps) -> list[StepRecord]:
    """Return the same as records."""
    return [
        StepRecord(
            index=index,
            epoch=0,
            optimizer_step=steps.optimizer_step[at],
            tracker_step=index,
            samples=8,
            time_s=steps.ends_s[at],
            total_s=sum(values[at] for values in steps.seconds.values()),
            epoch_start=index in steps.starts,
            **{"data_wait_s": 0.0} | {f"{name}_s": values[at] for name, values in steps.seconds.items()},
        )
        for at, index in enumerate(steps.index)
    ]
