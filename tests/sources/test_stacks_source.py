"""What is looked into in the training thread, and what there is to tell of it."""

from __future__ import annotations

import dis
import sys
import time
from types import CodeType
from typing import Any

import pytest

from stallmeter.records import BUCKETS, NO_LOADER, LedgerRecord, LoaderInfo, StepRecord
from stallmeter.records.code import BEFORE_MODEL, BETWEEN_EPOCHS, EPOCH_STARTS, LONG_STEPS
from stallmeter.sources.code.reading import Reading
from stallmeter.sources.code.whose import Whose
from stallmeter.sources.stacks.sampler import LONG_STEP, STEADY, Look, StackSampler
from stallmeter.sources.stacks.source import ENOUGH, LoopLooks
from stallmeter.sources.stacks.tally import Tally
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import (
    CALLBACKS,
    CHECKPOINT,
    COMPUTE,
    FIRST_WAIT,
    H2D,
    OPTIMIZER,
    OTHER,
    START,
    WORKER_STARTUP,
    Ledger,
)
from stallmeter.window import Window


class Time:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def slow() -> None:
    """Stands on the stacks."""


def quick() -> None:
    """So does this."""


def dozes() -> None:
    """Asks to sleep in its first line, and for something else in its second."""
    time.sleep(0.0)
    time.monotonic()


@pytest.fixture
def rig(monkeypatch):
    monkeypatch.setattr(StackSampler, "start", lambda self: None)
    now = Time()
    clock = StepClock(Ledger(START, now), loop=COMPUTE, unix_ns=lambda: 0)
    looks = LoopLooks(clock, Window(), 99, Whose())
    looks.now = now  # type: ignore[attr-defined]
    return looks


def _see(looks: LoopLooks, slot: int, function=slow, *, phase: int = STEADY, times: int = 1) -> None:
    for _ in range(times):
        stack = ((_see.__code__, 0), (function.__code__, 0))
        looks._sampler.looks.append(Look(slot, phase, 10_000_000, stack))


def _window_of(looks: LoopLooks, steps: int, body_s: float, first_s: float) -> None:
    for index in range(steps):
        spent = first_s if index == 0 else body_s
        looks._window.append(
            StepRecord(
                index=index,
                epoch=0,
                optimizer_step=None,
                tracker_step=index,
                samples=1,
                time_s=float(index),
                total_s=spent,
                data_wait_s=0.0,
                compute_s=spent,
                epoch_start=index == 0,
            )
        )
    looks._clock.index = steps
    buckets = {**dict.fromkeys(BUCKETS, 0.0), "compute": steps * body_s + first_s}
    looks._window.append(LedgerRecord(time_s=0.0, wall_s=sum(buckets.values()), steps=steps, epochs=1, buckets=buckets))


def test_the_function_with_most_of_the_time_comes_first_with_its_share(rig):
    _see(rig, CHECKPOINT, slow, times=30)
    _see(rig, CHECKPOINT, quick, times=10)
    (look,) = rig.sample(time.time())
    assert (look.place, look.bucket, look.method, look.seen) == ("loop", "checkpoint", "samples", 40)
    assert look.wall_s == pytest.approx(0.4)
    assert [(spot.function, spot.own) for spot in look.spots] == [("slow", True), ("quick", True)]
    assert look.spots[0].wall_s == pytest.approx(0.3)


def test_callbacks_are_told_apart_and_a_place_is_told_of_again_when_there_is_more(rig):
    first, second = (rig._ledger.slot(CALLBACKS, name) for name in ("A", "B"))
    _see(rig, first, times=20)
    _see(rig, second, times=9)
    assert {(look.bucket, look.part) for look in rig.sample(0.0)} == {("callbacks", "A"), ("callbacks", "B")}
    _see(rig, first)
    assert rig.sample(1.0) == []
    _see(rig, first, times=10)
    assert [(look.part, look.seen) for look in rig.sample(2.0)] == [("A", 31)]
    _see(rig, second)
    assert rig.sample(3.0) == []
    assert [(look.part, look.seen) for look in rig.sample(30.0)] == [("B", 10)]


def test_few_looks_say_nothing(rig):
    _see(rig, CHECKPOINT, times=3)
    assert rig.sample(0.0) == []


def test_a_bucket_is_asked_for_by_its_share_of_the_time_and_no_more_when_seen_enough(rig):
    slot = rig._ledger.slot(CALLBACKS, "A")
    other = rig._ledger.slot(CALLBACKS, "B")
    rig.now.ns += 1_000_000_000
    rig._ledger.acc[slot] += 200_000_000
    rig._ledger.acc[other] += 1_000_000
    rig.sample(0.0)
    assert rig._sampler.wanted.slots == {slot}
    _see(rig, slot, times=ENOUGH)
    rig.sample(1.0)
    assert rig._sampler.wanted.slots == frozenset()
    assert rig._sampler.wanted.enough == {slot}


def test_a_new_primary_cause_has_its_place_looked_into_once_more(rig):
    slot = rig._ledger.slot(CALLBACKS, "A")
    _see(rig, slot, times=ENOUGH)
    rig.sample(0.0)
    rig.request("compute-bound", 100)
    rig.request("slow-callback", 200)
    rig.now.ns += 1_000_000_000
    rig._ledger.acc[slot] += 500_000_000
    rig.sample(1.0)
    assert rig._sampler.wanted.slots == {slot}


def test_the_first_steps_are_part_of_the_start_as_far_as_they_took_longer(rig):
    _see(rig, COMPUTE, slow, phase=0, times=20)
    _see(rig, COMPUTE, quick, phase=5, times=10)
    assert rig._sampler.wanted.first_steps
    _window_of(rig, 40, 0.01, 3.0)
    found = {(look.place, look.bucket): look for look in rig.sample(0.0)}
    assert found["startup", "warmup"].spots[0].function == "slow"
    assert found["loop", "steps"].spots[0].function == "quick"
    assert not rig._sampler.wanted.first_steps


def test_a_long_start_is_looked_at_to_its_end(rig):
    _see(rig, START, times=2 * ENOUGH)
    rig.sample(0.0)
    assert START not in rig._sampler.wanted.enough
    assert rig._sampler.wanted.first_steps


def test_long_steps_are_a_place_of_their_own(rig):
    _window_of(rig, 100, 0.01, 0.01)
    rig.sample(0.0)
    assert rig._sampler.wanted.median_ns == 10_000_000
    _see(rig, COMPUTE, phase=LONG_STEP, times=20)
    (look,) = rig.sample(1.0)
    assert (look.place, look.bucket, look.rule) == ("loop", "long steps", "step-outliers")


def test_enough_long_steps_are_told_from_the_others_all_the_same(rig):
    _window_of(rig, 100, 0.01, 0.01)
    _see(rig, COMPUTE, phase=LONG_STEP, times=ENOUGH)
    rig.sample(0.0)
    wanted = rig._sampler.wanted
    assert (wanted.median_ns, wanted.long_ones, wanted.often) == (10_000_000, False, False)


def test_long_steps_of_a_short_run_are_looked_at_as_soon_as_the_median_is_known(rig):
    """A run of some seconds had none: its first samples are of no steps."""
    rig.sample(0.0)
    assert rig._sampler.wanted.median_ns is None
    _window_of(rig, 100, 0.01, 0.01)
    rig.sample(1.0)
    assert rig._sampler.wanted.median_ns == 10_000_000


def test_the_median_is_asked_for_less_often_later(rig, monkeypatch):
    _window_of(rig, 100, 0.01, 0.01)
    asked = []
    outliers = rig._window.steps.outliers
    monkeypatch.setattr(type(rig._window.steps), "outliers", lambda _, factor: asked.append(0) or outliers(factor))
    counts = []
    for second in range(160):
        rig.sample(float(second))
        counts.append(len(asked))
    assert counts[7] == 8
    assert counts[159] - counts[79] == 10


def _of_line(function: Any, number: int) -> tuple[CodeType, int]:
    """Return a place on a stack: a function, in one of its lines, counted from 1."""
    code = function.__code__
    begins = {line: at for at, _, line in code.co_lines() if line and line > code.co_firstlineno}
    return code, begins[sorted(begins)[number - 1]]


def test_a_hook_around_the_copy_prepares_the_batch(rig):
    """Lightning's on_before_batch_transfer, say, which no line of the user's calls."""
    _window_of(rig, 40, 0.01, 0.01)
    rig.sample(0.0)
    _see(rig, H2D, slow, times=30)
    _see(rig, COMPUTE, quick, times=30)
    for _ in range(10):
        stack = ((_see.__code__, 0), _of_line(dozes, 1))
        rig._sampler.looks.append(Look(H2D, STEADY, 10_000_000, stack))
    (look,) = rig.sample(1.0)
    assert look.bucket == "steps"
    assert [spot.function for spot in look.apart] == [spot.function for spot in look.before] == ["slow"]


def test_without_a_loader_what_comes_before_the_model_is_told(rig):
    module = compile("def _call_impl(): pass", "/x/site-packages/torch/nn/modules/module.py", "exec")
    model = next(code for code in module.co_consts if hasattr(code, "co_code"))
    rig._window.append(LoaderInfo(time_s=0.0, kind=NO_LOADER))
    _window_of(rig, 40, 0.01, 0.01)
    rig.sample(0.0)
    for code, line, times in ((slow.__code__, 1, 30), (model, 2, 10)):
        for _ in range(times):
            stack = (_of_line(dozes, line), (code, 0))
            rig._sampler.looks.append(Look(COMPUTE, STEADY, 10_000_000, stack))
    looks = {look.bucket: look for look in rig.sample(1.0)}
    assert [spot.function for spot in looks[BEFORE_MODEL].spots] == ["slow"]
    assert looks[BEFORE_MODEL].wall_s == pytest.approx(0.4)
    assert looks[BEFORE_MODEL].rule == "input-bound"


def test_a_slow_start_names_the_slowest_call_and_import(rig):
    _see(rig, START, slow, times=20)
    module = compile("pass", "/x/site-packages/heavy/__init__.py", "exec")
    for _ in range(10):
        rig._sampler.looks.append(Look(START, 0, 10_000_000, ((quick.__code__, 0), (module, 0))))
    (look,) = rig.sample(0.0)
    assert (look.place, look.bucket, look.rule) == ("startup", "start", "slow-start")
    assert [spot.function for spot in look.spots] == ["slow", "quick"]
    assert look.spots[1].calls == ("import heavy",)


def test_under_a_framework_who_called_it_owns_nothing_of_what_it_calls(monkeypatch):
    monkeypatch.setattr(StackSampler, "start", lambda self: None)
    looks = LoopLooks(StepClock(Ledger(START)), Window(), 99, Whose())
    fit = compile("def fit(): pass", "/x/site-packages/lightning/pytorch/trainer/trainer.py", "exec")
    save = compile("def save(): pass", "/x/site-packages/torch/serialization.py", "exec")
    codes = [next(c for c in module.co_consts if hasattr(c, "co_code")) for module in (fit, save)]
    for _ in range(20):
        stack = ((slow.__code__, 0), *((code, 0) for code in codes))
        looks._sampler.looks.append(Look(CHECKPOINT, STEADY, 10_000_000, stack))
    (look,) = looks.sample(0.0)
    assert not look.spots[0].own


def test_a_line_that_asks_to_sleep_is_known_by_its_source():
    tally = Tally()
    for line in (1, 2):
        tally.add(Look(COMPUTE, STEADY, 10, ((slow.__code__, 0), _of_line(dozes, line))))
    assert [one.stack[-1].sleeps for one in Reading(Whose()).seen(tally.items())] == [True, False]


def _scores(numbers):
    total = 0
    for number in numbers:
        total += number
    return total


def test_a_look_between_two_instructions_is_known_by_the_instruction():
    """Where the interpreter is asked for its lock, and not where an operator or a call has given it up."""
    code = _scores.__code__
    found = {}
    for instruction in dis.get_instructions(code):
        tally = Tally()
        tally.add(Look(COMPUTE, STEADY, 10, ((slow.__code__, 0), (code, instruction.offset))))
        [seen] = Reading(Whose()).seen(tally.items())
        found.setdefault(instruction.opname, set()).add(seen.stack[-1].interprets)
    assert found["BINARY_OP" if sys.version_info >= (3, 11) else "INPLACE_ADD"] == {False}
    assert found["FOR_ITER"] == {False}
    assert {name for name, known in found.items() if True in known} <= {"RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE"}
    assert any(True in known for known in found.values())


def _of_a_library() -> CodeType:
    made = compile("def iterate(): pass", "/x/site-packages/torch/utils/data/dataloader.py", "exec")
    return next(code for code in made.co_consts if hasattr(code, "co_code"))


@pytest.mark.parametrize("slot", [WORKER_STARTUP, FIRST_WAIT])
def test_where_epochs_begin_the_users_code_below_the_loader_is_told(rig, slot):
    for function, times in ((slow, 30), (None, 10)):
        below = () if function is None else ((function.__code__, 0),)
        for _ in range(times):
            stack = ((_see.__code__, 0), (_of_a_library(), 0), *below)
            rig._sampler.looks.append(Look(slot, STEADY, 10_000_000, stack))
    (look,) = rig.sample(0.0)
    assert (look.bucket, look.seen) == (EPOCH_STARTS, 40)
    assert [(spot.function, spot.wall_s) for spot in look.spots] == [("slow", pytest.approx(0.3))]
    assert look.wall_s == pytest.approx(0.4)


def test_what_lies_between_two_epochs_counts_once_there_is_another_one(rig):
    rig._clock.new_epoch(0)
    _see(rig, OTHER, times=30)
    assert rig.sample(0.0) == []
    rig._clock.new_epoch(1)
    (look,) = rig.sample(1.0)
    assert (look.bucket, look.seen) == (BETWEEN_EPOCHS, 30)
    _see(rig, OTHER, quick, times=2 * ENOUGH)  # after the last one
    assert rig.sample(60.0) == []
    assert OTHER in rig._sampler.wanted.enough
    assert OTHER not in rig._sampler.wanted.slots


def train(model: Any, loss: Any) -> None:
    """Stands for a step; each line is told by its number."""
    model()
    loss.backward()
    slow()


def _in_train(looks: LoopLooks, line: int, called: CodeType, *, phase: int = STEADY, times: int = 20) -> None:
    first = train.__code__.co_firstlineno
    at = next(at for at, number in dis.findlinestarts(train.__code__) if number == first + line)
    for _ in range(times):
        looks._sampler.looks.append(Look(COMPUTE, phase, 10_000_000, ((train.__code__, at), (called, 0))))


def test_what_long_steps_do_is_told_by_the_lines_that_usual_ones_were_met_in(rig):
    """A save each tenth step: the looks into long steps meet neither model nor gradients."""
    torch = pytest.importorskip("torch")
    _window_of(rig, 100, 0.03, first_s=0.03)
    rig._ledger.acc[OPTIMIZER] = 1
    _in_train(rig, 2, torch.nn.Module._call_impl.__code__)
    _in_train(rig, 3, torch.autograd.backward.__code__)
    _in_train(rig, 4, slow.__code__, phase=LONG_STEP)
    (long,) = [look for look in rig.sample(0.0) if look.bucket == LONG_STEPS]
    assert long.wall_s == pytest.approx(0.2)
    assert [(spot.function, spot.wall_s) for spot in long.after] == [("slow", pytest.approx(0.2))]


def test_what_is_computed_again_in_a_backward_pass_is_told_of_steps_alone(rig):
    made = compile("def recompute_fn(): pass", "/x/site-packages/torch/utils/checkpoint.py", "exec")
    again = next(one for one in made.co_consts if isinstance(one, CodeType))
    for _ in range(20):
        rig._sampler.looks.append(Look(COMPUTE, STEADY, 10_000_000, ((_see.__code__, 0), (again, 0))))
    _see(rig, COMPUTE, times=60)
    _see(rig, CHECKPOINT, times=20)
    found = {look.bucket: look.recomputed_s for look in rig.sample(time.time())}
    assert found["steps"] == pytest.approx(0.2)
    assert found["checkpoint"] is None
