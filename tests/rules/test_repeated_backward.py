"""repeated-backward: several losses of a step go backward through the same graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import RepeatedBackward as Found
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.repeated_backward import RepeatedBackward
from stallmeter.window import Window

from .windows import START_S, check_fix, device_steps, fires, ledger, missing, run, silent, step, window

FOUND = Found(
    time_s=START_S,
    steps=5,
    passes=2,
    backward_s=0.06,
    again_s=0.02,
    file="train.py",
    line=31,
    function="main",
)


def repeated(found: Found = FOUND, *more: Any, **buckets: Any) -> Window:
    """A run of 1000 steps of 0.1 s."""
    return window(*(step(i) for i in range(100)), found, *more, ledger(**buckets))


def test_fires() -> None:
    found = fires(RepeatedBackward(), repeated())
    assert found.severity is Severity.WARNING
    assert found.summary == (
        "A step has 2 backward passes of 60 ms together. 20 ms of it are in what another one has gone through."
    )
    assert found.time_lost_s == pytest.approx(20.0)
    place = found.location
    assert place is not None
    assert (place.file, place.line, place.function) == ("train.py", 31, "main")
    (advice,) = found.advice
    check_fix(advice.fix)
    assert "train.py:31" in advice.fix.do
    gain, interval = advice.predicted_gain_pct, advice.gain_interval_pct
    assert gain == pytest.approx(100.0 * (99.0 / 79.0 - 1.0))
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_it_is_the_cause_where_steps_compute() -> None:
    """Beside it the steps themselves are none."""
    verdict = evaluate(ALL_RULES, repeated())
    assert verdict.primary is not None
    assert verdict.primary.rule == "repeated-backward"


def test_a_place_in_a_library_has_no_line() -> None:
    found = fires(RepeatedBackward(), repeated(replace(FOUND, file="", line=0, function="")))
    assert found.location is None
    check_fix(found.advice[0].fix)


@pytest.mark.parametrize(
    "found",
    [replace(FOUND, again_s=0.0), replace(FOUND, again_s=0.005), replace(FOUND, steps=1)],
    ids=["no graph is shared", "little of it", "an exception"],
)
def test_silent(found: Found) -> None:
    assert silent(RepeatedBackward(), repeated(found))


def test_silent_beside_a_device() -> None:
    """Operations are only launched there."""
    assert silent(RepeatedBackward(), repeated(FOUND, *device_steps()))


def test_abstains() -> None:
    assert missing(RepeatedBackward(), run()) == ("spent.tensors.repeated_backward",)
