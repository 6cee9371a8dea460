"""slow-logging: names the logger that holds up training."""

from __future__ import annotations

from dataclasses import replace

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.slow_logging import SlowLogging
from stallmeter.window import Window

from .windows import fires, ledger, missing, run, silent, window


def test_fires():
    """The logger that took most is named; the time of all of them is lost."""
    found = fires(SlowLogging(), run(logging={"MLFlowLogger": 9.0, "CSVLogger": 0.9}))
    assert found.culprit == "MLFlowLogger"
    assert "MLFlowLogger" in found.title
    assert found.summary == "Writing metrics to MLFlowLogger took 9.9 s, 10 % of the training time."
    assert found.time_lost_s == 9.9
    assert found.severity is Severity.WARNING


def test_without_names():
    """In a plain loop logging may have no name."""
    found = fires(SlowLogging(), window(replace(ledger(logging={"any": 30.0}), logging={})))
    assert (found.culprit, found.title) == (None, SlowLogging.title)
    assert found.summary.startswith("Writing metrics took 30.0 s")


def test_critical():
    """From the critical share on it is critical."""
    assert fires(SlowLogging(), run(start=0.0, logging={"A": 20.0})).severity is Severity.CRITICAL


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(SlowLogging(), run(start=0.0, logging={"A": 5.0}))
    assert silent(SlowLogging(), run(start=0.0, logging={"A": 4.99}))


def test_short_runs():
    """A share of almost nothing is not worth a change."""
    quick = window(ledger(wall_s=5.0, start=0.0, forward=1, backward=1, optimizer=0, data_wait=0, logging={"A": 0.4}))
    assert silent(SlowLogging(), quick)
    assert fires(SlowLogging(min_lost_s=0.1), quick)


def test_abstains():
    """Without a ledger there is nothing to judge."""
    assert "ledger.logging_by_name_s" in missing(SlowLogging(), Window())


def test_user_threshold():
    """The user's threshold counts, not ours."""
    made = run(start=0.0, logging={"A": 8.0})
    assert fires(SlowLogging(warn_pct=8.0), made)
    assert silent(SlowLogging(warn_pct=8.1), made)
