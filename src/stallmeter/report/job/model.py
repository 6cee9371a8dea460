"""A job of several ranks, as reports show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...ranks.job import Job, RankView
from ...ranks.merge import Merged
from ...ranks.steps import RankSteps
from ...ranks.walk import Meeting
from ...rules.job.evaluation import JobVerdict
from ...rules.job.losses import Loss, waited_by_rank
from ...rules.job.words import of_ranks, work_of
from .. import wording
from .endings import broken_lines, unheard_lines

BINS = 48
"""Columns of the heat map."""

SLOWEST = 5
"""Steps that are shown with all their ranks."""

MOST_ROWS = 64
"""Ranks that a heat map and a table list; of more, those that were waited for the most."""

MOST_BESIDE = 8
"""Ranks that one slow step is shown with; of more, the late one and others spread evenly from the longest on."""

MOST_LINES = 3
"""Lines that say who waits for whom."""

TOLD_SHARE = 0.01
"""A loss below this share of the training time is not told in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank. None is: not known."""

    rank: int
    host: str
    pid: int
    steps: int
    wall_s: float | None
    ledger: Mapping[str, float]
    """Seconds by bucket."""
    step_time_s: float | None
    """Mean of the steps that all ranks have."""
    own_s: float | None
    """Of that, not waited for others: after so long it arrives."""
    waited_s: float | None
    """Waited for others, of the whole run."""
    data_wait_s: float | None
    """Waited for data, of the whole run."""
    late_s: float | None
    """How long the others waited for it, of the whole run."""
    facts: Mapping[str, float]
    """Medians of its hardware, by words with a unit."""
    primary: str | None
    """Rule that is the primary cause by this rank's own records."""
    summary: str | None
    """What that one says."""
    ended: str | None
    died: bool
    """Whether its process was gone without a word, while others went on."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One step in which was waited for long, with its ranks."""

    index: int
    loss_s: float
    late: int
    bucket: str
    seconds: Mapping[int, Mapping[str, float]]
    """By rank and bucket."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Who was waited for, when."""

    ranks: tuple[int, ...]
    begins: tuple[int, ...]
    """Index of the first step of each piece of the run; all pieces have as many steps."""
    last: int
    """Index of the last step."""
    piece_s: float
    """Time of the steps in a piece."""
    seconds: tuple[tuple[float, ...], ...]
    """By rank, then by piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What is shown beside the report of one rank."""

    world_size: int
    rows: tuple[RankRow, ...]
    missing: tuple[int, ...]
    """Ranks of which nothing is known."""
    steps: int
    """Steps that all ranks have recorded."""
    training_s: float
    """Wall time without the start, of the longest rank."""
    lost_s: float
    lost_rank_s: float
    """The same, times the ranks."""
    lost_gpu_s: float | None
    """The same once more, where the ranks have GPUs; None where none is known."""
    slowdown: float | None
    why_not: str
    """Why it was not judged who waits for whom; empty where it was."""
    broken: tuple[str, ...]
    """What ended or holds up the job: ranks that died, ended first or stand, with their last step."""
    unheard: tuple[str, ...]
    """Ranks that sent no last word, and those of which nothing is known."""
    who_waits: tuple[str, ...]
    """Up to three lines."""
    has_late_ranks: bool
    """Whether others wait for some of the ranks: work that may be theirs to do."""
    heat: HeatMap | None
    slowest: tuple[SlowStep, ...]

    @property
    def silent(self) -> tuple[str, ...]:
        """Both together."""
        return (*self.broken, *self.unheard)


def job_report(job: Job, verdict: JobVerdict) -> JobReport:
    """Return what is shown of a job."""
    merged = job.merged
    return JobReport(
        world_size=job.world_size,
        rows=_rows(job, verdict),
        missing=job.missing,
        steps=0 if merged is None else merged.steps,
        training_s=job.training_s,
        lost_s=verdict.lost_s,
        lost_rank_s=verdict.lost_rank_s,
        lost_gpu_s=verdict.lost_gpu_s,
        slowdown=verdict.slowdown,
        why_not=verdict.why_not,
        broken=tuple(broken_lines(job)),
        unheard=tuple(unheard_lines(job)),
        who_waits=tuple(_who_waits(job, verdict))[:MOST_LINES],
        has_late_ranks=any(loss.ranks for loss in verdict.losses if loss.share >= TOLD_SHARE),
        heat=_heat(job, verdict),
        slowest=()
        if merged is None or not _is_worth_drawing(merged)
        else _slowest(merged, [view.steps for view in job.ranks]),
    )


def _rows(job: Job, verdict: JobVerdict) -> tuple[RankRow, ...]:
    died = {view.rank for view in job.died}
    waits_s = {} if verdict.why_not else waited_by_rank(job, verdict.losses)
    return tuple(_row(v, job, verdict, waits_s.get(v.rank), died=v.rank in died) for v in job.ranks)


def _row(view: RankView, job: Job, verdict: JobVerdict, waited_s: float | None, *, died: bool) -> RankRow:
    ledger, primary = view.ledger, view.verdict.primary if view.verdict is not None else None
    own = None if job.merged is None else job.merged.own_s.get(view.rank)
    step_time_s = own_s = late_s = None
    if job.merged is not None and own is not None:
        own_s, waited = sum(own.values()), job.merged.waited_s.get(view.rank, 0.0)
        step_time_s = own_s + waited / job.merged.steps
        if waited_s is not None:
            # What the collectives alone show lies in the rank's own buckets.
            own_s = max(0.0, step_time_s - waited_s / job.merged.scale / job.merged.steps)
            late_s = _late_s(view.rank, job, verdict)
    return RankRow(
        rank=view.rank,
        host=view.header.host,
        pid=view.header.pid,
        steps=0 if ledger is None else ledger.steps,
        wall_s=None if ledger is None else ledger.wall_s,
        ledger={} if ledger is None else dict(ledger.buckets),
        step_time_s=step_time_s,
        own_s=own_s,
        waited_s=waited_s,
        data_wait_s=None if ledger is None else ledger.buckets.get("data_wait"),
        late_s=late_s,
        facts=dict(view.facts),
        primary=None if primary is None else primary.rule,
        summary=None if primary is None else primary.summary,
        ended=view.ended,
        died=died,
    )


def _late_s(rank: int, job: Job, verdict: JobVerdict) -> float:
    """Return how long the others waited for a rank: what the collectives showed is in the losses alone."""
    merged = job.merged
    seen_s = 0.0
    if merged is not None and merged.is_together and merged.total_s:
        seen_s = merged.lost_by(rank) * merged.scale
    return max(seen_s, sum(loss.lost_s for loss in verdict.losses if loss.ranks == (rank,)))


def _who_waits(job: Job, verdict: JobVerdict) -> list[str]:
    lines = [_waits(loss, job) for loss in verdict.losses[:2] if loss.share >= TOLD_SHARE]
    if not lines and not verdict.why_not:
        lines.append("No rank waits long for another.")
    return lines


def _waits(loss: Loss, job: Job) -> str:
    late, each = work_of(loss), wording.seconds(loss.per_step_s)
    share = f"{each} in a mean step, {wording.percent(100 * loss.share)} of the training time"
    share += f" (seen by {loss.seen_by})" if loss.from_collectives else ""
    if not loss.ranks:
        return f"The ranks wait for each other in turn, for the last one and {late}: {share}."
    others = sorted(set(range(job.world_size)) - set(loss.ranks))
    who = f"Rank {others[0]} waits" if len(others) == 1 else "The others wait"
    return f"{who} for {of_ranks(loss.ranks)}, late with {late}: {share}."


def _is_worth_drawing(merged: Merged) -> bool:
    """Whether the ledgers show waits; less is noise, and what the collectives alone show is not in them."""
    return merged.is_together and merged.loss_share >= TOLD_SHARE


def _heat(job: Job, verdict: JobVerdict) -> HeatMap | None:
    """Return who was waited for, by what has seen most of it: the ledgers, or the collectives of some steps."""
    merged, exchanges = job.merged, job.exchanges
    if merged is None:
        return None
    largest = next(iter(verdict.losses), None)
    if largest is not None and largest.from_collectives and exchanges is not None and exchanges.waited_s:
        steps = sorted(exchanges.steps)
        places = {index: at for at, index in enumerate(steps)}
        waits = [
            (places[i], rank, s) for i, late in exchanges.waited_s.items() if i in places for rank, s in late.items()
        ]
        return _binned(merged.ranks, steps, waits, exchanges.total_s)
    if not _is_worth_drawing(merged):
        return None
    waits = [(meeting.index - merged.first_index, meeting.rank, meeting.loss_s) for meeting in merged.meetings]
    return _binned(merged.ranks, range(merged.first_index, merged.last_index + 1), waits, merged.total_s)


def _binned(
    ranks: Sequence[int], steps: Sequence[int], waits: Iterable[tuple[int, int, float]], total_s: float
) -> HeatMap:
    """Return waits, each with the place of its step, as seconds by rank and piece of the run."""
    bins = min(BINS, len(steps))
    seconds: defaultdict[int, list[float]] = defaultdict(lambda: [0.0] * bins)
    for at, rank, waited_s in waits:
        seconds[rank][min(bins - 1, max(0, at) * bins // len(steps))] += waited_s
    most = sorted(sorted(ranks, key=lambda rank: -sum(seconds[rank]))[:MOST_ROWS])
    begins = tuple(steps[-(-piece * len(steps) // bins)] for piece in range(bins))
    return HeatMap(tuple(most), begins, steps[-1], total_s / bins, tuple(tuple(seconds[rank]) for rank in most))


def _slowest(merged: Merged, steps: Sequence[RankSteps]) -> tuple[SlowStep, ...]:
    worst: dict[int, Meeting] = {}
    for meeting in sorted(merged.meetings, key=lambda m: -m.loss_s):
        if len(worst) >= SLOWEST:
            break
        worst.setdefault(meeting.index, meeting)
    found = []
    for index, meeting in worst.items():
        seconds = {}
        for rank in steps:
            numbers = rank.optimizer_step if merged.by_update else rank.index
            if at := [i for i, number in enumerate(numbers) if number == index]:
                parts = {name: sum(values[i] for i in at) for name, values in rank.seconds.items()}
                seconds[rank.rank] = {name: s for name, s in parts.items() if s > 0}
        shown = _beside(seconds, meeting.rank)
        found.append(SlowStep(index, meeting.loss_s, meeting.rank, meeting.bucket, shown))
    return tuple(found)


def _beside(seconds: dict[int, dict[str, float]], late: int) -> dict[int, dict[str, float]]:
    """Return the late rank and some others, where there are too many to compare with the eye."""
    if len(seconds) <= MOST_BESIDE:
        return seconds
    others = sorted((rank for rank in seconds if rank != late), key=lambda rank: -sum(seconds[rank].values()))
    chosen = {others[i * (len(others) - 1) // (MOST_BESIDE - 2)] for i in range(MOST_BESIDE - 1)}
    return {rank: parts for rank, parts in seconds.items() if rank == late or rank in chosen}
