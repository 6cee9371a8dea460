"""Which of the first steps are warm-up, and what they took beyond steady ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import StepRecord
from stallmeter.window.warmup import FIRST_STEPS, MIN_REFERENCE_STEPS, PARTS, REFERENCE_STEPS, FirstSteps, WarmUp

from ..rules.windows import step, window

USUAL_S = 0.024


def worked(index: int, forward_s: float, backward_s: float = 0.0, **changes: object) -> StepRecord:
    """A step with this work in it."""
    known = {"forward_s": forward_s, "backward_s": backward_s, "optimizer_s": 0.0, "data_wait_s": 0.0, "loop_s": 0.0}
    return step(index, **{**known, "total_s": forward_s + backward_s, **changes})


def found(works: Iterable[float | StepRecord]) -> WarmUp | None:
    """The warm-up of steps that work for so long."""
    first = FirstSteps()
    for index, work in enumerate(works):
        first.add(work if isinstance(work, StepRecord) else worked(index, work))
    return first.find()


def noisy(count: int, seed: int = 0, usual_s: float = USUAL_S) -> list[float]:
    """Steps on a machine that others use, too: now and then one takes far longer."""
    rng = random.Random(seed)
    return [
        usual_s * rng.lognormvariate(0, 0.15) + (rng.random() < 0.04) * rng.uniform(0.05, 0.4) for _ in range(count)
    ]


@pytest.mark.parametrize("count", [5, 8, 12, 20, 100, 1000])
def test_a_long_first_step(count):
    """Whatever the length of the run."""
    made = found([12.0] + [USUAL_S] * (count - 1))
    assert made is not None
    assert (made.steps, made.long) == (1, {0})
    assert made.excess_s == pytest.approx(12.0 - USUAL_S)
    assert made.buckets == {"forward": pytest.approx(12.0 - USUAL_S)}


@pytest.mark.parametrize(
    ("first", "steps"),
    [
        ([USUAL_S, USUAL_S, 8.0], 3),  # compiled at the third
        ([9.0, USUAL_S, 6.0], 3),  # once more, for other shapes
        ([2.0, 2.1, 1.9, 2.0, 0.5], 5),  # a few shapes, each tuned when it comes
        ([2.0, 1.0, 0.5, 0.25, 0.125, 0.06], 6),  # a cache that fills
        ([2.0, *[USUAL_S] * 14, 3.0], 16),  # the optimizer of 16 accumulated batches
    ],
)
def test_not_the_first_step_alone(first, steps):
    """Compilation comes when it likes, and the run settles after it."""
    made = found(first + [USUAL_S] * 80)
    assert made is not None
    assert made.steps == steps
    assert made.excess_s == pytest.approx(sum(max(0.0, w - USUAL_S) for w in first), rel=0.01)


@pytest.mark.parametrize("count", [3, 4])
def test_too_few_steps(count):
    """Three steps must tell what a steady one takes."""
    assert found([12.0] + [USUAL_S] * (count - 1)) is None
    assert MIN_REFERENCE_STEPS == 3


def test_healthy_runs_have_none():
    """Early steps that a busy machine holds up are like those that it holds up later."""
    for seed in range(40):
        for count in (12, 60, 400):
            made = found(noisy(count, seed))
            assert made is not None
            assert made.excess_s <= 0.45, (seed, count)  # at most one stall, which nobody could tell apart
    assert sum((found(noisy(400, seed)) or WarmUp(0, 9.9)).excess_s for seed in range(40)) / 40 < 0.05


def test_slow_throughout():
    """Where all steps are slow, or the first part of the run is, nothing is warm-up."""
    assert found([2.0] * 50) == WarmUp(0, 0.0)
    assert found([0.2] * 150 + [USUAL_S] * 600) == WarmUp(0, 0.0)
    made = found([12.0] + [0.2] * 150 + [USUAL_S] * 600)
    assert made is not None
    assert made.long == {0}
    assert made.excess_s == pytest.approx(11.8)


def test_pauses_that_come_again_are_none():
    """One step in ten is long: so was one of the first."""
    assert found([1.0 if i % 10 == 3 else USUAL_S for i in range(200)]) == WarmUp(0, 0.0)
    assert found([1.0 if i % 16 == 15 else USUAL_S for i in range(32)]) == WarmUp(0, 0.0)


def test_waiting_is_none():
    """Slow storage, callbacks, validation and checkpoints have buckets of their own."""
    slow = {"data_wait_s": 3.0, "callbacks_s": 4.0, "validation_s": 5.0, "checkpoint_s": 6.0, "total_s": 18.024}
    assert found([worked(0, USUAL_S, **slow), *[USUAL_S] * 40]) == WarmUp(0, 0.0)


def test_each_bucket_has_its_part():
    """What a step took longer in, and together no more than it took longer."""
    steps = [worked(0, 5.0, 3.0), *(worked(i, 0.01, 0.02) for i in range(1, 40))]
    made = found(steps)
    assert made is not None
    assert made.buckets == {"forward": pytest.approx(4.99), "backward": pytest.approx(2.98)}
    assert made.excess_s == pytest.approx(7.97)


def test_settled_once():
    """When enough steps have come, they are forgotten and the answer stays."""
    first = FirstSteps()
    for i in range(FIRST_STEPS + REFERENCE_STEPS):
        first.add(worked(i, 12.0 if i == 0 else USUAL_S))
    before = first.find()
    assert before is not None
    assert before.long == {0}
    for i in range(1000, 2000):
        first.add(worked(i, 3.0))
    assert first.find() is before
    assert first._first == first._later == []


def test_after_a_change_of_workers_there_are_no_first_steps():
    """A history that begins in the middle of a run has none."""
    assert found([worked(i + 20, 9.0 if i == 0 else USUAL_S) for i in range(60)]) is None


def test_steady_steps_leave_it_out():
    """Medians, means, the slowest and the time from which hardware counts are those of steady steps."""
    first = [step(i, total_s=5.0, forward_s=4.93) for i in range(8)]
    made = window(*first, *(step(i) for i in range(8, 100)))
    assert made.steps.warm_up is not None
    assert made.steps.warm_up.steps == 8
    assert made.steps.step_time_s is not None
    assert made.steps.step_time_s.max == pytest.approx(0.1)
    assert {s.index for s in made.steps.slowest}.isdisjoint(range(8))
    assert made.steps.begun_s == first[-1].time_s
    assert made.steps.count == 97


SECONDS = st.integers(0, 10**11).map(lambda ns: ns / 1e9)


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=60))
def test_never_more_than_was_spent(works: Sequence[tuple[float, float, float]]) -> None:
    """In no bucket, whatever the steps are."""
    made = found(
        worked(i, f, b, optimizer_s=o, compute_s=None if i % 2 else f, total_s=f + b + o)
        for i, (f, b, o) in enumerate(works)
    )
    if made is None:
        return
    spent = dict.fromkeys(PARTS, 0.0)
    for i, (f, b, o) in enumerate(works):
        if i in made.long:
            for part, s in {"forward": f, "backward": b, "optimizer": o, "compute": 0.0 if i % 2 else f}.items():
                spent[part] += s
    assert all(0 <= seconds <= spent[part] + 1e-6 for part, seconds in made.buckets.items())
    assert made.excess_s == pytest.approx(sum(made.buckets.values()))
