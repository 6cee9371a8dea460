"""fixed-features: a frozen part of the model makes the same of the same items in each epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import FixedFeatures as Found
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.fixed_features import FixedFeatures
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, ledger, loader, missing, run, silent, step, window

FOUND = Found(
    time_s=START_S,
    name="ResNet",
    modules=1,
    call_s=0.04,
    expected=300.0,
    again=294,
    file="train.py",
    line=31,
    function="Net.forward",
)


def fixed(found: Found = FOUND, *more: Any, epochs: int = 4, **buckets: Any) -> Window:
    """A run of 1000 steps of 0.1 s."""
    record = replace(ledger(**buckets), epochs=epochs)
    return window(*(step(i) for i in range(100)), loader(), found, *more, record)


def test_fires() -> None:
    found = fires(FixedFeatures(), fixed())
    assert found.severity is Severity.WARNING
    assert found.title == "ResNet learns nothing, and makes the same of each item in every epoch"
    assert found.summary == (
        "It takes 40 ms of a step, 42 % of what steps do. Of 300 items that had to be met again 98 % were, unchanged."
    )
    assert found.time_lost_s == pytest.approx(30.0)  # of three epochs in four
    place = found.location
    assert place is not None
    assert (place.file, place.line, place.function) == ("train.py", 31, "Net.forward")
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain == pytest.approx(100.0 * (99.0 / 69.0 - 1.0))
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_the_more_epochs_the_more_is_saved() -> None:
    lost = [fires(FixedFeatures(), fixed(epochs=epochs)).time_lost_s for epochs in (2, 4, 40)]
    assert lost == [pytest.approx(20.0), pytest.approx(30.0), pytest.approx(39.0)]


def test_several_layers_have_no_name() -> None:
    found = fires(FixedFeatures(), fixed(replace(FOUND, name="Conv2d", modules=8)))
    assert found.title == "Layers that learn nothing make the same of each item in every epoch"
    assert found.advice[0].fix.do == "Call these layers once for each item, and keep what they return."


def test_batches_that_are_kept_need_not_be_made() -> None:
    """The most that may be won holds the waits for data, which are those for items that are no longer needed."""
    slow, quick = (fires(FixedFeatures(), fixed(data_wait=seconds)).advice[0] for seconds in (30.0, 1.0))
    assert slow.gain_interval_pct is not None
    assert quick.gain_interval_pct is not None
    assert slow.gain_interval_pct[1] > quick.gain_interval_pct[1]


def test_it_stands_before_the_model_itself() -> None:
    primary = evaluate(ALL_RULES, fixed()).primary
    assert primary is not None
    assert primary.rule == "fixed-features"


@pytest.mark.parametrize(
    "found",
    [
        replace(FOUND, again=150),
        replace(FOUND, expected=30.0, again=30),
        replace(FOUND, call_s=0.004),
        Found(time_s=START_S),
    ],
    ids=["half of them were changed", "few were met", "quickly", "none"],
)
def test_nothing_to_be_said(found: Found) -> None:
    assert silent(FixedFeatures(), fixed(found))


def test_one_epoch_needs_it_once() -> None:
    assert silent(FixedFeatures(), fixed(epochs=1))


def test_beside_a_device_the_host_times_launches() -> None:
    assert silent(FixedFeatures(), fixed(FOUND, *device_steps()))


def test_abstains() -> None:
    needed = ("ledger.epochs", "ledger.record", "ledger.training_s", "spent.tensors.fixed_features")
    assert missing(FixedFeatures(), window()) == needed
    assert missing(FixedFeatures(), run(loader())) == ("spent.tensors.fixed_features",)
