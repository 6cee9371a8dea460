"""no-step-ends: the training thread stands in one place."""

from __future__ import annotations

import pytest

from stallmeter.records import CodeLook, CodeSpot, Event
from stallmeter.records.code import STANDING, STOOD
from stallmeter.records.diagnosis import Location, Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.no_step_ends import NoStepEnds
from stallmeter.window import Window

from .windows import START_S, fires, ledger, missing, silent, step, window

SPOT = CodeSpot(file="train.py", line=9, function="main", own=True, wall_s=40.0, calls=("torch.autograd.backward",))


def stood(seconds: float, *, spots: tuple[CodeSpot, ...] = (SPOT,), since_s: float = 0.0) -> Window:
    """100 steps of 0.1 s, and then one in which the thread stands."""
    steps = [step(i, total_s=0.1, compute_s=0.1, time_s=START_S + 0.1 * (i + 1)) for i in range(100)]
    look = CodeLook(
        time_s=START_S + 10.0 + seconds,
        place="loop",
        bucket=STANDING,
        rule="",
        method=STOOD,
        seen=2,
        wall_s=seconds,
        spots=spots,
    )
    wall_s = 10.0 + seconds + since_s
    record = ledger(wall_s=wall_s, steps=100, start=0.0, data_wait=0.0, loop=0.0, compute=wall_s)
    return window(*steps, record, look)


def test_fires():
    found = fires(NoStepEnds(), stood(40.0, since_s=50.0))
    assert found.severity is Severity.CRITICAL
    assert found.time_lost_s == 90.0
    assert found.share_pct == 90.0
    assert found.summary == (
        "For 90 s no step has ended: the training thread stands in main (train.py:9), in torch.autograd.backward."
    )


def test_it_is_the_primary_with_its_place():
    found = evaluate(ALL_RULES, stood(40.0)).primary
    assert found is not None
    assert found.rule == "no-step-ends"
    assert found.location == Location("train.py", 9, "main", 100.0, "torch.autograd.backward")


def test_a_place_without_a_name():
    assert "stands in one place." in fires(NoStepEnds(), stood(40.0, spots=())).summary


def test_steps_that_go_on_end_it():
    made = stood(40.0)
    went_on = CodeLook(time_s=START_S + 60.0, place="loop", bucket=STANDING, rule="", method=STOOD, seen=2, wall_s=0.0)
    made.append(went_on)
    silent(NoStepEnds(), made)


def test_a_thread_that_nobody_found_in_one_place():
    silent(NoStepEnds(), window(ledger()))
    assert missing(NoStepEnds(), window()) == ("ledger.record",)


@pytest.mark.parametrize(("how", "stands"), [("end", False), ("interpreter exit", False), ("exception: X", True)])
def test_a_program_that_came_to_its_end_has_left_the_step(how: str, stands: bool):
    made = stood(40.0)
    made.append(Event(time_s=START_S + 60.0, name="end", detail=how))
    if stands:
        fires(NoStepEnds(), made)
    else:
        silent(NoStepEnds(), made)
