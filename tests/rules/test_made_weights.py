"""made-weights: a recurrent cell makes the same weight for each time step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import MadeWeights as Found
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.made_weights import MadeWeights, in_vain
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window

FOUND = Found(time_s=START_S, weights=1, made=32, passes=1, kind="Orthogonal", share=0.4)


def made(found: Found = FOUND, *more: Any, **buckets: Any) -> Window:
    """A run of 100 s, most of them in the model."""
    return run(loader(), found, *more, **buckets)


def test_fires() -> None:
    found = fires(MadeWeights(), made())
    assert found.severity is Severity.WARNING
    assert found.summary == (
        "In a step weights of Orthogonal are made 32 times each, which is 40 % of the time in modules."
    )
    assert found.culprit == "Orthogonal"
    computed_s = made().spent.bucket_s("forward", "backward", "compute")
    assert computed_s is not None
    assert found.time_lost_s == pytest.approx(0.8 * 31 / 32 * 0.4 * computed_s)
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_each_forward_pass_needs_them() -> None:
    assert in_vain(replace(FOUND, made=3, passes=3)) == 0.0
    assert in_vain(replace(FOUND, made=64, passes=2)) == pytest.approx(1.0 - 2 / 64)
    # A cell that the loop itself calls is no forward pass each time.
    assert in_vain(replace(FOUND, made=32, passes=32)) == pytest.approx(1.0 - 4 / 32)
    assert in_vain(Found(time_s=START_S)) == 0.0


def test_some_of_a_step_is_left() -> None:
    everything = made(replace(FOUND, share=1.0))
    computed_s = everything.spent.bucket_s("forward", "backward", "compute")
    assert computed_s is not None
    found = fires(MadeWeights(), everything)
    assert found.time_lost_s == pytest.approx(0.8 * 31 / 32 * computed_s)
    assert found.severity is Severity.CRITICAL


def test_it_stands_before_the_model_itself() -> None:
    primary = evaluate(ALL_RULES, made()).primary
    assert primary is not None
    assert primary.rule == "made-weights"


@pytest.mark.parametrize(
    "found",
    [replace(FOUND, made=1), replace(FOUND, share=0.05), Found(time_s=START_S, passes=3)],
    ids=["once", "quickly", "none"],
)
def test_nothing_to_be_said(found: Found) -> None:
    assert silent(MadeWeights(), made(found))


def test_beside_a_device_the_host_times_launches() -> None:
    assert silent(MadeWeights(), made(FOUND, *device_steps()))


def test_abstains() -> None:
    assert missing(MadeWeights(), window()) == ("ledger.training_s", "spent.tensors.made_weights")
    assert missing(MadeWeights(), run(loader())) == ("spent.tensors.made_weights",)
