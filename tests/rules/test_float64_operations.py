"""float64-operations: a buffer of 64 bits makes part of a model compute with 64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import WideNumbers
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.float64_operations import MOST_OF_A_STEP, SAVES, Float64Operations
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window

FOUND = WideNumbers(
    time_s=START_S,
    wide=400,
    numbers=1000,
    operation="SoftmaxBackward0",
    buffer="Attention.bias",
    buffer_numbers=65_536,
)


def wide(found: WideNumbers = FOUND, *more: Any, **buckets: Any) -> Window:
    """A run of 100 s, most of them in the model."""
    return run(loader(), found, *more, **buckets)


def test_fires() -> None:
    found = fires(Float64Operations(), wide())
    assert found.severity is Severity.WARNING
    assert found.summary == (
        "40 % of the numbers that the model's operations make have 64 bits, most of them those of softmax, "
        "though its weights have fewer; Attention.bias is a buffer of 64 bits."
    )
    assert found.culprit == "Attention.bias"
    assert found.advice[0].text.startswith("Make Attention.bias float32 where it is registered.")
    computed_s = wide().spent.bucket_s("forward", "backward", "compute")
    assert computed_s is not None
    assert found.time_lost_s == pytest.approx(SAVES[1] * 0.4 * computed_s)
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_where_no_buffer_has_64_bits() -> None:
    found = fires(Float64Operations(), wide(replace(FOUND, buffer="", buffer_numbers=0)))
    assert found.culprit == "float64"
    assert found.summary.endswith("though its weights have fewer.")
    assert found.advice[0].text.startswith("Make float32 of what NumPy has made")


def test_some_of_a_step_is_left() -> None:
    made = wide(replace(FOUND, wide=1000))
    computed_s = made.spent.bucket_s("forward", "backward", "compute")
    assert computed_s is not None
    found = fires(Float64Operations(), made)
    assert found.time_lost_s == pytest.approx(MOST_OF_A_STEP * computed_s)
    assert found.severity is Severity.CRITICAL


def test_it_stands_before_the_model_itself() -> None:
    primary = evaluate(ALL_RULES, wide()).primary
    assert primary is not None
    assert primary.rule == "float64-operations"


def test_on_a_device_it_is_told_without_a_gain() -> None:
    found = fires(Float64Operations(), wide(FOUND, *device_steps()))
    assert found.severity is Severity.INFO
    assert found.advice[0].predicted_gain_pct is None


@pytest.mark.parametrize(
    "found",
    [replace(FOUND, wide=110), replace(FOUND, wide=0), replace(FOUND, trained_wide=True)],
    ids=["few", "none", "a model of 64 bits"],
)
def test_nothing_to_be_said(found: WideNumbers) -> None:
    assert silent(Float64Operations(), wide(found))


def test_where_the_model_takes_little() -> None:
    assert silent(Float64Operations(), wide(FOUND, forward=1.0, backward=2.0, data_wait=70.0))


def test_abstains() -> None:
    assert missing(Float64Operations(), window()) == ("ledger.training_s", "spent.tensors.wide")
    assert missing(Float64Operations(), run(loader())) == ("spent.tensors.wide",)
