"""The ranks of a job in text, Markdown, JSON and in a note."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.report import markdown, wording
from stallmeter.report.job import forms
from stallmeter.report.job.folder import report_of_job
from stallmeter.report.job.model import job_report
from stallmeter.report.json import job_document, to_json
from stallmeter.report.model import read_history
from stallmeter.report.page.html import to_html
from stallmeter.report.text import to_text
from stallmeter.rules.job.evaluation import judge

from ...rules.job.jobs import Known, compute_bound, diagnosis, job, late
from ..recordings import HOSTILE
from .folders import write_job

BUSY = Known(facts={"GPU busy, %": 90.0})


def shown(made):
    return job_report(made, judge(made))


def report_of(folder):
    report = report_of_job(read_history(folder))
    assert report is not None
    return report


@pytest.fixture(scope="module")
def slow_data(tmp_path_factory):
    """Two ranks, of which the second waits for data."""
    known = {0: Known([compute_bound()]), 1: Known([diagnosis("fetch-stall", 4.0)])}
    return report_of(write_job(tmp_path_factory.mktemp("slow"), late(1, "data_wait", 0.02), known=known))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """64 ranks on 8 hosts, of which the 38th is slow."""
    known = {rank: Known([compute_bound()], host=f"node{rank // 8}") for rank in range(64)}
    folder = tmp_path_factory.mktemp("many")
    return report_of(write_job(folder, late(37, "forward", 0.02), ranks=64, steps=40, known=known))


def test_a_job_that_broke_is_told_first(tmp_path):
    """What it lost before is no news to who finds it dead."""
    known = {0: Known(ended="exception: RuntimeError"), 1: Known(ended=None)}
    history = read_history(write_job(tmp_path, late(1, "forward", 0.02), known=known))
    report = report_of_job(history)
    said = "Rank 1 died, while others went on. Last known step: 200."
    assert report.job.broken == report.job.silent == (said,)
    for form in (to_text(report), markdown.to_markdown(report), markdown.note(report)):
        assert form.count("Rank 1 died") == 1
        assert form.index("Rank 1 died") < form.index(report.verdict.primary.title)
    page = to_html(history, report)
    assert page.index(said) < page.index('id="verdict"')
    assert page.count(said) == 1


def test_how_it_ended_is_not_unknown_beside_who_died(tmp_path):
    """Rank 0, whose report it is, was killed as well."""
    known = {0: Known(ended=None), 1: Known(ended="exception: ValueError")}
    report = report_of(write_job(tmp_path, late(1, "forward", 0.02), known=known))
    assert report.job.broken
    assert report.how_it_ended == "The job was cut short: the first line says by what"
    assert report_of(write_job(tmp_path / "b")).how_it_ended == "The run ended"


def test_headline():
    """Seconds of each rank and of all, and their share of the training."""
    slow = late(1, "forward", 0.02)
    said = re.fullmatch(
        r"All losses of the job: (\S+) s on each of 4 ranks, (\S+) rank-seconds together, (\S+) % "
        r"of the training time\. Less is won where another rank has to do the work instead\.",
        forms.headline(shown(job(slow, ranks=4))),
    )
    assert said
    assert [float(number) for number in said.groups()] == pytest.approx([4.0, 16.0, 50.0], rel=0.02)
    assert forms.headline(replace(shown(job(slow, ranks=4)), has_late_ranks=False)).endswith(" of the training time.")
    with_gpus = shown(job(slow, ranks=4, known=dict.fromkeys(range(4), BUSY)))
    assert " GPU-seconds together" in forms.headline(with_gpus)
    assert "2 GPU-hours together" in forms.headline(replace(with_gpus, lost_gpu_s=7200.0))
    assert forms.headline(shown(job())) == "2 ranks: no loss was found."
    assert forms.headline(shown(job(only=(0,)))) == "2 ranks: not judged as one job."


def test_rank_table():
    """A row for each rank; the host only where there are several."""
    made = job(late(1, "data_wait", 0.02), known={0: Known([compute_bound()])})
    table = forms.rank_table(shown(made))
    assert table.head == (
        "Rank",
        "own time",
        "waits for others",
        "for data",
        "waited for",
        "by its own records",
    )
    assert [row[0] for row in table.rows] == ["0", "1"]
    assert float(table.rows[0][1].removesuffix(" ms")) == pytest.approx(20, rel=0.02)
    assert table.rows[1][-1] == wording.ABSENT
    assert [table.is_number(column) for column in range(6)] == [False, *[True] * 4, False]
    hosts = {0: Known(host="a"), 1: Known(host="b")}
    assert [row[1] for row in forms.rank_table(shown(job(known=hosts))).rows] == ["a", "b"]


def test_of_many_ranks_those_that_were_waited_for():
    """They are listed in order, the rest is counted."""
    made = shown(job(late(37, "forward", 0.02), ranks=64, steps=40))
    table = forms.rank_table(made, forms.SHORT)
    ranks = [int(row[0]) for row in table.rows]
    assert len(ranks) == forms.SHORT
    assert ranks == sorted(ranks)
    assert 37 in ranks
    assert f"{64 - forms.SHORT} more ranks are not listed" in " ".join(forms.remarks(made, forms.SHORT))
    assert "not listed" not in " ".join(forms.remarks(made, 64))


def test_step_table():
    """Each of the slowest steps with its ranks beneath each other."""
    made = shown(job(late(1, "forward", 0.02)))
    table = forms.step_table(made)
    assert table is not None
    assert [row[1] for row in table.rows[:2]] == ["0", "1"]
    assert [row[3] for row in table.rows[:2]] == ["", f"{wording.seconds(made.slowest[0].loss_s)} late: forward"]
    first = made.slowest[0]
    early = replace(made, slowest=(replace(first, bucket="checkpoint"),))
    told = forms.step_table(early)
    assert told is not None
    assert [row[3] for row in told.rows] == ["", f"{wording.seconds(first.loss_s)} late: checkpoint before it"]
    assert table.rows[1][4].startswith("forward 26 ms, ")
    assert forms.step_table(shown(job())) is None
    short = forms.step_table(shown(job(late(20, "forward", 0.02), ranks=32, steps=40)), forms.SHORT)
    assert short is not None
    assert len(short.rows) <= forms.SHORT


def test_heat():
    """Each cell has a strength, and words for who cannot see it."""
    heat = forms.heat_of(shown(job(late(1, "forward", 0.02))))
    assert heat is not None
    assert [row.rank for row in heat.rows] == [0, 1]
    strengths = [strength for strength, _ in heat.rows[1].cells]
    assert max(strengths) == 100
    assert min(strengths) > 50
    assert {strength for strength, _ in heat.rows[0].cells} == {0}
    assert re.fullmatch(r"rank 1, steps 0 to \d: [\d.]+ ms waited for it", heat.rows[1].cells[0][1])
    assert (heat.first, heat.last) == ("step 0", "step 199")
    assert forms.heat_of(shown(job())) is None


def test_text(slow_data):
    """The verdict names the rank; whose ledger it is, is told."""
    text = to_text(slow_data)
    assert "CRITICAL  Rank 1: The problem of fetch-stall" in text
    assert "2 ranks" in text.splitlines()[0]
    assert "Rank 0 waits for rank 1, late with its data" in " ".join(text.split())
    assert "rank-seconds together" in text
    assert "Where the time went, rank 0" in text
    assert "compute-bound" in text
    assert max(map(len, text.splitlines())) <= 80


def test_text_of_many_ranks_is_short(many):
    """A screen or two, not a page for each rank."""
    text = to_text(many)
    assert "Rank 37: Late with its forward pass, and the other ranks wait" in text
    assert len(text.splitlines()) < 130
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^37 +node4 ", text, re.MULTILINE)


def test_markdown(slow_data):
    """Headline, lines and both tables."""
    text = markdown.to_markdown(slow_data)
    assert "**Rank 1: The problem of fetch-stall:" in text
    assert "**Ranks**: " in text
    assert "| Rank | own time | waits for others | for data | waited for | by its own records |" in text
    assert "| --- | ---: | ---: | ---: | ---: | --- |" in text
    assert "| Where the time went, rank 0 | Time | Share |" in text
    assert "**The steps in which was waited the longest**" in text


@pytest.mark.parametrize("which", ["slow_data", "many"])
def test_note(which, request):
    """It is short and names the rank, the ranks and where the time went."""
    note = markdown.note(request.getfixturevalue(which))
    assert len(note.encode()) <= markdown.NOTE_BYTES
    assert note.startswith("**Rank ")
    assert "**Ranks**: " in note
    assert "| Rank | " in note
    assert "Where the time went, rank 0" in note


def test_json(slow_data):
    """The ranks of the primary cause, the job, and one object for each rank."""
    document = json.loads(json.dumps(to_json(slow_data), allow_nan=False))
    assert document["primary"]["rule"] == "fetch-stall"
    assert document["primary"]["ranks"] == [1]
    assert [(row["rank"], row["host"], row["pid"]) for row in document["ranks"]] == [
        (0, "node1", 100),
        (1, "node1", 101),
    ]
    assert document["ranks"][1]["facts"]["CPUs kept busy by others"] == 1.5
    assert document["job"]["world_size"] == 2
    assert document["job"]["lost_gpu_s"] is None
    assert document["job"]["lost_rank_s"] == pytest.approx(2 * document["job"]["lost_s"])
    assert document["job"]["why_not"] is None
    assert document["job"]["slowest_steps"][0]["late"] == 1
    alone = job_document(slow_data)
    assert alone["ranks"] == document["ranks"]
    assert alone["primary"] == document["primary"]


def test_json_without_ranks(tmp_path):
    """What holds for all ranks names none."""
    both = Known([diagnosis("no-workers", 4.0)])
    folder = write_job(tmp_path, lambda rank, step: {"data_wait": 0.02}, known={0: both, 1: both})
    assert "ranks" not in to_json(report_of(folder))["primary"]


def test_tags(slow_data):
    """Runs can be searched by the rank that holds them up."""
    tags = markdown.tags(slow_data)
    assert tags["stallmeter.primary"] == "fetch-stall"
    assert tags["stallmeter.primary_ranks"] == "1"


def test_hostile_names(tmp_path):
    """A host, and what a rule of the user's calls itself, are shown as text."""
    odd = diagnosis(HOSTILE, 3.0, title=HOSTILE, summary=HOSTILE, severity=Severity.CRITICAL)
    known = {0: Known([odd], host=HOSTILE), 1: Known([odd], host="node2", ended=f"exception: {HOSTILE}")}
    report = report_of(write_job(tmp_path, late(0, "forward", 0.02), known=known))
    text, page = to_text(report), markdown.to_markdown(report)
    assert "\x1b" not in text
    assert "[bold]x[/bold]" in text
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert all(line.count("|") - line.count("\\|") in (0, 4, 5, 6, 8) for line in page.splitlines())
