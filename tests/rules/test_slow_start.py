"""slow-start: the run takes long to start."""

from __future__ import annotations

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.slow_start import SlowStart
from stallmeter.window import Window

from .windows import fires, ledger, missing, silent, window


def started(start_s: float, wall_s: float = 100.0) -> Window:
    """A run with this start."""
    return window(
        ledger(wall_s=wall_s, start=start_s, data_wait=0, forward=0, backward=0, optimizer=0, loop=wall_s - start_s)
    )


def test_fires():
    """What exceeds a usual start is lost."""
    found = fires(SlowStart(), started(40.0))
    assert found.summary == "The first step began after 40.0 s, 40 % of the run."
    assert found.time_lost_s == 38.0
    assert found.severity is Severity.WARNING


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(SlowStart(), started(25.0))
    assert silent(SlowStart(), started(24.9))


def test_trials():
    """A trial of some seconds consists of its start: that is told, it is no warning."""
    assert fires(SlowStart(), started(9.9, wall_s=20.0)).severity is Severity.INFO
    assert fires(SlowStart(), started(10.0, wall_s=20.0)).severity is Severity.WARNING
    assert silent(SlowStart(), started(1.9, wall_s=2.0))


def test_always():
    """A start of 20 minutes is told however long the run."""
    assert fires(SlowStart(), started(1200.0, wall_s=86_400.0)).severity is Severity.WARNING
    assert silent(SlowStart(), started(1199.0, wall_s=86_400.0))


def test_abstains():
    """Without a ledger there is nothing to judge."""
    assert missing(SlowStart(), Window()) == ("ledger.start_s", "ledger.wall_s")


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(SlowStart(warn_pct=50.0), started(40.0))
