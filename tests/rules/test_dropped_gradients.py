"""dropped-gradients: one network's step computes gradients of another one, which are cleared before they are used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import DroppedGradients as Found
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.dropped_gradients import ABOVE, BENEATH, BESIDE, DroppedGradients
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.rule import BACKWARD, MOST_OF_A_STEP
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window

STEP_S = 0.1
"""Of the run: 1,000 steps in 100 s."""

FOUND = Found(
    time_s=START_S,
    beneath="generator",
    beneath_during="critic",
    beneath_s=0.2 * STEP_S,
    above="critic",
    above_during="generator",
    above_s=0.1 * STEP_S,
    backward_s=0.6 * STEP_S,
    tensors=24,
    steps=6,
)

ONLY_ABOVE = replace(FOUND, beneath="", beneath_during="", beneath_s=0.0, above_s=0.3 * STEP_S)


def in_turn(found: Found = FOUND, *more: Any, **buckets: Any) -> Window:
    """A run of 100 s, nearly all of it in steps of two networks."""
    return run(loader(), found, *more, **(buckets or {"compute": 95.0}))


def seconds(made: Window, of_a_step: float) -> float:
    """What the steps of a run take of something."""
    assert made.ledger.record is not None
    return of_a_step * made.ledger.record.steps


def test_fires() -> None:
    made = in_turn()
    found = fires(DroppedGradients(), made)
    assert found.severity is Severity.WARNING
    assert found.summary == (
        "Each backward pass for critic computes gradients of generator, too, which nobody uses: 20.0 ms of a step."
    )
    assert found.culprit == "generator"
    assert found.time_lost_s == pytest.approx(BENEATH[1] * seconds(made, FOUND.beneath_s))
    first, second = found.advice
    assert first.text.startswith("Detach what generator makes where critic is trained.")
    assert second.text.startswith("Call requires_grad_(False) on critic while generator is trained.")
    gain, interval = first.predicted_gain_pct, first.gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_what_gradients_must_pass_through() -> None:
    made = in_turn(ONLY_ABOVE)
    found = fires(DroppedGradients(), made)
    assert found.time_lost_s == pytest.approx(ABOVE[1] * seconds(made, ONLY_ABOVE.above_s))
    assert [advice.text.split(" while")[0] for advice in found.advice] == ["Call requires_grad_(False) on critic"]


@pytest.mark.parametrize(
    ("seen", "is_beneath", "faster"), [(0.157, True, 1.29), (0.105, True, 1.21), (0.17, True, 1.47), (0.22, True, 1.33),
                                       (0.236, False, 1.12), (0.202, False, 1.18)]
)  # fmt: skip
def test_what_was_measured_lies_in_the_interval(seen: float, is_beneath: bool, faster: float) -> None:
    """Cases of benchmarks.faults.detach, those at its ends among them."""
    found = (
        replace(FOUND, beneath_s=seen * STEP_S, above_s=0.0)
        if is_beneath
        else replace(ONLY_ABOVE, above_s=seen * STEP_S)
    )
    interval = fires(DroppedGradients(), in_turn(found)).advice[0].gain_interval_pct
    assert interval is not None
    assert interval[0] <= 100.0 * (faster - 1.0) <= interval[1]


def test_a_part_that_no_optimizer_has() -> None:
    """It may be a teacher beside the student, whose backward pass came first by chance."""
    teacher = replace(ONLY_ABOVE, above="model.target", above_during="model.online", above_trained=False)
    made = in_turn(teacher)
    found = fires(DroppedGradients(), made)
    assert found.time_lost_s == pytest.approx(BESIDE[1] * seconds(made, teacher.above_s))
    assert found.advice[0].text.startswith("Call requires_grad_(False) on model.target: no optimizer has it.")


def test_on_a_device_the_host_times_launches() -> None:
    made = in_turn(FOUND, *device_steps(), forward=60.0, backward=1.0)
    work_s = made.spent.step_work_s
    assert work_s is not None
    share = FOUND.beneath_s / FOUND.backward_s
    found = fires(DroppedGradients(), made)
    assert found.time_lost_s == pytest.approx(BENEATH[1] * share * BACKWARD * work_s)
    on_cpu = fires(DroppedGradients(), in_turn()).advice[0].gain_interval_pct
    interval = found.advice[0].gain_interval_pct
    assert interval is not None
    assert on_cpu is not None
    assert interval[1] > on_cpu[1]


def test_some_of_the_step_is_left() -> None:
    made = in_turn(replace(FOUND, beneath_s=STEP_S))
    assert made.spent.step_work_s is not None
    found = fires(DroppedGradients(), made)
    assert found.time_lost_s == pytest.approx(MOST_OF_A_STEP * made.spent.step_work_s)
    assert found.severity is Severity.CRITICAL


def test_it_is_the_cause_where_it_takes_most() -> None:
    primary = evaluate(ALL_RULES, in_turn()).primary
    assert primary is not None
    assert primary.rule == "dropped-gradients"


def test_a_small_part() -> None:
    assert silent(DroppedGradients(), in_turn(replace(FOUND, beneath_s=0.05 * STEP_S)))
    assert silent(DroppedGradients(), in_turn(replace(ONLY_ABOVE, above_s=0.1 * STEP_S)))


def test_no_gradients_are_dropped() -> None:
    assert silent(DroppedGradients(), in_turn(Found(time_s=START_S)))
    assert silent(DroppedGradients(), in_turn(Found(time_s=START_S, backward_s=0.05, steps=6)))


def test_networks_without_a_name() -> None:
    nameless = replace(FOUND, beneath="", beneath_during="", above="", above_during="")
    found = fires(DroppedGradients(), in_turn(nameless))
    assert found.advice[0].text.startswith("Detach what the one network makes where the other is trained.")
    assert found.culprit is None


def test_abstains() -> None:
    needs = ("ledger.training_s", "ledger.record", "spent.tensors.dropped_gradients", "spent.step_work_s")
    assert missing(DroppedGradients(), window()) == needs
    assert missing(DroppedGradients(), run(loader(), compute=50.0)) == ("spent.tensors.dropped_gradients",)
