"""repeated-derivatives: derivatives of one output are asked for one input at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import CodeLook, CodeSpot
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.repeated_derivatives import RepeatedDerivatives
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window


def asked(
    spared: float = 0.1, *records: Any, derivatives: float = 0.3, gradients: float = 0.9, seen: int = 400, **facts: Any
) -> Window:
    """A run of 100 s, of whose steps looks find one part in derivatives, and some of that to be spared."""
    spots = (CodeSpot(file="physics.py", line=14, function="first_order", own=True, wall_s=10.0 * spared),)
    look = CodeLook(
        time_s=START_S,
        place="loop",
        bucket="steps",
        rule="",
        method="samples",
        seen=seen,
        wall_s=10.0,
        derivatives=spots if spared else (),
        derivatives_s=10.0 * derivatives,
        model_s=0.2,
        gradients_s=10.0 * gradients,
    )
    return run(loader(), look, *records, facts=facts)


def test_fires() -> None:
    """As large a part of the backward pass is spared as of the derivatives: a third."""
    found = fires(RepeatedDerivatives(), asked())
    assert found.severity is Severity.INFO
    assert found.title == "first_order asks for derivatives of one output one input at a time"
    assert found.time_lost_s == pytest.approx((0.1 + 0.6 / 3.0) * 96.0, rel=0.02)
    assert found.location is not None
    assert (found.location.line, found.location.share_pct) == (14, pytest.approx(10.0, rel=0.05))
    assert "(physics.py:14)" in found.advice[0].text


def test_at_the_least_nothing_of_the_backward_pass_is_spared() -> None:
    found = fires(RepeatedDerivatives(), asked(seen=10**6)).advice[0]
    assert found.predicted_gain_pct is not None
    assert found.gain_interval_pct is not None
    assert found.gain_interval_pct[0] < 100.0 * (1.0 / (1.0 - 0.1) - 1.0)
    assert found.gain_interval_pct[0] < found.predicted_gain_pct < found.gain_interval_pct[1]


def test_without_a_backward_pass_the_derivatives_are_all() -> None:
    """They are what is looked for, and no loss is made of them."""
    found = fires(RepeatedDerivatives(), asked(0.2, gradients=0.3))
    assert found.time_lost_s == pytest.approx(0.2 * 96.0, rel=0.02)


def test_what_an_author_who_knew_no_rule_won() -> None:
    """Eight calls where three are enough, with second derivatives beside them: 1.17 and 1.32 times as fast."""
    interval = (
        fires(RepeatedDerivatives(), asked(0.085, derivatives=0.303, gradients=0.968)).advice[0].gain_interval_pct
    )
    assert interval is not None
    assert interval[0] <= 17.0
    assert interval[1] >= 32.0


@pytest.mark.parametrize("made", [asked(0.0), asked(0.01, derivatives=0.1, gradients=0.2), asked(seen=40, spared=0.09)])
def test_silent(made: Window) -> None:
    """None are repeated; it takes little; few looks met it."""
    assert silent(RepeatedDerivatives(), made)


def test_it_stands_before_a_step_that_sets_the_pace() -> None:
    primary = evaluate(ALL_RULES, asked()).primary
    assert primary is not None
    assert primary.rule == "repeated-derivatives"


def test_beside_a_gpu_only_what_it_waits_for_counts() -> None:
    gpu = {"accelerator": "CUDAAccelerator"}
    assert silent(RepeatedDerivatives(), asked(**gpu))
    idle = asked(0.1, *device_steps(50), **gpu)
    assert silent(RepeatedDerivatives(), idle)


def test_without_looks_it_abstains() -> None:
    assert "code.torch.repeated_derivatives" in missing(RepeatedDerivatives(), window())


def test_user_thresholds() -> None:
    little = asked(0.03, gradients=0.3)
    assert silent(RepeatedDerivatives(), little)
    assert fires(replace(RepeatedDerivatives(), info_pct=2.0), little)
