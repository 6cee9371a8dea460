"""What is shown of a job: rows, lines, the map of who was waited for, the slowest steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.job import assemble
from stallmeter.ranks.steps import RankSteps
from stallmeter.report.job.model import BINS, MOST_BESIDE, MOST_ROWS, SLOWEST, job_report
from stallmeter.rules.job.evaluation import judge

from ...rules.job.jobs import Known, compute_bound, diagnosis, in_turn, job, late, seen_in_collectives


def shown(made):
    return job_report(made, judge(made))


def test_rows():
    """One for each rank: its own time, its waits, how long it was waited for, what it says itself."""
    known = {0: Known([compute_bound()], host="a"), 1: Known([diagnosis("fetch-stall", 4.0)], host="b")}
    made = job(late(1, "data_wait", 0.02), known=known)
    victim, culprit = shown(made).rows
    assert (victim.rank, victim.host, victim.pid, victim.primary) == (0, "a", 100, "compute-bound")
    assert (culprit.rank, culprit.host, culprit.pid, culprit.primary) == (1, "b", 101, "fetch-stall")
    assert victim.step_time_s == pytest.approx(0.04, rel=0.02)
    assert culprit.step_time_s == pytest.approx(0.04, rel=0.02)
    assert victim.own_s == pytest.approx(0.02, rel=0.05)
    assert culprit.own_s == pytest.approx(0.04, rel=0.05)
    assert victim.waited_s == pytest.approx(4.0, rel=0.05)
    assert culprit.waited_s == pytest.approx(0.0, abs=0.1)
    assert victim.late_s == 0.0
    assert culprit.late_s == pytest.approx(4.0, rel=0.05)
    assert culprit.data_wait_s == pytest.approx(4.2, rel=0.01)
    assert culprit.ledger["data_wait"] == culprit.data_wait_s
    assert culprit.steps == 200


def test_totals():
    """Seconds lost, times the ranks, and by how much that slows the job down."""
    made = job(late(1, "forward", 0.02), ranks=4)
    report = shown(made)
    assert report.world_size == 4
    assert report.steps == 200
    assert report.training_s == made.training_s
    assert report.lost_rank_s == pytest.approx(4 * report.lost_s)
    assert report.lost_gpu_s is None
    assert report.slowdown == pytest.approx(2.0, rel=0.05)


def test_who_waits():
    """For whom, with what it is late, how long."""
    (line,) = shown(job(late(1, "data_wait", 0.02))).who_waits
    assert line.startswith("Rank 0 waits for rank 1, late with its data: ")
    assert line.endswith(" % of the training time.")
    (line,) = shown(job(late(1, "data_wait", 0.02), ranks=3)).who_waits
    assert line.startswith("The others wait for rank 1, late with its data: ")
    (line,) = shown(job(in_turn(4, "forward", 0.02), ranks=4)).who_waits
    assert line.startswith("The ranks wait for each other in turn, for the last one and its forward pass: ")
    assert shown(job()).who_waits == ("No rank waits long for another.",)


def test_at_most_three_lines():
    """However many causes there are."""

    def work(rank, step):
        return {("data_wait", "forward", "callbacks", "logging")[rank]: 0.02} if step % 4 == rank else {}

    assert 1 <= len(shown(job(work, ranks=4)).who_waits) <= 3


def test_not_judged():
    """Of ranks that do not meet nothing is said of waits, nothing drawn, and why is told."""
    report = shown(job(late(1, "forward", 0.02), wait=False))
    assert report.who_waits == ()
    assert "drift apart" in report.why_not
    assert report.heat is None
    assert report.slowest == ()
    assert {(row.waited_s, row.late_s) for row in report.rows} == {(None, None)}


def test_a_rank_without_recording():
    """It is named; what can be told is told."""
    report = shown(job(ranks=3, only=(0, 2)))
    assert report.missing == (1,)
    assert [row.rank for row in report.rows] == [0, 2]
    assert any("rank 1" in line for line in report.silent)


def test_a_rank_without_an_end():
    """It is named with its last step."""
    known = {1: Known(ended=None)}
    report = shown(job(late(1, "data_wait", 0.02), ranks=3, known=known, cut={1: 131}))
    assert any(line.startswith("Rank 1 ") and "131" in line for line in report.silent)
    assert report.rows[1].ended is None
    assert shown(job()).silent == ()


def test_a_rank_that_ended_by_an_exception():
    """Others that ended well do not hide it."""
    report = shown(job(known={1: Known(ended="exception: ValueError")}))
    assert any(line.startswith("Rank 1 ended by an exception") for line in report.silent)


def test_who_ended_first():
    """The others fell because it was gone."""
    known = {0: Known(ended="exception: RuntimeError"), 1: Known(ended="exception: ValueError")}
    lines = shown(job(known=known, cut={1: 131})).silent
    assert lines == (
        "Rank 1 ended first by ValueError, and the others could not go on without it. Last known step: 131.",
    )
    left = shown(job(known={**known, 1: Known(ended="interpreter exit")}, cut={1: 131})).silent
    assert left[0].startswith("Rank 1 ended first, and the others")
    apart = {0: known[0], 1: Known(ended="exception: ValueError", host="node2")}  # two clocks
    assert not any("first" in line for line in shown(job(known=apart, cut={1: 131})).silent)
    assert not any("first" in line for line in shown(job(known={1: Known(ended="end")}, cut={1: 131})).silent)


def test_heat_map():
    """Seconds by rank and time, all of the loss, where it happened."""

    def work(rank, step):
        return {"data_wait": 0.02} if rank == 1 and step >= 100 else {}

    made = job(work)
    heat = shown(made).heat
    assert heat is not None
    assert heat.ranks == (0, 1)
    assert {len(row) for row in heat.seconds} == {len(heat.begins)} == {BINS}
    assert list(heat.begins) == sorted(heat.begins)
    first, second = sum(heat.seconds[1][: BINS // 2 - 1]), sum(heat.seconds[1][BINS // 2 - 1 :])
    assert first == 0.0
    assert second == pytest.approx(2.0, rel=0.05)
    assert sum(heat.seconds[0]) == pytest.approx(0.0, abs=0.01)


def test_heat_map_by_the_collectives():
    """What no ledger shows is drawn as the collectives of some steps have seen it."""
    made = job(lambda rank, step: {"backward": 0.02})
    waited_s = {index: {1: 0.02} for index in range(100, 200)}
    exchanges = seen_in_collectives(2.0, first=100, waited_s=waited_s)
    report = shown(replace(made, exchanges=exchanges))
    assert report.heat is not None
    assert (report.heat.begins[0], report.heat.last) == (100, 199)
    assert sum(report.heat.seconds[1]) == pytest.approx(2.0)
    assert sum(report.heat.seconds[0]) == 0.0
    assert report.heat.piece_s == pytest.approx(4.0 / BINS)
    assert report.slowest == ()
    assert report.who_waits[0].endswith("(seen by the flight recorder).")


def test_a_row_knows_what_the_collectives_alone_show():
    """Else the table would say that nobody waits, beneath a first line of half the time."""
    made = job(lambda rank, step: {"backward": 0.02})
    exchanges = seen_in_collectives(2.0, first=100, stood_s={0: 2.0})
    first, second = shown(replace(made, exchanges=exchanges)).rows
    assert (first.waited_s, second.waited_s) == (pytest.approx(4.0, rel=0.01), 0.0)
    assert (first.own_s, second.own_s) == (pytest.approx(0.02, rel=0.01), pytest.approx(0.04))
    assert first.step_time_s == second.step_time_s == pytest.approx(0.04)


def test_heat_map_of_many_ranks():
    """Those that were waited for are among those that are shown."""
    heat = shown(job(late(70, "forward", 0.02), ranks=80, steps=30)).heat
    assert heat is not None
    assert len(heat.ranks) == len(heat.seconds) == MOST_ROWS
    assert 70 in heat.ranks
    assert list(heat.ranks) == sorted(heat.ranks)


def test_heat_map_of_few_steps():
    """There are no more pieces than steps."""
    heat = shown(job(late(1, "forward", 0.02), steps=10)).heat
    assert heat is not None
    assert len(heat.seconds[0]) <= 10


def test_slowest_steps():
    """Those that were waited for the longest, each with its ranks and the one that was late."""

    def work(rank, step):
        return {"forward": 0.02 + 0.1 * (step in (50, 90))} if rank == 1 else {}

    slowest = shown(job(work)).slowest
    assert len(slowest) == SLOWEST
    assert {step.index for step in slowest[:2]} == {50, 90}
    assert all(step.late == 1 for step in slowest)
    assert slowest[0].seconds[1]["forward"] == pytest.approx(0.126)
    assert slowest[0].seconds[0]["backward"] == pytest.approx(0.13)
    assert slowest[0].loss_s == pytest.approx(0.12, rel=0.05)


def test_slowest_steps_of_many_ranks():
    """The late one is among the few that are shown."""
    for step in shown(job(late(20, "forward", 0.02), ranks=32, steps=40)).slowest:
        assert len(step.seconds) <= MOST_BESIDE
        assert 20 in step.seconds


def test_slowest_steps_by_weight_update():
    """Where ranks take batches of different number, a step is what leads to one update."""

    def work(rank, step):
        return {"forward": 0.1} if rank == 1 and step == 60 else {"forward": 0.01} if rank == 1 else {}

    made = job(work, meet="optimizer")
    zero, one = made.ranks
    # Rank 0 has skipped its third batch: from there on its index is one less than that of the same update.
    kept = [at for at in range(200) if at != 2]
    skipped = RankSteps(
        0,
        [at if at < 2 else at - 1 for at in kept],
        [zero.steps.ends_s[at] for at in kept],
        {name: [values[at] for at in kept] for name, values in zero.steps.seconds.items()},
        [at + 1 for at in kept],
        zero.steps.host,
    )
    again = assemble([replace(zero, steps=skipped), one])
    assert again.merged is not None
    assert again.merged.by_update
    (worst, *_) = shown(again).slowest
    assert worst.index == 61
    assert worst.seconds[1]["forward"] == pytest.approx(0.106)
    assert set(worst.seconds) == {0, 1}
