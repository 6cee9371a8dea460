"""From a diagnosis to the place in the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import CodeLook, CodeSpot
from stallmeter.records.code import IN_THE_LOOP
from stallmeter.records.diagnosis import Advice, Diagnosis, Location, Severity
from stallmeter.rules.checkpoint_stall import CheckpointStall
from stallmeter.rules.location import located, with_gain
from stallmeter.rules.step_outliers import StepOutliers
from stallmeter.rules.validation_heavy import ValidationHeavy
from stallmeter.window import Window

from .test_step_outliers import pauses
from .windows import check_fix, device_steps, fires, loader, run

ROTATE = CodeSpot(
    file="transforms.py", line=88, function="Rotate.__call__", own=True, wall_s=0.64, calls=("PIL.Image.Image.rotate",)
)


def _diagnosis(rule: str, culprit: str | None = None) -> Diagnosis:
    return Diagnosis(
        rule=rule,
        severity=Severity.WARNING,
        title="",
        summary="",
        time_lost_s=1.0,
        share_pct=10.0,
        confidence=0.9,
        culprit=culprit,
    )


def _window(*spots: CodeSpot, place: str = "workers", bucket: str = "", part: str = "") -> Window:
    window = Window()
    window.append(
        CodeLook(
            time_s=0.0,
            place=place,
            rule="",
            bucket=bucket,
            part=part,
            method="profile",
            seen=3,
            wall_s=1.0,
            spots=spots,
        )
    )
    return window


@pytest.mark.parametrize("rule", ["prep-stall", "too-few-workers", "no-workers", "fetch-stall", "slow-batches"])
def test_what_is_lost_in_the_workers_is_placed_by_the_look_inside_them(rule):
    assert located(_diagnosis(rule), _window(ROTATE)).location == Location(
        file="transforms.py", line=88, function="Rotate.__call__", share_pct=64.0, call="PIL.Image.Image.rotate"
    )


@pytest.mark.parametrize(
    "file",
    [
        "lightning/pytorch/trainer/trainer.py",
        "torch/utils/data/dataloader.py",
        "transformers/pytorch_utils.py",
        "lightning/pytorch/core/module.py",
        "torch/nn/modules/conv.py",
    ],
)
def test_what_drives_a_loop_or_asks_for_items_or_computes_a_model_is_no_place(file):
    driver = CodeSpot(file=file, line=5, function="run", own=False, wall_s=0.6)
    assert located(_diagnosis("prep-stall"), _window(driver)).location is None
    assert located(_diagnosis("prep-stall"), _window(replace(driver, own=True))).location is not None


def test_a_callback_is_placed_by_the_look_into_it_and_not_by_one_into_another():
    window = _window(ROTATE, place="loop", bucket="callbacks", part="Slow")
    assert located(_diagnosis("slow-callback", "Slow"), window).location is not None
    assert located(_diagnosis("slow-callback", "Other"), window).location is None
    assert located(_diagnosis("prep-stall"), window).location is None


def test_what_was_found_in_the_long_steps_need_not_be_found():
    found = replace(_diagnosis("step-outliers"), advice=(Advice.of("Find it.", expect="Less.", gain_pct=40.0),))
    window = _window(replace(ROTATE, wall_s=0.9), place="loop", bucket="long steps")
    placed = with_gain(located(found, window), window).advice[0]
    assert "Rotate.__call__ (transforms.py:88)" in placed.text
    assert "Find it" not in placed.text
    assert "Expect: Less." in placed.text
    assert placed.predicted_gain_pct == 40.0


def test_of_long_steps_no_more_is_won_than_what_their_place_holds():
    """A rollout of which a third is the casting of rays: the rest of it stays."""
    window = pauses(50, pause_s=2.0)
    found = fires(StepOutliers(), window)
    whole_pct = found.advice[0].predicted_gain_pct
    window.append(replace(_loop_look("long steps"), seen=300, spots=(replace(ROTATE, wall_s=0.3),)))
    placed = with_gain(located(found, window), window).advice[0]
    assert "the 30 % of their time that it takes" in placed.text
    won_pct = placed.predicted_gain_pct
    assert whole_pct is not None
    assert won_pct is not None
    assert won_pct / (100.0 + won_pct) == pytest.approx(0.3 * whole_pct / (100.0 + whole_pct), rel=0.1)


def test_what_a_long_step_does_with_the_model_once_it_has_its_gradients_is_why_it_is_long():
    model = CodeSpot(file="net.py", line=3, function="Net.forward", own=True, wall_s=0.6)
    drawn = CodeSpot(file="train.py", line=9, function="preview", own=True, wall_s=0.4)
    window = Window()
    window.append(replace(_loop_look("long steps"), spots=(model,), after=(drawn,)))
    window.append(replace(_loop_look("steps"), spots=(model,), after=(drawn,)))
    assert [
        getattr(located(_diagnosis(rule), window).location, "function", None)
        for rule in ("step-outliers", "compute-bound")
    ] == ["preview", "Net.forward"]
    window.append(replace(_loop_look("long steps"), spots=(model,), after=(replace(drawn, wall_s=0.1),)))
    found = located(_diagnosis("step-outliers"), window).location
    assert found is not None
    assert found.function == "Net.forward"


def test_where_workers_wait_the_function_that_waits_is_named_and_not_the_one_that_computes():
    computes = CodeSpot(file="train.py", line=57, function="Augment.__call__", own=True, wall_s=0.5, cpu_s=0.5)
    waits = CodeSpot(file="train.py", line=20, function="Shards.read", own=True, wall_s=0.4, cpu_s=0.01)
    window = _window(computes, waits)
    for rule, named in (("fetch-stall", waits), ("prep-stall", computes)):
        found = located(_diagnosis(rule), window).location
        assert found is not None
        assert (found.function, found.share_pct) == (named.function, pytest.approx(100.0 * named.wall_s))
    unknown = located(_diagnosis("fetch-stall"), _window(replace(computes, cpu_s=None), waits)).location
    assert unknown is not None
    assert unknown.function == computes.function


def test_where_no_function_holds_enough_there_is_no_place():
    small = CodeSpot(file="a.py", line=1, function="a", own=True, wall_s=0.1)
    assert located(_diagnosis("prep-stall"), _window(small)).location is None
    assert located(_diagnosis("prep-stall"), _window()).location is None


def _loop_look(bucket: str, part: str = "", *, seen: int = 40, place: str = "loop") -> CodeLook:
    return CodeLook(
        time_s=0.0,
        place=place,
        rule="",
        bucket=bucket,
        part=part,
        method="samples",
        seen=seen,
        wall_s=1.0,
        spots=(ROTATE,),
    )


@pytest.mark.parametrize(
    ("rule", "bucket"),
    [
        ("compute-bound", "steps"),
        ("host-sync", "steps"),
        ("step-outliers", "long steps"),
        ("checkpoint-stall", "checkpoint"),
        ("validation-heavy", "validation"),
        ("slow-logging", "logging"),
    ],
)
def test_what_the_loops_own_thread_loses_is_placed_by_the_look_into_its_bucket_and_says_how(rule, bucket):
    window = Window()
    window.append(_loop_look(bucket))
    found = located(_diagnosis(rule), window)
    assert found.location is not None
    assert found.location.line == 88
    assert [(e.value, e.unit) for e in found.evidence] == [(40.0, "samples")]


def test_a_metric_that_is_most_of_validation_is_to_be_made_cheaper():
    """30 of 100 s, 20 of them beyond what is usual, 19.2 in one function; the model is not to be made cheaper."""
    for function, advised in (("MeanPrecision.compute", True), ("Net.forward", False), ("Net.validation_step", False)):
        window = run(start=0.0, validation=30.0)
        window.append(replace(_loop_look("validation"), spots=(replace(ROTATE, function=function),)))
        heavy = fires(ValidationHeavy(), window)
        found = with_gain(located(heavy, window), window)
        texts = [advice.text for advice in found.advice]
        assert (texts != [advice.text for advice in heavy.advice]) == advised
        if advised:
            assert texts[0].startswith(f"Make {function} cheaper (transforms.py:88).")
            assert "10.8 s instead of 30.0 s" in texts[0]
            assert found.advice[0].predicted_gain_pct == pytest.approx(100 * (100 / 80.8 - 1), rel=0.05)
            assert len(texts) == len(heavy.advice) + 1


def test_what_a_checkpoint_is_packed_with_comes_after_fewer_of_them():
    window = run(start=0.0, checkpoint=30.0)
    window.append(replace(_loop_look("checkpoint"), spots=(replace(ROTATE, function="Box.seal", wall_s=1.0),)))
    heavy = fires(CheckpointStall(), window)
    first, second, *_ = with_gain(located(heavy, window), window).advice
    assert first == heavy.advice[0]
    assert second.text.startswith("Make Box.seal cheaper (transforms.py:88).")
    assert "Saving would take 0.0 s instead of 30.0 s" in second.text
    assert second.predicted_gain_pct == pytest.approx(100 * (100 / 70 - 1), rel=0.05)


def test_a_culprit_that_is_no_part_of_the_bucket_does_not_hide_the_place():
    window = Window()
    window.append(_loop_look("steps"))
    assert located(_diagnosis("host-sync", "train.py:3 in step"), window).location is not None


def test_few_samples_are_no_place():
    window = Window()
    window.append(_loop_look("steps", seen=9))
    assert located(_diagnosis("compute-bound"), window).location is None


def test_a_slow_start_is_placed_before_the_first_step():
    window = Window()
    window.append(_loop_look("start", place="startup"))
    assert located(_diagnosis("slow-start"), window).location is not None


def test_batches_that_the_loop_makes_itself_are_placed_by_looks_into_its_wait():
    """Without workers, and where nobody has looked into one; with workers the loop's thread makes none."""
    looked = replace(_window(ROTATE, place="loop", bucket=IN_THE_LOOP).code.looks[0], method="samples", seen=40)
    placed = {}
    for workers in (0, 2, None):
        window = Window()
        if workers is not None:  # of a framework's own loader nobody knows
            window.append(loader(num_workers=workers))
        window.append(looked)
        placed[workers] = located(_diagnosis("input-bound"), window).location
    for workers in (0, None):
        place = placed[workers]
        assert place is not None
        assert (place.function, place.line) == ("Rotate.__call__", 88)
    assert placed[2] is None


def test_steps_that_sleep():
    """The author is asked what a sleep in the steps stands for before the model is compiled; nothing is promised."""
    usual = replace(_diagnosis("compute-bound"), advice=(Advice.of("Compile the model."),))
    told = CodeSpot(file="hooks.py", line=18, function="Slow.batch_end", own=True, wall_s=0.86, calls=("time.sleep",))
    resize = replace(ROTATE, own=False)
    for spot, first in ((told, "Check why Slow.batch_end sleeps (hooks.py:18)."), (resize, "Compile the model.")):
        window = _window(spot, place="loop", bucket="steps")
        found = with_gain(located(usual, window), window)
        assert found.advice[0].fix.do == first
        assert found.advice[0].predicted_gain_pct is None
        assert found.advice[-1].fix.do == "Compile the model."


def test_where_steps_take_most_is_named_first():
    """Nobody knows whether it can be made cheaper: nothing is promised."""
    usual = replace(_diagnosis("compute-bound"), advice=(Advice.of("Compile the model."),))
    window = _window(ROTATE, place="loop", bucket="steps")
    first, last = with_gain(located(usual, window), window).advice
    check_fix(first.fix)
    assert first.fix.do == "Look at Rotate.__call__ first (transforms.py:88)."
    assert first.predicted_gain_pct is None
    assert last.fix.do == "Compile the model."


def test_steps_in_which_looks_met_the_backward_pass_alone():
    """It is the place, and nothing that is to be looked at."""
    calls = CodeSpot(file="train.py", line=9, function="main", own=True, wall_s=1.0, calls=("torch.autograd.backward",))
    usual = replace(_diagnosis("compute-bound"), advice=(Advice.of("Compile the model."),))
    window = _window(calls, place="loop", bucket="steps")
    found = with_gain(located(usual, window), window)
    assert found.location is not None
    assert found.location.function == "main"
    assert found.advice == usual.advice


def test_what_is_known_of_a_call_in_the_model_stands_beside_it():
    drops = replace(ROTATE, calls=("torch.nn.functional.dropout",), called_there="torch.nn.functional.dropout")
    usual = replace(_diagnosis("compute-bound"), advice=(Advice.of("Compile the model."),))
    window = _window(drops, place="loop", bucket="steps")
    _, second, _ = with_gain(located(usual, window), window).advice
    assert second.fix.do.startswith("Use dropout on fewer numbers")
    for one in device_steps():
        window.append(one)
    assert len(with_gain(located(usual, window), window).advice) == 2


def test_who_calls_the_backward_pass_is_not_where_steps_take_most():
    """Nor if a framework stands in between."""
    calls = CodeSpot(file="train.py", line=149, function="main", own=True, wall_s=0.66, calls=("Accelerator.backward",))
    usual = replace(_diagnosis("compute-bound"), advice=(Advice.of("Compile the model."),))
    for wall_s, first in ((0.18, "Look at Rotate.__call__ first (transforms.py:88)."), (0.16, "Compile the model.")):
        window = _window(calls, replace(ROTATE, wall_s=wall_s), place="loop", bucket="steps")
        found = with_gain(located(usual, window), window)
        assert found.location is not None
        assert found.location.function == "Rotate.__call__"
        assert found.advice[0].fix.do == first


def test_what_a_trainer_keeps_of_an_evaluation_is_to_be_less():
    """It is copied for each batch: larger batches of the model's are not the cure, nor is its speed."""
    adds = CodeSpot(
        file="transformers/trainer_pt_utils.py", line=376, function="EvalLoopContainer.add", own=False, wall_s=0.8
    )
    window = run(start=0.0, validation=30.0)
    window.append(replace(_loop_look("validation"), spots=(adds,)))
    heavy = fires(ValidationHeavy(), window)
    assert not any("batch size" in advice.text for advice in heavy.advice)
    first = with_gain(located(heavy, window), window).advice[0]
    check_fix(first.fix)
    assert "preprocess_logits_for_metrics" in first.fix.do
    assert first.predicted_gain_pct == pytest.approx(100 * (100 / 76 - 1), rel=0.05)
    window.append(replace(_loop_look("validation"), spots=(replace(adds, wall_s=0.1),)))
    heavy = fires(ValidationHeavy(), window)
    assert any("batch size" in advice.text for advice in heavy.advice)
    assert with_gain(located(heavy, window), window).advice == heavy.advice


def test_long_steps_whose_place_is_found_need_no_other_advice():
    window = pauses(50, pause_s=2.0)
    found = fires(StepOutliers(), window)
    for wall_s, advised in ((0.9, 1), (0.3, len(found.advice))):
        window.append(replace(_loop_look("long steps"), seen=300, spots=(replace(ROTATE, wall_s=wall_s),)))
        assert len(with_gain(located(found, window), window).advice) == advised
