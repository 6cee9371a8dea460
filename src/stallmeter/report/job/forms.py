"""The ranks of a job as tables: for text, Markdown, JSON and the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import wording
from ..table import Table
from .model import MOST_ROWS, JobReport, RankRow

_HEAD = ("Rank", "host", "step", "own time", "waits for others", "waits for data", "others waited for it", "by itself")


def headline(job: JobReport) -> str:
    """Return the loss of the job in one line."""
    if not job.lost_s:
        return f"{job.world_size} ranks; no loss was found."
    slow = "" if job.slowdown is None else f"; {wording.significant(job.slowdown)} times the time of ranks without it"
    return (
        f"{wording.seconds(job.lost_s)} lost by all {job.world_size} ranks, "
        f"{wording.seconds(job.lost_gpu_s)} of accelerators{slow}."
    )


def remarks(job: JobReport) -> Iterator[str]:
    """Yield what is not in the table."""
    yield from job.silent
    yield from job.who_waits
    if job.why_not and not any(job.why_not in line for line in job.who_waits):
        yield f"Who waits for whom was not judged: {job.why_not}."
    if len(job.rows) > MOST_ROWS:
        yield f"{len(job.rows) - MOST_ROWS} more ranks are not listed."


def rank_table(job: JobReport) -> Table:
    """Return a row for each rank, the most waited for first where there are too many."""
    rows = sorted(job.rows, key=lambda row: -(row.late_s or 0.0))[:MOST_ROWS] if len(job.rows) > MOST_ROWS else job.rows
    return Table(_HEAD, tuple(_row(row) for row in sorted(rows, key=lambda row: row.rank)), numeric=True)


def _row(row: RankRow) -> tuple[str, ...]:
    state = "died" if row.died else (row.primary or wording.ABSENT)
    return (
        str(row.rank),
        wording.one_line(row.host, 24) or wording.ABSENT,
        wording.seconds(row.step_time_s),
        wording.seconds(row.own_s),
        wording.seconds(row.waited_s),
        wording.seconds(row.data_wait_s),
        wording.seconds(row.late_s),
        state,
    )


def step_table(job: JobReport) -> Table | None:
    """Return the slowest steps, all ranks of each beneath each other."""
    if not job.slowest:
        return None
    rows = []
    for step in job.slowest:
        for rank, seconds in sorted(step.seconds.items()):
            largest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
            parts = ", ".join(f"{wording.label(name)} {wording.seconds(s)}" for name, s in largest)
            late = "late" if rank == step.late else ""
            rows.append((f"{step.index:,}", str(rank), wording.seconds(sum(seconds.values())), late, parts))
    return Table(("Step", "rank", "took", "", "of that"), tuple(rows), numeric=False)


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One rank in the page's heat map."""

    rank: int
    cells: tuple[tuple[int, str], ...]
    """Strength in percent of the strongest, and what a reader is told."""


def heat_rows(job: JobReport) -> list[HeatRow]:
    """Return the heat map of who was waited for, by rank and time."""
    heat = job.heat
    if heat is None:
        return []
    most = max((s for row in heat.seconds for s in row), default=0.0)
    pieces = max(1, len(heat.seconds[0]) if heat.seconds else 1)
    span = heat.last - heat.first + 1
    rows = []
    for rank, seconds in zip(heat.ranks, heat.seconds, strict=True):
        cells = []
        for piece, s in enumerate(seconds):
            begin = heat.first + piece * span // pieces
            said = f"rank {rank}, from step {begin:,}: {wording.seconds(s)} waited for it"
            cells.append((round(100 * s / most) if most else 0, said))
        rows.append(HeatRow(rank, tuple(cells)))
    return rows


def job_to_json(job: JobReport) -> dict[str, Any]:
    """Return it as plain objects."""
    return {
        "world_size": job.world_size,
        "steps": job.steps,
        "lost_s": job.lost_s,
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
