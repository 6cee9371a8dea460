"""launch-bound: the device waits for the host to launch its kernels."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.launch_bound import LaunchBound
from stallmeter.window import Window

from .windows import device_steps, fires, gpus, hosts, missing, run, silent


def launching(busy_pct: float = 60.0, caught_up: float = 1.0, *records: Any, **changes: Any) -> Window:
    """A run of 99 s of training whose GPU is busy that much, and done at that share of the steps' ends."""
    return run(
        *device_steps(exposed=caught_up), *gpus(20, lambda i: {"utilization_pct": busy_pct}), *records, **changes
    )


def test_fires():
    """Idle is what the utilization leaves, without exposed wait (2 s) and copies (1 %)."""
    found = fires(LaunchBound(), launching())
    assert found.time_lost_s == pytest.approx(0.4 * 99.0 - 2.0 - 0.99)
    assert found.summary == (
        "The GPU idled 37 % of the training time inside the steps' own work, and was done with everything at 100 % of "
        "their ends."
    )


def test_threshold():
    """It is silent as soon as one of the three leaves its range."""
    assert fires(LaunchBound(), launching(86.0))
    assert silent(LaunchBound(), launching(87.5))
    assert silent(LaunchBound(good_gpu_pct=80.0), launching(80.0))
    assert fires(LaunchBound(), launching(60.0, 0.801))  # from Python 3.12 on, sums of floats are rounded otherwise
    assert silent(LaunchBound(), launching(60.0, 0.799))


def test_what_others_explain_is_not_counted():
    """A callback that takes the time leaves no idle time inside the steps."""
    assert silent(LaunchBound(), launching(60.0, 1.0, callbacks={"Slow": 36.0}))


def test_it_explains_low_utilization():
    """Of the rules about compute only one speaks."""
    made = launching(40.0, 1.0, *hosts(20, lambda i: {"usable_cpus": 8.0, "job_cpus": 1.0}))
    verdict = evaluate(ALL_RULES, made)
    assert verdict.primary is not None
    assert verdict.primary.rule == "launch-bound"
    assert not {"low-utilization", "compute-bound"} & {d.rule for d in verdict.diagnoses}


def test_abstains():
    """Without events or without utilization there is nothing to judge."""
    assert missing(LaunchBound(), run(*gpus(20, lambda i: {"utilization_pct": 50.0}))) == ("device.caught_up_share",)
    assert missing(LaunchBound(), run(*device_steps())) == ("gpu.utilization_pct", "spent.idle_in_steps_s")
    fleeting = device_steps(wait_s=5e-6, beside_s=5e-6)
    assert "device.caught_up_share" in missing(
        LaunchBound(), run(*fleeting, *gpus(20, lambda i: {"utilization_pct": 50.0}))
    )


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(LaunchBound(idle_pct=50.0), launching())
