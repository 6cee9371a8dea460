"""launch-bound: the device waits for the host to launch its kernels."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import CodeLook, CodeSpot
from stallmeter.records.code import STEPS
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.launch_bound import LaunchBound
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, gpus, hosts, missing, run, silent


def launching(busy_pct: float = 60.0, caught_up: float = 1.0, *records: Any, **changes: Any) -> Window:
    """A run of 99 s of training whose GPU is busy that much, and done at that share of the steps' ends."""
    return run(
        *device_steps(exposed=caught_up), *gpus(20, lambda i: {"utilization_pct": busy_pct}), *records, **changes
    )


def look_at_steps(beside_s: float, of_s: float = 100.0) -> CodeLook:
    """Looks at the steps that found a function beside the model for some of their seconds."""
    spot = CodeSpot(file="train.py", line=7, function="measure", own=True, wall_s=beside_s, calls=("numpy.add.at",))
    return CodeLook(
        time_s=START_S,
        place="loop",
        rule="compute-bound",
        bucket=STEPS,
        method="samples",
        seen=400,
        wall_s=of_s,
        spots=(spot,),
        beside=(spot,),
        after=(spot,),
        model_s=1.0,
    )


def test_fires():
    """Idle is what the utilization leaves, without exposed wait (2 s) and copies (1 %)."""
    found = fires(LaunchBound(), launching())
    assert found.time_lost_s == pytest.approx(0.4 * 99.0 - 2.0 - 0.99)
    assert found.summary == (
        "The GPU idled 37 % of the training time while the host was at work on the steps, and was busy 60 % of it."
    )


def test_threshold():
    """It is silent as soon as one of the three leaves its range."""
    assert fires(LaunchBound(), launching(86.0))
    assert silent(LaunchBound(), launching(87.5))
    assert silent(LaunchBound(good_gpu_pct=80.0), launching(80.0))
    assert fires(LaunchBound(), launching(60.0, 0.501))  # from Python 3.12 on, sums of floats are rounded otherwise
    assert silent(LaunchBound(), launching(60.0, 0.499))


def test_a_device_that_is_behind_has_a_pace_of_its_own():
    """The host has launched a step and waits for data; the device needs most of a step's time to be through with it."""
    behind = run(
        *device_steps(wait_s=0.2, exposed_wait_s=0.14, total_s=0.25), *gpus(20, lambda i: {"utilization_pct": 30.0})
    )
    assert behind.device.caught_up_share == pytest.approx(0.704, abs=0.01)
    assert behind.device.queued_share is not None
    assert behind.device.queued_share > 0.5
    assert silent(LaunchBound(), behind)


def test_what_the_host_does_beside_the_model_is_no_launch():
    """A function that takes most of the steps while the device idles for most of them leaves it little to launch."""
    assert silent(LaunchBound(), launching(30.0, 1.0, look_at_steps(beside_s=90.0)))
    assert fires(LaunchBound(), launching(30.0, 1.0, look_at_steps(beside_s=30.0)))


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
    assert missing(LaunchBound(), run(*gpus(20, lambda i: {"utilization_pct": 50.0}))) == (
        "device.caught_up_share",
        "device.queued_share",
    )
    assert missing(LaunchBound(), run(*device_steps())) == ("gpu.utilization_pct", "spent.idle_in_steps_s")
    fleeting = device_steps(wait_s=5e-6, beside_s=5e-6)
    assert "device.caught_up_share" in missing(
        LaunchBound(), run(*fleeting, *gpus(20, lambda i: {"utilization_pct": 50.0}))
    )


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(LaunchBound(idle_pct=50.0), launching())
