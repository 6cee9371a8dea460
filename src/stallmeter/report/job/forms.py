"""The ranks of a job as tables: for text, Markdown, JSON and the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import wording
from ..table import Table
from .model import MOST_ROWS, JobReport, RankRow, SlowStep

SHORT = 16
"""Ranks that a table in a text lists."""

BRIEF = 8
"""Ranks that a table in a note lists."""

STRONG = 0.2
"""Part of the time that was waited for a rank, from which on a cell of the heat map may have its full colour."""

_HOST_LIMIT = 24
_HOURS_FROM_S = 7200.0


def headline(job: JobReport) -> str:
    """Return in one line what the job loses to all causes together; the verdict has the loss to the first of them."""
    if not job.lost_s:
        return f"{job.world_size} ranks: {'no loss was found' if not job.why_not else 'not judged as one job'}."
    lost = f"{wording.seconds(job.lost_s)} on each of {job.world_size} ranks"
    whole = f"All losses of the job: {lost}, {_together(job)} together"
    # Two runs of one program differ by more than that.
    if job.slowdown is None or job.slowdown < 1.01:
        return f"{whole}."
    # Work that is shared out anew has to be done by another rank: less is won than what is waited for.
    less = " Less is won where another rank has to do the work instead." if job.has_late_ranks else ""
    return f"{whole}, {100.0 * (1.0 - 1.0 / job.slowdown):.0f} % of the training time.{less}"


def _together(job: JobReport) -> str:
    seconds, what = (job.lost_rank_s, "rank") if job.lost_gpu_s is None else (job.lost_gpu_s, "GPU")
    if seconds >= _HOURS_FROM_S:
        return f"{wording.significant(seconds / 3600)} {what}-hours"
    return f"{wording.significant(seconds)} {what}-seconds"


def remarks(job: JobReport, most: int = MOST_ROWS) -> Iterator[str]:
    """Yield what is neither in the table nor above the verdict, where a job that broke is told first.

    Args:
        job: All ranks.
        most: Rows of the table.
    """
    yield from job.unheard
    yield from job.who_waits
    if job.why_not:
        yield f"Who waits for whom was not judged: {job.why_not}."
    if len(job.rows) > most:
        left = len(job.rows) - most
        who = (
            "1 more rank is not listed, which was"
            if left == 1
            else f"{left} more ranks are not listed, those that were"
        )
        yield f"{who} waited for the least."


def rank_table(job: JobReport, most: int = MOST_ROWS) -> Table:
    """Return a row for each rank, the most waited for where there are too many.

    Args:
        job: All ranks.
        most: Rows at most.
    """
    rows = sorted(job.rows, key=lambda row: (-(row.late_s or 0.0), row.rank))[:most]
    hosts = {row.host for row in job.rows}
    place = ("host",) if len(hosts) > 1 else ()
    head = ("Rank", *place, "own time", "waits for others", "for data", "waited for", "by its own records")
    return Table(
        head,
        tuple(_row(row, job, with_host=bool(place)) for row in sorted(rows, key=lambda row: row.rank)),
        words=frozenset({len(head) - 1, *((1,) if place else ())}),
        title="Own time of a mean step, and shares of the training time",
    )


def _row(row: RankRow, job: JobReport, *, with_host: bool) -> tuple[str, ...]:
    def share(seconds: float | None) -> str:
        return wording.percent(None if seconds is None or not job.training_s else 100 * seconds / job.training_s)

    return (
        str(row.rank),
        *((wording.one_line(row.host, _HOST_LIMIT) or wording.ABSENT,) if with_host else ()),
        wording.seconds(row.own_s),
        share(row.waited_s),
        share(row.data_wait_s),
        share(row.late_s),
        "died" if row.died else wording.one_line(row.primary or wording.ABSENT, wording.NAME_LIMIT),
    )


def step_table(job: JobReport, most: int = MOST_ROWS) -> Table | None:
    """Return the steps in which was waited the longest, the ranks of each beneath each other.

    Args:
        job: All ranks.
        most: Rows at most, where they hold one step.
    """
    if not job.slowest:
        return None
    rows = []
    for step in job.slowest[: max(1, most // max(1, len(job.slowest[0].seconds)))]:
        for rank, seconds in sorted(step.seconds.items()):
            largest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
            parts = ", ".join(f"{wording.label(name)} {wording.seconds(s)}" for name, s in largest)
            late = _said_late(step, seconds) if rank == step.late else ""
            rows.append((f"{step.index:,}", str(rank), wording.seconds(sum(seconds.values())), late, parts))
    head = ("Step", "rank", "took", "", "of that")
    return Table(head, tuple(rows), words=frozenset({3, 4}), title="The steps in which was waited the longest")


def _said_late(step: SlowStep, seconds: Mapping[str, float]) -> str:
    """Say how late the late rank was and why: what made it late may lie at the end of the step before."""
    before = "" if seconds.get(step.bucket, 0.0) >= step.loss_s / 2.0 else " before it"
    return f"{wording.seconds(step.loss_s)} late: {wording.label(step.bucket)}{before}"


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One rank in the page's heat map."""

    rank: int
    cells: tuple[tuple[int, str], ...]
    """Strength in percent of the strongest, and what a reader is told."""


@dataclass(frozen=True, slots=True)
class Heat:
    """The page's heat map of who was waited for, by rank and time."""

    rows: tuple[HeatRow, ...]
    first: str
    last: str
    """Steps at its ends."""
    most: str
    """What the strongest cell stands for."""


def heat_of(job: JobReport) -> Heat | None:
    """Return the heat map; None where nobody was waited for."""
    heat = job.heat
    most = max((s for row in heat.seconds for s in row), default=0.0) if heat is not None else 0.0
    if heat is None or most <= 0:
        return None
    # What is little everywhere stays pale.
    strongest = max(most, STRONG * heat.piece_s)
    ends = [*(begin - 1 for begin in heat.begins[1:]), heat.last]
    rows = []
    for rank, seconds in zip(heat.ranks, heat.seconds, strict=True):
        cells = []
        for begin, end, s in zip(heat.begins, ends, seconds, strict=True):
            said = f"rank {rank}, steps {begin:,} to {end:,}: {wording.seconds(s)} waited for it"
            cells.append((round(100 * s / strongest), said))
        rows.append(HeatRow(rank, tuple(cells)))
    return Heat(tuple(rows), f"step {heat.begins[0]:,}", f"step {heat.last:,}", wording.seconds(most))


def job_to_json(job: JobReport) -> dict[str, Any]:
    """Return it as plain objects."""
    return {
        "world_size": job.world_size,
        "steps": job.steps,
        "training_s": job.training_s,
        "lost_s": job.lost_s,
        "lost_rank_s": job.lost_rank_s,
        "lost_gpu_s": job.lost_gpu_s,
        "slowdown": job.slowdown,
        "why_not": job.why_not or None,
        "missing": list(job.missing),
        "silent": list(job.silent),
        "who_waits": list(job.who_waits),
        "heat": None if job.heat is None else dataclasses.asdict(job.heat),
        "slowest_steps": [dataclasses.asdict(step) for step in job.slowest],
    }


def ranks_to_json(job: JobReport) -> list[dict[str, Any]]:
    """Return one object for each rank."""
    return [dataclasses.asdict(row) for row in job.rows]
