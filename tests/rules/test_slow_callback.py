"""slow-callback: names the callback that holds up training."""

from __future__ import annotations

from dataclasses import replace

from stallmeter.records import OWN_NAME, LedgerRecord
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.slow_callback import SlowCallback
from stallmeter.window import Window

from .windows import fires, ledger, missing, run, silent, window


def test_fires():
    """The largest callback is named everywhere, and what it took is lost."""
    found = fires(SlowCallback(), run(callbacks={"ImageLogger": 9.9, "Ema": 1.0}))
    assert found.culprit == "ImageLogger"
    assert "ImageLogger" in found.title
    assert found.summary == "ImageLogger took 9.9 s, 10 % of the training time."
    assert found.time_lost_s == 9.9
    assert found.severity is Severity.WARNING


def test_a_hook_of_the_module():
    """A hook of the module is named with its module."""
    assert fires(SlowCallback(), run(callbacks={"Net.on_train_batch_end": 30.0})).culprit == "Net.on_train_batch_end"


def test_critical():
    """From the critical share on it is critical."""
    assert fires(SlowCallback(), run(start=0.0, callbacks={"A": 20.0})).severity is Severity.CRITICAL
    assert fires(SlowCallback(), run(start=0.0, callbacks={"A": 19.9})).severity is Severity.WARNING


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(SlowCallback(), run(start=0.0, callbacks={"A": 5.0}))
    assert silent(SlowCallback(), run(start=0.0, callbacks={"A": 4.99}))


def test_together():
    """Many callbacks, none of them large, are reported together with the three largest."""
    many = {f"Callback{i}": 2.0 + i / 10 for i in range(6)}
    found = fires(SlowCallback(), run(start=0.0, callbacks=many))
    assert found.culprit is None
    assert "Callback5 2.5 s, Callback4 2.4 s, Callback3 2.3 s" in found.summary
    assert "Callback2" not in found.summary
    assert found.time_lost_s == sum(many.values())
    assert silent(SlowCallback(), run(start=0.0, callbacks={f"Callback{i}": 1.6 for i in range(6)}))


def test_unnamed():
    """Callbacks without a name count for all of them together."""
    found = fires(SlowCallback(), window(_unnamed(10.0)))
    assert found.time_lost_s == 10.0
    assert silent(SlowCallback(), window(_unnamed(9.9)))


def _unnamed(seconds: float) -> LedgerRecord:
    return replace(ledger(start=0.0, callbacks={"any": seconds}), callbacks={})


def test_not_our_own():
    """What stallmeter's own hooks cost is no finding."""
    assert silent(SlowCallback(), run(callbacks={OWN_NAME: 50.0}))


def test_short_runs():
    """A share of almost nothing is not worth a change."""
    quick = window(ledger(wall_s=5.0, start=0.0, forward=1, backward=1, optimizer=0, data_wait=0, callbacks={"A": 0.4}))
    assert silent(SlowCallback(), quick)
    assert fires(SlowCallback(min_lost_s=0.1), quick)


def test_progress_bar():
    """A progress bar is told to draw less often."""
    found = fires(SlowCallback(), run(callbacks={"TQDMProgressBar": 10.0}))
    assert "refresh_rate" in found.advice[0].text


def test_abstains():
    """Without a ledger there is nothing to judge."""
    assert "ledger.callbacks_by_name_s" in missing(SlowCallback(), Window())


def test_user_threshold():
    """The user's threshold counts, not ours."""
    made = run(start=0.0, callbacks={"A": 8.0})
    assert fires(SlowCallback(warn_pct=8.0), made)
    assert silent(SlowCallback(warn_pct=8.1), made)
