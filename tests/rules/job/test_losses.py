"""What a job loses to late ranks: how much, by whom, with what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.job import assemble
from stallmeter.rules.job.losses import COMPUTE, group_of, losses, waited_by_rank, why_not_judged

from .jobs import in_turn, job, late, seen_in_collectives


def test_nobody_is_late():
    """Alike ranks lose nothing, and that is known."""
    healthy = job()
    assert losses(healthy) == []
    assert why_not_judged(healthy) == ""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("bucket", ["data_wait", "forward", "callbacks", "logging", "validation"])
def test_one_rank_is_late(bucket, rank):
    """Its seconds, its bucket and itself."""
    planted_s = 0.015
    made = job(late(rank, bucket, planted_s))
    (found,) = losses(made)
    assert found.ranks == (rank,)
    assert found.bucket == group_of(bucket)
    assert max(found.parts, key=found.parts.__getitem__) == bucket
    assert found.lost_s == pytest.approx(200 * planted_s, rel=0.05)
    assert found.per_step_s == pytest.approx(planted_s, rel=0.05)
    assert found.share == pytest.approx(planted_s / (planted_s + 0.02), rel=0.05)
    assert 190 <= found.steps <= found.of_steps == 200


def test_what_follows_the_steps_is_no_time_that_anybody_was_late_in():
    """A long test after the training, or a job that hangs: the loss of a step is not that of such a minute."""
    made = job(late(1, "data_wait", 0.015))
    longer = [
        replace(view, ledger=replace(view.ledger, time_s=view.ledger.time_s + 60.0, wall_s=view.ledger.wall_s + 60.0))
        for view in made.ranks
        if view.ledger is not None
    ]
    for ended in ("end", None):
        (found,) = losses(assemble(replace(view, ended=ended) for view in longer))
        assert found.lost_s == pytest.approx(200 * 0.015, rel=0.05)
        assert found.share == pytest.approx(200 * 0.015 / (60.0 + 200 * 0.035), rel=0.05)


def test_two_of_eight_are_late():
    """Both are named where each makes the others wait."""

    def work(rank, step):
        return {"data_wait": 0.02} if rank == (2, 5)[step % 2] else {}

    (found,) = losses(job(work, ranks=8))
    assert found.ranks == (2, 5)


def test_in_turn_nobody_is_named():
    """Half of the ranks or more are no culprits."""
    (found,) = losses(job(in_turn(4, "forward", 0.02), ranks=4))
    assert found.ranks == ()
    assert found.bucket == COMPUTE
    assert found.share == pytest.approx(0.5, abs=0.05)


def test_two_causes():
    """The larger loss is first."""

    def work(rank, step):
        return {"data_wait": 0.005} if rank == 0 else {"logging": 0.02} if step % 2 else {}

    found = losses(job(work, ranks=2))
    assert [(loss.bucket, loss.ranks) for loss in found] == [("logging", (1,)), ("data_wait", (0,))]


def test_what_the_collectives_alone_show():
    """A slow backward pass is alike in all ledgers: both wait in it. It is scaled to the whole run."""
    both = job(lambda rank, step: {"backward": 0.02}, ranks=2)
    assert losses(both) == []
    (found,) = losses(replace(both, exchanges=seen_in_collectives(2.0)))
    assert found.ranks == (1,)
    assert found.bucket == COMPUTE
    assert found.from_collectives
    assert found.share == pytest.approx(0.5, rel=0.01)
    assert found.lost_s == pytest.approx(0.5 * both.training_s, rel=0.01)
    assert found.steps == found.of_steps == 200


def test_what_each_rank_waits():
    """By the ledgers where they tell, by the collectives where they alone do, by who was late where DDP says so."""
    told = job(late(1, "data_wait", 0.02), ranks=3)
    assert waited_by_rank(told, losses(told)) == pytest.approx({0: 4.0, 1: 0.0, 2: 4.0}, abs=0.05)
    both = job(lambda rank, step: {"backward": 0.02}, ranks=3)
    assert waited_by_rank(both, losses(both)) == pytest.approx({0: 0.0, 1: 0.0, 2: 0.0}, abs=0.01)
    seen = replace(both, exchanges=replace(seen_in_collectives(2.0), stood_s={0: 2.0, 1: 0.0, 2: 1.5}))
    assert waited_by_rank(seen, losses(seen)) == pytest.approx({0: 4.0, 1: 0.0, 2: 3.0}, rel=0.02, abs=0.01)
    (by_ddp,) = losses(seen)
    assert waited_by_rank(both, [by_ddp]) == pytest.approx({0: 4.0, 1: 0.0, 2: 4.0}, rel=0.02, abs=0.01)


def test_what_all_spend_in_a_checkpoint_is_the_wait_for_who_writes_it():
    """Of rare events those that were looked at speak for the others; the rest of the lateness stays the rank's work."""

    def work(rank, step):
        return {"checkpoint": 0.2, "backward": 0.02} if step % 10 == 9 else {"backward": 0.02}

    made = job(work, ranks=2)
    seen = replace(
        seen_in_collectives(2.0),
        apart_s={(1, "checkpoint"): 1.8},
        spent_s={"checkpoint": 2.0},
        apart_steps={(1, "checkpoint"): 10},
    )
    saves, own = losses(replace(made, exchanges=seen))
    assert (saves.bucket, saves.ranks, saves.from_collectives) == ("checkpoint", (1,), True)
    assert saves.lost_s == pytest.approx(0.9 * 20 * 0.2, rel=0.02)
    assert saves.steps == 20
    assert (own.bucket, own.ranks) == (COMPUTE, (1,))
    assert own.lost_s == pytest.approx(0.05 * made.training_s, rel=0.02)


def test_little_more_in_the_collectives_is_noise():
    """Below 3 % of the time the ledgers are believed."""
    both = job(lambda rank, step: {"backward": 0.02}, ranks=2)
    assert losses(replace(both, exchanges=seen_in_collectives(0.1))) == []


def test_no_share_is_more_than_all():
    """Whatever the collectives say, more than the time of the steps cannot be lost."""
    both = job(ranks=2)
    (found,) = losses(replace(both, exchanges=seen_in_collectives(1e6)))
    assert found.share == 1.0
    assert found.lost_s <= both.training_s


def test_why_it_is_not_judged():
    """One rank alone, no common steps, and ranks that never wait for each other."""
    assert why_not_judged(job(only=(0,))) == "only rank 0 of 2 is known"
    assert why_not_judged(job(only=())) == "no rank is known"
    assert "no steps that all ranks" in why_not_judged(job(steps=1))
    apart = job(late(1, "forward", 0.02), wait=False)
    assert "drift apart" in why_not_judged(apart)
    assert losses(apart) == []


@pytest.mark.parametrize("meet", ["optimizer", "callbacks", "loop"])
@pytest.mark.parametrize("bucket", ["data_wait", "forward", "backward"])
def test_ranks_of_one_host_that_meet_after_the_backward_pass(bucket, meet):
    """A lasting lateness that is made up for in the optimizer is not taken for clocks that differ."""
    (found,) = losses(job(late(1, bucket, 0.015), meet=meet))
    assert found.ranks == (1,)
    assert max(found.parts, key=found.parts.__getitem__) == bucket
    assert found.lost_s == pytest.approx(3.0, rel=0.05)


def test_noise_of_the_ledgers_does_not_outvote_what_the_collectives_show():
    """Rank 0 is late by a little more often than rank 1 was seen to be late by a lot."""

    def work(rank, step):
        return {"backward": 0.02, "forward": 0.0006 if rank == 0 and step % 2 else 0.0}

    made = job(work, ranks=2)
    (found,) = losses(replace(made, exchanges=seen_in_collectives(2.0, steps=40)))
    assert found.ranks == (1,)
    assert found.steps == 200
