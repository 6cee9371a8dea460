"""What a diagnosis weighs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stallmeter.records.diagnosis import Advice, Diagnosis, Severity
from stallmeter.rules.weight import WORTH_S, as_long_as_it_matters, standing_s, won_s


def _diagnosis(gain_pct: float | None, rule: str = "slow-callback") -> Diagnosis:
    return Diagnosis(
        rule=rule, severity=Severity.WARNING, title="", summary="", time_lost_s=40.0, share_pct=40.0, confidence=0.9,
        advice=(Advice.of("Run it less often.", gain_pct=gain_pct),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gain_pct", "seconds"),
    [(None, 40.0), (0.0, 0.0), (25.0, 20.0), (400.0, 40.0), (math.nan, 40.0), (math.inf, 40.0)],
)
def test_seconds_that_a_gain_wins_back_are_at_most_those_lost(gain_pct, seconds):
    assert won_s(_diagnosis(gain_pct), training_s=100.0, wall_s=120.0) == pytest.approx(seconds)


def test_what_precedes_training_gains_of_the_whole_run():
    assert won_s(_diagnosis(20.0, "slow-start"), training_s=60.0, wall_s=120.0) == pytest.approx(20.0)


def test_without_a_time_the_loss_counts():
    assert won_s(_diagnosis(20.0), training_s=None, wall_s=None) == 40.0


def test_a_loss_of_a_moment_informs():
    """Fifteen steps to find a learning rate lose a quarter of a second. What costs no time is as it is."""
    assert as_long_as_it_matters(replace(_diagnosis(30.0), time_lost_s=0.25)).severity is Severity.INFO
    assert as_long_as_it_matters(replace(_diagnosis(30.0), time_lost_s=WORTH_S)).severity is Severity.WARNING
    assert as_long_as_it_matters(replace(_diagnosis(None), time_lost_s=0.0)).severity is Severity.WARNING


def test_an_information_stands_behind_a_warning_that_wins_half_as_much():
    """What it tells of may be needed by the training."""
    warning = _diagnosis(20.0)
    information = replace(warning, severity=Severity.INFO)
    assert standing_s(information, 19.0) < standing_s(warning, 10.0) < standing_s(information, 21.0)
