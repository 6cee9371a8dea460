"""checkpoint-stall: training stands still while checkpoints are written."""

from __future__ import annotations

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.checkpoint_stall import CheckpointStall
from stallmeter.window import Window

from .windows import fires, ledger, missing, run, silent, step, window


def test_fires():
    """The whole bucket is lost, and the typical stall is told."""
    saves = [step(i, checkpoint_s=1.5, total_s=1.6) for i in (100, 200, 300)]
    found = fires(CheckpointStall(), run(*saves, checkpoint=9.9))
    assert found.summary == "Saving checkpoints took 9.9 s, 10 % of the training time, 1.50 s at a time."
    assert found.time_lost_s == 9.9
    assert found.severity is Severity.WARNING


def test_without_detail():
    """It fires on the ledger alone."""
    assert fires(CheckpointStall(), window(ledger(checkpoint=9.9))).summary.endswith("training time.")


def test_critical():
    """From the critical share on it is critical."""
    assert fires(CheckpointStall(), run(start=0.0, checkpoint=20.0)).severity is Severity.CRITICAL


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(CheckpointStall(), run(start=0.0, checkpoint=5.0))
    assert silent(CheckpointStall(), run(start=0.0, checkpoint=4.99))


def test_short_runs():
    """A share of almost nothing is not worth a change."""
    quick = window(ledger(wall_s=5.0, start=0.0, forward=1, backward=1, optimizer=0, data_wait=0, checkpoint=0.4))
    assert silent(CheckpointStall(), quick)
    assert fires(CheckpointStall(min_lost_s=0.1), quick)


def test_abstains():
    """Without a ledger there is nothing to judge."""
    assert missing(CheckpointStall(), Window()) == ("ledger.training_s", "ledger.wall_s")


def test_user_threshold():
    """The user's threshold counts, not ours."""
    made = run(start=0.0, checkpoint=8.0)
    assert fires(CheckpointStall(warn_pct=8.0), made)
    assert silent(CheckpointStall(warn_pct=8.1), made)
