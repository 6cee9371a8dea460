"""Each step another rank is the last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.job import CPU_WAIT
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.job.losses import losses
from stallmeter.rules.job.rank_imbalance import RankImbalance

from ..windows import check_fix
from .jobs import Known, in_turn, job, late

RULE = RankImbalance()


def found(made):
    return RULE.check(made, losses(made))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("bucket", "does"), [("data_wait", "Raise num_workers"), ("backward", "Give all ranks")])
def test_in_turn(ranks, bucket, does):
    """Nobody is named, the work is; the advice is another for data than for work."""
    made = job(in_turn(ranks, bucket, 0.02), ranks=ranks, meet="loop")
    (said,) = found(made)
    assert said.ranks == ()
    assert said.severity is Severity.CRITICAL
    # Single slow batches are bridged; work that is evened out is still done: each then takes the mean of all.
    avoidable = 1.0 if bucket == "data_wait" else 1.0 - 1.0 / ranks
    assert said.time_lost_s == pytest.approx(4.0 * avoidable, rel=0.1)
    assert said.culprit == {"data_wait": "its data", "backward": "its backward pass"}[bucket]
    assert "It is another rank each time" in said.summary
    assert said.advice[0].text.startswith(does)
    won = 0.5 * avoidable
    assert said.advice[0].predicted_gain_pct == pytest.approx(100.0 / (1.0 - won) - 100.0, rel=0.15)
    assert (said.advice[0].gain_interval_pct or (0.0, 0.0))[1] > 100.0
    check_fix(said.advice[0].fix)


def test_a_little_in_turn_is_noise():
    """Below 15 % of the time ranks on one machine differ by chance."""
    assert found(job(in_turn(4, "forward", 0.002), ranks=4)) == []


@pytest.mark.parametrize(("waits_pct", "bucket", "share_pct"), [(20.0, "backward", 18.75), (60.0, "backward", None),
                                                                (60.0, "data_wait", 50.0)])  # fmt: skip
def test_delays_for_want_of_a_cpu_are_no_uneven_work(waits_pct, bucket, share_pct):
    """Half of the time is waited for the last one; half of that could be dealt out. Workers wait for other CPUs."""
    busy = Known(facts={CPU_WAIT: waits_pct})
    made = job(in_turn(2, bucket, 0.02), meet="loop", known={0: busy, 1: busy})
    said = found(made)
    assert [100.0 * d.time_lost_s / made.training_s for d in said] == ([] if share_pct is None else [
        pytest.approx(share_pct, abs=2.0)
    ])  # fmt: skip


def test_the_same_one_is_no_imbalance():
    """That is another rule's."""
    assert found(job(late(2, "forward", 0.02), ranks=4)) == []


def test_without_meetings_it_abstains():
    """It says for want of what."""
    assert RULE.lacks(job(only=(1,)))
    assert not RULE.lacks(job())


def test_what_chance_explains_does_not_hide_another_loss():
    """A fifth of the time is waited for work, most of which is a wait for CPUs; nearly as much is waited for data."""
    busy = Known(facts={CPU_WAIT: 32.0})
    work, data = (
        losses(job(in_turn(4, bucket, 0.02), ranks=4, meet="loop", known=dict.fromkeys(range(4), busy)))[0]
        for bucket in ("backward", "data_wait")
    )
    made = job(in_turn(4, "data_wait", 0.02), ranks=4, meet="loop", known=dict.fromkeys(range(4), busy))
    assert not RULE.check(made, [replace(work, share=0.2)])
    both = [replace(work, share=0.2), replace(data, share=0.18)]
    assert [said.culprit for said in RULE.check(made, both)] == ["its data"]
