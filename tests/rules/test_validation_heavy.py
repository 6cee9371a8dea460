"""validation-heavy: validation takes a large part of the run."""

from __future__ import annotations

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.validation_heavy import ValidationHeavy
from stallmeter.window import Window

from .windows import fires, ledger, missing, run, silent, window


def part(seconds: float) -> Window:
    """100 s of which so many are validation."""
    rest = 100.0 - seconds
    return window(
        ledger(start=0.0, data_wait=0.0, forward=rest, backward=0.0, optimizer=0.0, validation=seconds, loop=0)
    )


def test_fires():
    """Only what exceeds the usual share counts as lost."""
    found = fires(ValidationHeavy(), part(30.0))
    assert found.summary == "Validation took 30.0 s, 30 % of the training time; 10 % would be usual."
    assert found.time_lost_s == pytest.approx(20.0)
    assert found.severity is Severity.WARNING


def test_critical():
    """When more time goes into validation than into training, it is critical."""
    assert fires(ValidationHeavy(), part(50.0)).severity is Severity.CRITICAL


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(ValidationHeavy(), part(25.0))
    assert silent(ValidationHeavy(), part(24.9))


def test_short_runs():
    """A share of almost nothing is not worth a change."""
    quick = window(ledger(wall_s=2.0, start=0, data_wait=0, forward=1, backward=0, optimizer=0, loop=0, validation=0.6))
    assert silent(ValidationHeavy(), quick)
    assert fires(ValidationHeavy(min_lost_s=0.1), quick)


def test_abstains():
    """Without a ledger there is nothing to judge."""
    assert missing(ValidationHeavy(), Window()) == ("ledger.training_s", "ledger.wall_s")


def test_user_thresholds():
    """The user's thresholds count, and can never lead to a negative loss."""
    assert silent(ValidationHeavy(warn_pct=31.0), part(30.0))
    assert fires(ValidationHeavy(usual_pct=0.0), part(30.0)).time_lost_s == 30.0
    assert fires(ValidationHeavy(warn_pct=5.0, usual_pct=50.0, min_lost_s=0.0), run(validation=20.0)).time_lost_s == 0.0
