"""same-result: a function that steps call returns the same each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import SameResults
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.same_result import SameResult
from stallmeter.window import Window

from .test_slow_function import each, look, modelled
from .windows import START_S, check_fix, fires, ledger, missing, run, silent, step, window

FOUND = SameResults(
    time_s=START_S,
    steps=3,
    function="LightGCN.norm_adj",
    file="train.py",
    line=31,
    call_s=0.04,
    calls=1,
    numbers=240_000,
)


def same(found: SameResults = FOUND, *more: Any, **buckets: Any) -> Window:
    """A run of 1000 steps of 0.1 s."""
    return window(*(step(i) for i in range(100)), found, *more, ledger(**buckets))


def test_fires() -> None:
    found = fires(SameResult(), same())
    assert found.severity is Severity.WARNING
    assert found.title == "LightGCN.norm_adj returns the same in each step"
    assert found.summary == (
        "It takes 40 ms of a step, 40 % of the training time. All its 240,000 numbers were the same in 3 steps."
    )
    assert found.time_lost_s == pytest.approx(40.0)
    place = found.location
    assert place is not None
    assert (place.file, place.line, place.function) == ("train.py", 31, "LightGCN.norm_adj")
    (advice,) = found.advice
    check_fix(advice.fix)
    gain, interval = advice.predicted_gain_pct, advice.gain_interval_pct
    assert gain == pytest.approx(100.0 * (99.0 / 59.0 - 1.0))
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_how_often_it_is_called() -> None:
    assert ", called 3 times, 40 %" in fires(SameResult(), same(replace(FOUND, calls=3))).summary


def test_it_is_the_cause_where_steps_compute() -> None:
    """The steps themselves are none beside it."""
    verdict = evaluate(ALL_RULES, same())
    assert verdict.primary is not None
    assert verdict.primary.rule == "same-result"


@pytest.mark.parametrize(
    "found",
    [SameResults(time_s=START_S, steps=3), replace(FOUND, call_s=0.006), replace(FOUND, steps=2)],
    ids=["none", "little", "too few steps"],
)
def test_silent(found: SameResults) -> None:
    assert silent(SameResult(), same(found))


def test_abstains() -> None:
    assert missing(SameResult(), run()) == ("spent.tensors.same_results",)


@pytest.mark.parametrize(
    ("share", "seen", "suspected"),
    [(0.4, 100, True), (0.05, 400, False), (0.4, 12, None)],
    ids=["much", "little", "few"],
)
def test_who_holds_much_of_the_steps_is_suspected(share, seen, suspected) -> None:
    """As looks at the stack find it, beside the model and within; nobody is before enough of these met it."""
    beside = each(look(share, seen=seen)), ("meter.py", "Meter.update")
    within = modelled(share, 0.0, seen), ("net.py", "adjacency")
    for made, name in (beside, within):
        found = SameResult().suspects(made)
        assert (None if found is None else name in found) is suspected


def test_without_looks_nobody_is_known() -> None:
    assert SameResult().suspects(same()) is None
