"""A job's report from its recording: which verdicts count, and what a damaged or missing rank costs."""

from __future__ import annotations

import json

import pytest

from stallmeter.records.diagnosis import Verdict
from stallmeter.report.files import write_summaries
from stallmeter.report.job.folder import is_job, job_today, report_of_job, report_of_one
from stallmeter.report.model import read_history

from ...rules.job.jobs import Known, compute_bound, diagnosis, late
from ..recordings import complete_run, write
from .folders import write_job

SLOW = late(1, "data_wait", 0.02)
KNOWN = {0: Known([compute_bound()]), 1: Known([diagnosis("fetch-stall", 4.0)])}


def test_one_rank_is_no_job(tmp_path):
    """Its report is its own."""
    history = read_history(write(tmp_path, complete_run()))
    assert not is_job(history)
    assert report_of_job(history) is None
    assert report_of_one(history).verdict == history.verdict


def test_the_recorded_verdicts_count(tmp_path):
    """Of ranks that ended: what they said then is not asked again."""
    report = report_of_job(read_history(write_job(tmp_path, SLOW, known=KNOWN)))
    assert (report.verdict.primary.rule, report.verdict.primary.ranks) == ("fetch-stall", (1,))
    assert report.header.rank == 0
    assert report.job.rows[1].primary == "fetch-stall"
    assert report.ranks == (0, 1)


def test_a_rank_that_never_ended_is_asked_again(tmp_path):
    """Its last recorded verdict may be an old one; today's rules see all of it."""
    known = KNOWN | {1: Known([diagnosis("slow-callback", 1.0)], ended=None)}
    report = report_of_job(read_history(write_job(tmp_path, late(1, "data_wait", 0.05), steps=300, known=known)))
    assert report.verdict.primary.ranks == (1,)
    assert report.job.rows[1].primary != "slow-callback"


def test_an_own_verdict(tmp_path):
    """The caller may know better what the detailed rank says."""
    own = diagnosis("slow-start", 0.9)
    history = read_history(write_job(tmp_path, known=KNOWN))
    report = report_of_job(history, Verdict(primary=own, diagnoses=(own,)))
    assert report.job.rows[0].primary == "slow-start"


def test_one_rank_of_a_job(tmp_path):
    """By itself it cannot say that nothing is wrong; what it has found it says."""
    folder = write_job(tmp_path, SLOW, known=KNOWN)
    assert report_of_one(read_history(folder, 0)).verdict.primary is None
    assert report_of_one(read_history(folder, 0)).job is None
    assert report_of_one(read_history(folder, 1)).verdict.primary.rule == "fetch-stall"


def test_one_recording_of_a_job(tmp_path):
    """Ranks on other machines may have written elsewhere: it says so."""
    report = report_of_job(read_history(write_job(tmp_path, SLOW, known=KNOWN, only=(1,)), 1))
    assert report.job.why_not == "only rank 1 of 2 is known"
    assert report.job.missing == (0,)
    assert report.verdict.primary.ranks == (1,)


def test_a_rank_that_recorded_nothing_yet(tmp_path):
    """Its header is there, and no more."""
    folder = write_job(tmp_path, SLOW, ranks=3, known=KNOWN, only=(0, 1))
    write(folder, [], rank=2, world_size=3)
    report = report_of_job(read_history(folder))
    assert report.verdict.primary.ranks == (1,)
    assert [row.steps for row in report.job.rows] == [200, 200, 0]


def test_a_damaged_rank_is_left_out(tmp_path):
    """Of a file without a header nothing is known."""
    folder = write_job(tmp_path, SLOW, ranks=3, known=KNOWN, only=(0, 1))
    (folder / "rank2.0000.jsonl").write_text("nothing\n")
    report = report_of_job(read_history(folder))
    assert report.job.missing == (2,)
    assert report.verdict.primary.ranks == (1,)


def test_today(tmp_path):
    """The job with the recorded verdicts, and with today's."""
    folder = write_job(tmp_path, late(1, "data_wait", 0.05), steps=300, known=KNOWN)
    recorded, today = job_today(read_history(folder))
    assert [view.verdict.primary.rule for view in recorded.ranks] == ["compute-bound", "fetch-stall"]
    assert today.ranks[1].verdict is not None
    assert today.ranks[1].verdict != recorded.ranks[1].verdict
    assert today.merged == recorded.merged


@pytest.mark.parametrize("known", [KNOWN, {}])
def test_files(tmp_path, known):
    """Beside the usual ones rank 0 has one with all ranks, for trackers."""
    folder = write_job(tmp_path, SLOW, known=known)
    report = report_of_job(read_history(folder))
    written = write_summaries(folder, 0, report)
    assert set(written) == {"report.md", "diagnosis.json", "ranks.json"}
    document = json.loads(written["ranks.json"].read_text())
    assert [row["rank"] for row in document["ranks"]] == [0, 1]
    assert document["job"]["world_size"] == 2
