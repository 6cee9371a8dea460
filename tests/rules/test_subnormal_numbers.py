"""subnormal-numbers: a CPU computes with numbers next to zero."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import BatchContent, SubnormalTensors
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.subnormal_numbers import SubnormalNumbers
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window


def filtered(share: float | None = 0.3, batches: int = 20, *records: Any, **more: Any) -> Window:
    """A run with batches of whose numbers such a share is subnormal."""
    looked_at = [BatchContent(time_s=START_S + i, tensors=2, bytes=4096, subnormal=share) for i in range(batches)]
    return run(loader(), *looked_at, *records, **more)


def test_fires() -> None:
    found = fires(SubnormalNumbers(), filtered())
    assert found.severity is Severity.WARNING
    assert found.summary == "30.0 % of the batches' numbers are subnormal: below 1.2e-38, and not zero."
    assert found.time_lost_s == 0.0
    assert found.advice[0].predicted_gain_pct is None


@pytest.mark.parametrize(
    ("share", "severity"), [(0.006, Severity.INFO), (0.049, Severity.INFO), (0.05, Severity.WARNING)]
)
def test_the_more_of_them_the_more_urgent(share: float, severity: Severity) -> None:
    assert fires(SubnormalNumbers(), filtered(share)).severity is severity


def test_it_comes_before_steps_that_set_the_pace() -> None:
    verdict = evaluate(ALL_RULES, filtered())
    assert verdict.primary is not None
    assert verdict.primary.rule == "subnormal-numbers"
    assert "compute-bound" not in {found.rule for found in verdict.diagnoses}


@pytest.mark.parametrize(("share", "batches"), [(0.004, 20), (0.0, 20), (0.3, 2), (None, 20)])
def test_nothing_to_be_said(share: float | None, batches: int) -> None:
    assert silent(SubnormalNumbers(), filtered(share, batches))


def tensors(gradients: float | None, states: float | None = None) -> SubnormalTensors:
    return SubnormalTensors(time_s=START_S, gradients=gradients, states=states)


@pytest.mark.parametrize(
    ("found", "severity", "what"),
    [
        (tensors(0.04), Severity.WARNING, "gradients"),
        (tensors(0.01), Severity.WARNING, "gradients"),
        (tensors(0.009), Severity.INFO, "gradients"),
        (tensors(0.01, 0.4), Severity.WARNING, "optimizer's states"),
        (tensors(None, 0.19), Severity.INFO, "optimizer's states"),
    ],
)
def test_inside_the_model(found: SubnormalTensors, severity: Severity, what: str) -> None:
    """With a loader or without one."""
    for made in (filtered(None, 20, found), filtered(0.0001, 20, found), run(found)):
        said = fires(SubnormalNumbers(), made)
        assert said.severity is severity
        assert f" of the {what}' numbers " in said.summary


def test_what_is_worst_is_said() -> None:
    assert " of the batches' numbers " in fires(SubnormalNumbers(), filtered(0.3, 20, tensors(0.03, 0.1))).summary


@pytest.mark.parametrize("found", [tensors(0.0, 0.019), tensors(0.0009), tensors(None, None)])
def test_hardly_any_inside_the_model(found: SubnormalTensors) -> None:
    assert silent(SubnormalNumbers(), run(found))


def test_on_a_gpu_they_cost_nothing() -> None:
    assert silent(SubnormalNumbers(), filtered(0.3, 20, *device_steps()))
    assert silent(SubnormalNumbers(), run(tensors(0.3), *device_steps()))


def test_abstains() -> None:
    assert missing(SubnormalNumbers(), window(loader())) == ("loader.content",)


def test_user_threshold() -> None:
    assert silent(SubnormalNumbers(info_pct=40.0), filtered())
