"""The report of a whole job, from its recording."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from ...errors import RecordingError
from ...ranks.job import Job, RankView, read_job
from ...recording import ranks
from ...records.diagnosis import Verdict
from ...rules.evaluation import diagnose
from ...rules.job.evaluation import JobVerdict, alone, judge
from ..model import History, Report, read_history
from .model import job_report

MOST_JUDGED = 16
"""Ranks that are judged anew where they recorded no verdict at their end, those that the others waited for first."""


def is_job(history: History) -> bool:
    """Whether a recording is of a job of several ranks, however many of them it holds."""
    return history.header.world_size > 1 or len(ranks(history.folder)) > 1


def report_of_job(history: History, own: Verdict | None = None) -> Report | None:
    """Return the report of a job of several ranks, with one of them in detail; None for a run of one rank.

    Args:
        history: Of the rank to show in detail.
        own: Its own verdict; by default the recorded one, or today's where it has none of its end.

    Raises:
        RecordingError: A recording is damaged.
        OSError: The files cannot be read.
    """
    if not is_job(history):
        return None
    job = read_job(history.folder, verdicts={history.header.rank: own or _verdict(history)})
    unsettled = [view for view in job.ranks if view.rank != history.header.rank and not _is_settled(view)]
    job = _judged_anew(history, job, _most_waited_for(job, unsettled)[:MOST_JUDGED])
    return shown(history, job, judge(job))


def report_of_one(history: History) -> Report:
    """Return the report of one rank by itself, which cannot tell its waits for other ranks from its work.

    Args:
        history: Of the rank.

    Raises:
        RecordingError: The recording holds values of a wrong type.
    """
    return history.report(alone(_verdict(history), history.header.world_size))


def shown(history: History, job: Job, judged: JobVerdict) -> Report:
    """Return the report of a job that was judged, with one rank in detail."""
    return replace(history.report(judged.verdict), job=job_report(job, judged))


def job_today(history: History) -> tuple[Job, Job]:
    """Return a job with the verdicts that its ranks recorded, and with those of today's rules.

    Args:
        history: Of one rank.

    Raises:
        RecordingError: A recording is damaged.
        OSError: The files cannot be read.
    """
    recorded = read_job(history.folder)
    return recorded, _judged_anew(history, recorded, _most_waited_for(recorded, recorded.ranks)[:MOST_JUDGED])


def _judged_anew(history: History, job: Job, views: Iterable[RankView]) -> Job:
    """Return a job with today's verdict of some of its ranks."""
    found: dict[int, Verdict] = {}
    for view in views:
        if view.rank == history.header.rank:
            found[view.rank] = history.guarded(diagnose)
        else:
            with suppress(RecordingError):  # one that has measured nothing yet says nothing
                found[view.rank] = read_history(history.folder, view.rank).guarded(diagnose)
    if not found:
        return job
    return replace(job, ranks=tuple(replace(v, verdict=found.get(v.rank, v.verdict)) for v in job.ranks))


def _most_waited_for(job: Job, views: Iterable[RankView]) -> list[RankView]:
    merged = job.merged
    return sorted(views, key=lambda view: (0.0 if merged is None else -merged.lost_by(view.rank), view.rank))


def _is_settled(view: RankView) -> bool:
    return view.verdict is not None and view.ended is not None


def _verdict(history: History) -> Verdict:
    if history.settled and history.verdict is not None:
        return history.verdict
    return history.guarded(diagnose)
