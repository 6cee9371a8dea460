"""A job of several ranks, as reports show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ranks.job import Job, RankView
from ...ranks.merge import Merged
from ...ranks.steps import RankSteps
from ...ranks.walk import Meeting
from ...rules.job.evaluation import JobVerdict
from ...rules.job.words import named, of_ranks
from .. import wording

BINS = 48
"""Columns of the heat map."""

SLOWEST = 5
"""Steps that are shown with all their ranks."""

MOST_ROWS = 64
"""Ranks that a heat map and a table list; of more, those that were waited for the most."""

MOST_BESIDE = 8
"""Ranks that one slow step is shown with; of more, the late one and others spread evenly from the longest on."""


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
    """Of that, not waited for others."""
    waited_s: float | None
    """Waited for others, of the whole run."""
    data_wait_s: float | None
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
    """Whether it fell silent while others went on."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One step that was waited for long, with all its ranks."""

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
    first: int
    last: int
    """Indices of the first and last step."""
    seconds: tuple[tuple[float, ...], ...]
    """By rank, then by piece of the run, all of which have as many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What is shown beside the report of one rank."""

    world_size: int
    rows: tuple[RankRow, ...]
    missing: tuple[int, ...]
    steps: int
    """Steps that all ranks have recorded."""
    lost_s: float
    lost_gpu_s: float
    slowdown: float | None
    why_not: str
    who_waits: tuple[str, ...]
    """Up to three lines."""
    heat: HeatMap | None
    slowest: tuple[SlowStep, ...]


def job_report(job: Job, verdict: JobVerdict) -> JobReport:
    """Return what is shown of a job."""
    merged = job.merged
    return JobReport(
        world_size=job.world_size,
        rows=_rows(job, verdict),
        missing=job.missing,
        steps=0 if merged is None else merged.steps,
        lost_s=verdict.lost_s,
        lost_gpu_s=verdict.lost_gpu_s,
        slowdown=verdict.slowdown,
        why_not=verdict.why_not,
        who_waits=tuple(_who_waits(job, verdict))[:3],
        heat=None if merged is None else _heat(merged),
        slowest=() if merged is None else _slowest(merged, [view.steps for view in job.ranks]),
    )


def _rows(job: Job, verdict: JobVerdict) -> tuple[RankRow, ...]:
    died = {view.rank for view in job.died}
    return tuple(_row(view, job, verdict, died=view.rank in died) for view in job.ranks)


def _row(view: RankView, job: Job, verdict: JobVerdict, *, died: bool) -> RankRow:
    merged, ledger = job.merged, view.ledger
    own = None if merged is None else merged.own_s.get(view.rank)
    scale = job.training_s / merged.total_s if merged is not None and merged.total_s else 0.0
    waited_s = None if merged is None or own is None else scale * merged.waited_s.get(view.rank, 0.0)
    late_s = None
    if merged is not None and own is not None:
        late_s = sum(loss.lost_s for loss in verdict.losses if loss.ranks == (view.rank,)) or scale * merged.lost_by(
            view.rank
        )
    own_s = None if own is None else sum(own.values())
    primary = view.verdict.primary if view.verdict is not None else None
    return RankRow(
        rank=view.rank,
        host=view.header.host,
        pid=view.header.pid,
        steps=0 if ledger is None else ledger.steps,
        wall_s=None if ledger is None else ledger.wall_s,
        ledger={} if ledger is None else dict(ledger.buckets),
        step_time_s=None
        if merged is None or own_s is None
        else own_s + merged.waited_s.get(view.rank, 0.0) / merged.steps,
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


def _who_waits(job: Job, verdict: JobVerdict) -> list[str]:
    lines = []
    for loss in verdict.losses[:2]:
        if loss.share < 0.01:
            continue
        who = f"for {of_ranks(loss.ranks)}" if loss.ranks else "for another rank each time"
        work = named(max(loss.parts, key=lambda bucket: loss.parts[bucket], default=loss.bucket))
        share = wording.percent(100 * loss.share)
        each = wording.seconds(loss.per_step_s)
        lines.append(f"{share} of the time is waited {who}, late with {work}: {each} in a mean step.")
    for dead in job.died:
        steps = 0 if dead.ledger is None else dead.ledger.steps
        lines.insert(0, f"Rank {dead.rank} fell silent after step {steps:,}, while others went on.")
    if job.missing:
        lines.append(f"Nothing is known of {of_ranks(job.missing)}.")
    if not lines:
        lines.append("No rank waits long for another." if not verdict.why_not else f"Not judged: {verdict.why_not}.")
    return lines


def _heat(merged: Merged) -> HeatMap | None:
    if not merged.meetings:
        return None
    span = max(1, merged.last_index - merged.first_index + 1)
    bins = min(BINS, span)
    seconds: defaultdict[int, list[float]] = defaultdict(lambda: [0.0] * bins)
    for meeting in merged.meetings:
        seconds[meeting.rank][min(bins - 1, (meeting.index - merged.first_index) * bins // span)] += meeting.loss_s
    most = sorted(sorted(merged.ranks, key=lambda rank: -sum(seconds[rank]))[:MOST_ROWS])
    return HeatMap(tuple(most), merged.first_index, merged.last_index, tuple(tuple(seconds[rank]) for rank in most))


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
            if index in rank.index:
                at = rank.index.index(index)
                seconds[rank.rank] = {name: values[at] for name, values in rank.seconds.items() if values[at] > 0}
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
