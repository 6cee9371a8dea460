"""host-sync: the step waits for results of the device."""

from __future__ import annotations

import pytest

from stallmeter.records import SyncCalls
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.host_sync import HostSync
from stallmeter.window import Window

from .test_launch_bound import launching
from .windows import START_S, fires, missing, silent

MANY = 10_000
"""Calls in two steps of a second each: with 40 µs a call a fifth of a second in each."""


def syncing(calls: dict[str, int], busy_pct: float = 60.0, caught_up: float = 1.0) -> Window:
    """A run in whose two probed steps these calls were found."""
    return launching(busy_pct, caught_up, SyncCalls(time_s=START_S, first_step=5, steps=2, calls=calls))


def test_fires():
    """The line that waits most often is named."""
    found = fires(HostSync(), syncing({"train.py:7 in step": 2, "model.py:31 in forward": 9998}))
    assert found.culprit == "model.py:31 in forward"
    assert "5000 times, most often at model.py:31 in forward" in found.summary
    assert found.time_lost_s == pytest.approx(0.4 * 99.0 - 2.0 - 0.99)


def test_a_place_without_a_name():
    """The advice stays short."""
    found = fires(HostSync(), syncing({"": MANY}))
    assert found.advice[0].fix.do == "Read no value off the device in each step at an unknown place."


def test_threshold():
    """Once a step is enough; less is not, nor a device that idles little."""
    assert fires(HostSync(), syncing({"a.py:1 in f": 2}))
    assert silent(HostSync(), syncing({"a.py:1 in f": 1}))
    assert silent(HostSync(), syncing({}))
    assert silent(HostSync(), syncing({"a.py:1 in f": 2}, busy_pct=90.0))


def test_it_comes_before_launch_bound():
    """A device that is starved by waiting is not starved by launching."""
    rules = [d.rule for d in evaluate(ALL_RULES, syncing({"a.py:1 in f": MANY})).diagnoses]
    assert rules[0] == "host-sync"
    assert "launch-bound" not in rules


def test_a_few_calls_inform():
    """Two of them explain no second of idling a step: the launches set the pace, and they are told beside it."""
    few = syncing({"a.py:1 in f": 4})
    assert fires(HostSync(), few).severity is Severity.INFO
    assert fires(HostSync(), few).time_lost_s == 0.0
    verdict = evaluate(ALL_RULES, few)
    assert verdict.primary is not None
    assert verdict.primary.rule == "launch-bound"
    assert "host-sync" in {d.rule for d in verdict.diagnoses}


def test_a_device_that_is_behind_at_the_end_of_a_step_may_have_been_waited_for_within_it():
    """A metric that is read before the gradients: what comes after it is queued when the next batch is asked for."""
    found = fires(HostSync(), syncing({"a.py:1 in f": MANY}, caught_up=0.02))
    assert found.severity is Severity.WARNING


def test_abstains():
    """Where no step was probed nothing is known."""
    assert missing(HostSync(), launching()) == ("device.syncs",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(HostSync(calls=3.0), syncing({"a.py:1 in f": 2}))
