"""What the newest reading of the ledger says."""

from __future__ import annotations

import pytest

from stallmeter.window.ledger import LedgerSignals

from ..rules.windows import ledger, run, window


def test_shares():
    """Shares of training leave the start out; coverage is what is not `other`."""
    made = run(start=20.0, data_wait=8.0, other=4.0, forward=50.0, backward=17.0, optimizer=0.0)
    assert made.ledger.training_s == 80.0
    assert made.spent.data_wait_share_pct == 10.0
    assert made.ledger.share_pct(10.0) == 10.0
    assert made.ledger.training_share_pct(10.0) == 12.5
    assert made.ledger.coverage_pct == 96.0
    assert (made.ledger.steps_per_s, made.ledger.samples_per_s) == (12.5, 400.0)


def test_a_run_that_only_started():
    """Before any training there is no share of it."""
    made = window(ledger(wall_s=2.0, start=2.0, data_wait=0, forward=0, backward=0, optimizer=0, loop=0))
    assert made.spent.data_wait_share_pct is None
    assert made.ledger.training_share_pct(1.0) is None
    assert made.ledger.steps_per_s is None
    assert made.spent.step_share_pct is None


def test_a_part_alone():
    """The newest reading counts."""
    made = LedgerSignals()
    assert (made.record, made.wall_s, made.share_pct(1.0), made.training_share_pct(1.0)) == (None,) * 4
    made.append(ledger(wall_s=50.0))
    made.append(ledger(wall_s=200.0, callbacks={"A": 4.0}, logging={"B": 2.0}, data_wait=19.9))
    assert (made.wall_s, made.start_s, made.training_s, made.epochs) == (200.0, 1.0, 199.0, 1)
    assert (made.callbacks_by_name_s, made.logging_by_name_s) == ({"A": 4.0}, {"B": 2.0})
    assert made.host_wait_share_pct == pytest.approx(10.0)
    assert made.share_pct(20.0) == pytest.approx(10.0)
