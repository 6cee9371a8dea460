"""unused-gradients: a part of the model gets gradients that change no weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import Convolutions
from stallmeter.records import UnusedGradients as Found
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.rule import BACKWARD, MOST_OF_A_STEP
from stallmeter.rules.unused_gradients import SAVES, UnusedGradients
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window

FOUND = Found(
    time_s=START_S,
    part="model.backbone",
    kind="ResNet",
    tensors=60,
    numbers=9_000_000,
    updated_numbers=1_000_000,
)


def in_vain(found: Found = FOUND, *more: Any, **buckets: Any) -> Window:
    """A run of 100 s, half of it in backward passes."""
    return run(loader(), found, *more, **(buckets or {"backward": 50.0}))


def test_fires() -> None:
    found = fires(UnusedGradients(), in_vain())
    assert found.severity is Severity.WARNING
    assert found.summary == (
        "60 parameters of model.backbone (ResNet) get gradients in each step, and no optimizer changes them: "
        "90 % of all numbers that gradients are computed for."
    )
    assert found.culprit == "model.backbone"
    assert found.time_lost_s == pytest.approx(SAVES[1] * 0.9 * 50.0)
    assert found.advice[0].text.startswith("Call requires_grad_(False) on model.backbone.")
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


@pytest.mark.parametrize(
    ("also", "named"),
    [
        (("model.stem",), "model.backbone and model.stem."),
        (("a", "b"), "model.backbone, a and b."),
        (("a", "b", "c", "d"), "model.backbone, a, b and 2 more."),
    ],
)
def test_several_parts_are_named(also: tuple[str, ...], named: str) -> None:
    assert fires(UnusedGradients(), in_vain(replace(FOUND, also=also))).advice[0].fix.do.endswith(f" on {named}")


def test_lower_convolutions_save_more() -> None:
    few = replace(FOUND, numbers=300, updated_numbers=700)
    seen = Convolutions(time_s=START_S, share=0.8, forward_s=0.03)
    plain, convolved = (fires(UnusedGradients(), in_vain(few, *more)).advice[0] for more in ((), (seen,)))
    assert plain.predicted_gain_pct == convolved.predicted_gain_pct
    assert plain.gain_interval_pct is not None
    assert convolved.gain_interval_pct is not None
    assert plain.gain_interval_pct[1] < convolved.gain_interval_pct[1]


def test_some_of_the_step_is_left() -> None:
    all_of_it = replace(FOUND, updated_numbers=0)
    made = in_vain(all_of_it, backward=80.0)
    found = fires(UnusedGradients(), made)
    assert made.spent.step_work_s is not None
    assert found.time_lost_s == pytest.approx(MOST_OF_A_STEP * made.spent.step_work_s)


@pytest.mark.parametrize(
    ("share", "backward", "faster"),
    [
        (0.99, 0.60, 2.37),
        (0.5, 0.57, 1.51),
        (0.82, 0.60, 1.41),
        (0.99, 0.66, 3.68),
        (0.98, 0.58, 1.23),
        (0.5, 0.4, 1.4),
    ],
)
def test_what_was_measured_lies_in_the_interval(share: float, backward: float, faster: float) -> None:
    """Cases of benchmarks.faults.gradients, those at its ends among them."""
    found = replace(FOUND, numbers=int(1e6 * share), updated_numbers=int(1e6 * (1.0 - share)))
    made = in_vain(found, backward=97.0 * backward)
    interval = fires(UnusedGradients(), made).advice[0].gain_interval_pct
    assert interval is not None
    assert interval[0] <= 100.0 * (faster - 1.0) <= interval[1]


def test_a_step_in_one_piece() -> None:
    made = in_vain(FOUND, compute=90.0)
    work_s = made.spent.step_work_s
    assert work_s is not None
    assert fires(UnusedGradients(), made).time_lost_s == pytest.approx(SAVES[1] * 0.9 * BACKWARD * work_s)


def test_on_a_device_the_host_times_launches() -> None:
    made = in_vain(FOUND, *device_steps(), forward=60.0, backward=1.0)
    work_s = made.spent.step_work_s
    assert work_s is not None
    assert fires(UnusedGradients(), made).time_lost_s == pytest.approx(SAVES[1] * 0.9 * BACKWARD * work_s)


def test_it_is_the_cause_where_it_takes_most() -> None:
    primary = evaluate(ALL_RULES, in_vain()).primary
    assert primary is not None
    assert primary.rule == "unused-gradients"


@pytest.mark.parametrize(("backward_s", "severity"), [(20.0, Severity.WARNING), (80.0, Severity.CRITICAL)])
def test_the_more_it_takes_the_more_urgent(backward_s: float, severity: Severity) -> None:
    assert fires(UnusedGradients(), in_vain(FOUND, backward=backward_s)).severity is severity


def test_a_small_part() -> None:
    assert silent(UnusedGradients(), in_vain(replace(FOUND, numbers=100_000)))
    assert silent(UnusedGradients(), in_vain(FOUND, backward=5.0, data_wait=80.0))


def test_what_was_taken_back() -> None:
    taken_back = replace(FOUND, part="", kind="", tensors=0, numbers=0)
    assert silent(UnusedGradients(), in_vain(FOUND, taken_back, backward=50.0))


def test_a_part_without_a_name() -> None:
    found = fires(UnusedGradients(), in_vain(replace(FOUND, part="", kind="")))
    assert found.advice[0].text.startswith("Call requires_grad_(False) on that part.")
    assert found.culprit is None


def test_abstains() -> None:
    assert missing(UnusedGradients(), window()) == ("ledger.training_s", "spent.unused_gradients")
    assert missing(UnusedGradients(), run(loader(), backward=50.0)) == ("spent.unused_gradients",)
