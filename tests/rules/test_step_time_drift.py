"""step-time-drift: steps get slower over the run."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import BatchContent, CodeLook, CodeSpot
from stallmeter.records.code import STEPS
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.step_time_drift import StepTimeDrift
from stallmeter.window import Window

from .windows import START_S, check_fix, fires, ledger, missing, silent, step, window


def slower(part: str = "callbacks", grown_s: float = 0.2, count: int = 400, at_first_s: float = 0.0) -> Window:
    """Steps of 0.1 s, of which one bucket takes more and more; the ledger is their sum."""
    made: list[Any] = []
    for i in range(count):
        usual = getattr(step(i), f"{part}_s") or 0.0
        extra = at_first_s + grown_s * i / count
        made.append(step(i, **{f"{part}_s": usual + extra, "total_s": 0.1 + extra}))
    names = ("data_wait", "forward", "backward", "optimizer", "loop", "callbacks", "logging", "checkpoint")
    sums = {name: sum(getattr(s, f"{name}_s") or 0.0 for s in made) for name in names}
    named = {kind: {"Metrics": sums.pop(kind)} for kind in ("callbacks", "logging")}
    return window(*made, ledger(wall_s=sum(s.total_s for s in made), steps=count, start=0.0, **named, **sums))


def test_fires():
    """What steps took above their early level is lost."""
    found = fires(StepTimeDrift(), slower())
    assert found.title == "Steps get slower over the run: callbacks"
    assert found.summary.startswith(
        "Steps took 113.0 ms at the beginning and 286.5 ms at the end of the run, 154 % more"
    )
    assert found.time_lost_s == pytest.approx(400 * 0.087, rel=0.05)
    assert found.severity is Severity.CRITICAL


def test_what_a_callback_gathers_need_not_be_thrown_away():
    """A metric of all values is the same once an epoch, which wins what it takes at first as well; of a logger less."""
    found = fires(StepTimeDrift(), slower(at_first_s=0.05))
    assert [one.fix.do.partition(" ")[0] for one in found.advice] == ["Run", "Clear"]
    seldom, clear = (one.predicted_gain_pct for one in found.advice)
    assert None not in (seldom, clear)
    assert seldom > clear
    assert [one.fix.do.partition(" ")[0] for one in fires(StepTimeDrift(), slower("logging")).advice] == [
        "Clear",
        "Run",
    ]
    for one in found.advice:
        check_fix(one.fix)


def test_size():
    """A growth that costs little is not told."""
    assert silent(StepTimeDrift(), slower(grown_s=0.02))
    assert silent(StepTimeDrift(), slower(grown_s=0.0))
    assert silent(StepTimeDrift(min_lost_s=100.0), slower())


def test_it_is_the_cause_where_all_was_fine_at_first():
    """The callback is slow because it grew: one diagnosis, not two."""
    verdict = evaluate(ALL_RULES, slower())
    assert verdict.primary is not None
    assert verdict.primary.rule == "step-time-drift"
    assert "slow-callback" not in {found.rule for found in verdict.diagnoses}


def test_not_where_it_was_slow_from_the_beginning():
    """Then both are true, and the larger loss is the first."""
    verdict = evaluate(ALL_RULES, slower(at_first_s=0.2))
    assert [found.rule for found in verdict.diagnoses[:2]] == ["slow-callback", "step-time-drift"]


@pytest.mark.parametrize("part", ["data_wait", "forward"])
def test_other_parts(part):
    """What grew is named, and the advice is for it."""
    found = fires(StepTimeDrift(), slower(part))
    assert ("waiting for data" if part == "data_wait" else part) in found.title
    assert ("dataset" if part == "data_wait" else "tensors") in found.advice[0].text


def test_abstains():
    """Without steps there is nothing to judge."""
    assert missing(StepTimeDrift(), window(ledger())) == ("steps.step_time_s",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(StepTimeDrift(growth_pct=200.0), slower())


def grows(part: str = "forward", batches: float = 1.67) -> Window:
    """The same, while batches hold more and more, in three stages."""
    made = slower(part)
    for i in range(42):
        held = int(1e6 * (1.0 + (batches - 1.0) * (i // 14) / 2.0))
        made.append(BatchContent(time_s=float(i), tensors=1, bytes=held))
    return made


def test_steps_that_grow_with_their_batches_lose_nothing():
    """Sequences of 96, 128 and 160 tokens, one after the other: attention makes the step grow a little more."""
    found = StepTimeDrift().check(grows())
    assert found is not None
    assert (found.severity, found.time_lost_s) == (Severity.INFO, 0.0)
    assert "the batches held 67 % more" in found.summary
    verdict = evaluate(ALL_RULES, grows())
    assert verdict.primary is not None
    assert verdict.primary.rule == "compute-bound"


def test_batches_that_grow_a_little_explain_no_steps_that_grow_much():
    """Nor do they explain a callback."""
    assert fires(StepTimeDrift(), grows(batches=1.05)).severity is Severity.CRITICAL
    assert fires(StepTimeDrift(), grows("callbacks")).severity is Severity.CRITICAL


def test_a_function_that_takes_what_the_steps_have_gained_is_named():
    """A score of all that was seen so far, anew in each step."""
    made = slower("forward")
    spot = CodeSpot(file="train.py", line=21, function="Scores.push", own=True, wall_s=60.0, calls=("numpy.sort",))
    seen = {"place": "loop", "rule": "compute-bound", "bucket": STEPS, "method": "samples", "seen": 600}
    made.append(CodeLook(time_s=START_S, wall_s=80.0, spots=(spot,), beside=(spot,), **seen))  # type: ignore[arg-type]
    found = fires(StepTimeDrift(), made)
    assert "Scores.push" in found.advice[0].text
    assert "(train.py:21)" in found.advice[0].text
