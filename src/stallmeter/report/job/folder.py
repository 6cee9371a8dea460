"""The report of a whole job, from its recording."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ...errors import RecordingError
from ...ranks.job import read_job
from ...recording import ranks
from ...records.diagnosis import Verdict
from ...rules.evaluation import diagnose
from ...rules.job.evaluation import judge
from ..model import History, Report, read_history
from .model import job_report

MOST_JUDGED = 16
"""Ranks that are judged anew where they recorded no verdict at their end; of more the recorded ones count."""


def report_of_job(history: History, own: Verdict | None = None) -> Report | None:
    """Return the report of a job of several ranks, with one of them in detail; None for a run of one rank.

    Args:
        history: Of the rank to show in detail.
        own: Its own verdict; by default the recorded one, or today's where it has none of its end.

    Raises:
        RecordingError: A recording is damaged.
        OSError: The files cannot be read.
    """
    known = ranks(history.folder)
    if len(known) < 2 and history.header.world_size < 2:
        return None
    verdicts = {history.header.rank: own or _verdict(history)}
    for rank in known if len(known) <= MOST_JUDGED else ():
        if rank not in verdicts:
            with suppress(RecordingError):  # one that has measured nothing yet says nothing
                verdicts[rank] = _verdict(read_history(history.folder, rank))
    job = read_job(history.folder, verdicts=verdicts)
    judged = judge(job)
    return replace(history.report(judged.verdict), job=job_report(job, judged))


def _verdict(history: History) -> Verdict:
    if history.settled and history.verdict is not None:
        return history.verdict
    return history.guarded(diagnose)
