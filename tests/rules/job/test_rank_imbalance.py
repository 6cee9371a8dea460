"""Each step another rank is the last."""

from __future__ import annotations

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.job.losses import losses
from stallmeter.rules.job.rank_imbalance import RankImbalance

from ..windows import check_fix
from .jobs import in_turn, job, late

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
    assert said.time_lost_s == pytest.approx(4.0, rel=0.1)
    assert said.culprit == {"data_wait": "its data", "backward": "its backward pass"}[bucket]
    assert "It is another rank each time" in said.summary
    assert said.advice[0].text.startswith(does)
    assert said.advice[0].predicted_gain_pct == pytest.approx(100.0, rel=0.15)
    check_fix(said.advice[0].fix)


def test_a_little_in_turn_is_noise():
    """Below 15 % of the time ranks on one machine differ by chance."""
    assert found(job(in_turn(4, "forward", 0.002), ranks=4)) == []


def test_the_same_one_is_no_imbalance():
    """That is another rule's."""
    assert found(job(late(2, "forward", 0.02), ranks=4)) == []


def test_without_meetings_it_abstains():
    """It says for want of what."""
    assert RULE.lacks(job(only=(1,)))
    assert not RULE.lacks(job())
