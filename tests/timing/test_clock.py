"""Steps are cut where batches are asked for, and no time is lost between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records.rows import is_kept
from stallmeter.timing.clock import DataSpan, StepClock, ValidationSpan, ValidationWait
from stallmeter.timing.ledger import COMPUTE, DATA_WAIT, FORWARD, OTHER, START, VALIDATION, Ledger, Span

from ..conftest import FakeTime


def one_step(clock: StepClock, time: FakeTime, wait_s: float, work_s: float, samples: int | None = 8) -> None:
    with DataSpan(clock, DATA_WAIT):
        time.sleep(wait_s)
    clock.samples = samples
    with Span(clock.ledger, FORWARD):
        time.sleep(work_s)
    clock.worked = True


def test_a_step_runs_from_asking_to_asking(step_clock: StepClock, fake_time: FakeTime) -> None:
    step_clock.new_epoch(3)
    fake_time.sleep(5)
    one_step(step_clock, fake_time, 1, 2)
    fake_time.sleep(0.5)
    one_step(step_clock, fake_time, 0.25, 2)
    step_clock.pause()
    first, second = step_clock.drain().steps
    assert (first.index, first.epoch, first.samples, first.epoch_start) == (0, 3, 8, True)
    assert first.total_s == pytest.approx(3.5)
    assert first.data_wait_s == pytest.approx(1)
    assert first.forward_s == pytest.approx(2)
    assert first.compute_s == pytest.approx(0.5)
    assert first.backward_s is None
    assert (second.data_wait_s, second.total_s, second.epoch_start) == (0.25, 2.25, False)
    assert second.time_s == pytest.approx(1_700_000_000 + 10.75)


def test_a_fetch_without_work_opens_no_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    one_step(step_clock, fake_time, 1, 1)
    with DataSpan(step_clock, DATA_WAIT):
        fake_time.sleep(1)
    step_clock.pause()
    assert [s.total_s for s in step_clock.drain().steps] == [2]
    assert step_clock.index == 1


def test_time_between_epochs_belongs_to_no_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    one_step(step_clock, fake_time, 1, 1)
    step_clock.pause()
    fake_time.sleep(10)
    step_clock.new_epoch(1)
    one_step(step_clock, fake_time, 1, 1)
    step_clock.pause()
    assert [s.total_s for s in step_clock.drain().steps] == [2, 2]
    assert step_clock.ledger.acc[OTHER] == 10e9


def test_a_fetch_inside_the_forward_pass_opens_no_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    step_clock.begin(step_clock.ledger.settle())
    with Span(step_clock.ledger, FORWARD):
        for _ in range(2):
            with DataSpan(step_clock, DATA_WAIT):
                fake_time.sleep(1)
        fake_time.sleep(3)
    step_clock.worked = True
    step_clock.pause()
    (step,) = step_clock.drain().steps
    assert (step.data_wait_s, step.forward_s, step.total_s) == (2, 3, 5)


def test_dropped_marks_cost_detail_but_no_time(ledger: Ledger, fake_time: FakeTime) -> None:
    clock = StepClock(ledger, loop=COMPUTE, idle=OTHER, capacity=4)
    for _ in range(10):
        one_step(clock, fake_time, 1, 1)
    clock.pause()
    drained = clock.drain()
    assert drained.lost + len(drained.steps) == 10
    assert drained.lost > 0
    assert all(step.total_s == 2 for step in drained.steps)
    assert sum(ledger.peek()) == 20e9


def test_only_an_even_sample_and_the_outliers_become_records(step_clock: StepClock, fake_time: FakeTime) -> None:
    step_clock.new_epoch(0)
    for i in range(100):
        one_step(step_clock, fake_time, 0.01, 5.0 if i in (41, 48) else 0.01)
    step_clock.pause()
    assert step_clock.pending == 102
    drained = step_clock.drain(every=8, slower_than_s=1.0)
    assert (drained.count, drained.samples, drained.lost) == (100, 800, 0)
    assert [s.index for s in drained.steps if not s.outlier] == [i for i in range(100) if is_kept(i, 8)]
    assert [(s.index, s.step_time_s) for s in drained.steps if s.outlier] == [(48, pytest.approx(5.01))]
    assert step_clock.pending == 0


def test_a_smaller_batch_is_kept_as_well(step_clock: StepClock, fake_time: FakeTime) -> None:
    """The last of each epoch, however few steps are: it tells what a step costs without its items."""
    step_clock.new_epoch(0)
    for i in range(100):
        one_step(step_clock, fake_time, 0.01, 0.01, samples=3 if i % 25 == 24 else 8)
    step_clock.pause()
    steps = step_clock.drain(every=8).steps
    assert [s.index for s in steps if s.samples == 3] == [24, 49, 74, 99]
    assert [s.index for s in steps if not s.outlier] == [i for i in range(100) if is_kept(i, 8)]


def test_the_first_steps_are_all_kept(step_clock: StepClock, fake_time: FakeTime) -> None:
    step_clock.new_epoch(0)
    for _ in range(400):
        one_step(step_clock, fake_time, 0.01, 0.01)
    step_clock.pause()
    steps = step_clock.drain(every=8, first=50).steps
    assert [s.index for s in steps] == [*range(50), *(i for i in range(50, 400) if is_kept(i, 8))]
    assert {(s.index < 50, s.every, s.outlier) for s in steps} == {(True, 1, False), (False, 8, False)}


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=20))
def test_which_steps_are_kept_depends_on_their_index_alone(drains: list[tuple[int, int]]) -> None:
    """Ranks drain at different moments; what one of them keeps, all keep that thin as little or less."""
    time = FakeTime()
    clock = StepClock(Ledger(START, now=time), loop=COMPUTE, idle=OTHER)
    clock.new_epoch(0)
    kept, taken = [], 0
    for steps, every in drains:
        for _ in range(steps):
            one_step(clock, time, 0.01, 0.01)
        drained = clock.drain(every)
        kept += [s.index for s in drained.steps]
        assert kept[len(kept) - len(drained.steps) :] == [
            i for i in range(taken, taken + drained.count) if is_kept(i, every)
        ]
        taken += drained.count
    assert kept == sorted(set(kept))


def test_validation_makes_no_step_an_outlier(step_clock: StepClock, fake_time: FakeTime) -> None:
    for _ in range(12):
        one_step(step_clock, fake_time, 0.25, 0.25)
        with Span(step_clock.ledger, VALIDATION):
            fake_time.sleep(100)
    step_clock.pause()
    drained = step_clock.drain(every=100, slower_than_s=1.0)
    assert [(s.index, s.outlier, s.step_time_s) for s in drained.steps] == [(i, False, 0.5) for i in range(8)]


def test_queue_state_is_kept_with_the_step_it_was_asked_for(step_clock: StepClock, fake_time: FakeTime) -> None:
    answers = iter([(0, False), (3, True)])
    fetched: list[int] = []
    step_clock.before_fetch = lambda: next(answers)
    step_clock.after_fetch = lambda: fetched.append(1)  # type: ignore[func-returns-value]
    one_step(step_clock, fake_time, 1, 1)
    one_step(step_clock, fake_time, 1, 1)
    step_clock.pause()
    assert [(s.ready, s.head_ready) for s in step_clock.drain().steps] == [(0, False), (3, True)]
    assert len(fetched) == 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fetch", "work", "pause", "epoch", "sleep", "drain"]), st.floats(0, 5, allow_nan=False)
        ),
        max_size=80,
    )
)
def test_steps_and_gaps_sum_to_wall_time(events: list[tuple[str, float]]) -> None:
    time = FakeTime()
    ledger = Ledger(START, now=time)
    clock = StepClock(ledger, loop=COMPUTE, idle=OTHER)
    steps = []
    for event, seconds in events:
        match event:
            case "fetch":
                with DataSpan(clock, DATA_WAIT):
                    time.sleep(seconds)
            case "work":
                clock.worked = clock.open
                time.sleep(seconds)
            case "pause":
                clock.pause()
            case "epoch":
                clock.new_epoch(clock.epochs)
            case "sleep":
                time.sleep(seconds)
            case "drain":
                steps += clock.drain().steps
    clock.pause()
    steps += clock.drain().steps
    assert [s.index for s in steps] == list(range(clock.index))
    assert sum(s.total_s for s in steps) <= sum(ledger.peek()) / 1e9 + 1e-6
    for step in steps:
        parts = [getattr(step, f) or 0.0 for f in step.__slots__ if f.endswith("_s") and f not in ("time_s", "total_s")]
        assert sum(parts) == pytest.approx(step.total_s, abs=1e-9)


def test_typical_time_of_what_nobody_has_drained(step_clock: StepClock, fake_time: FakeTime) -> None:
    assert step_clock.typical_s() == 0.0
    span = DataSpan(step_clock, DATA_WAIT)
    for i in range(20):
        with span:
            fake_time.sleep(0.001)
        step_clock.worked = True
        fake_time.sleep(12.0 if i == 0 else 0.009)
    assert step_clock.typical_s() == pytest.approx(0.01)
    step_clock.drain()
    assert step_clock.typical_s() == 0.0


def test_of_steps_of_unknown_size_no_sum_is_known(step_clock: StepClock, fake_time: FakeTime) -> None:
    step_clock.new_epoch(0)
    for size in (8, None, 8):
        one_step(step_clock, fake_time, 1, 1)
        step_clock.samples = size
    step_clock.pause()
    assert step_clock.drain().samples is None


def test_a_validation_loader_is_not_asked_for_its_length(step_clock: StepClock) -> None:
    """Not even whether it is true: a sampler of the program's may read a file for that, or be empty."""

    class Loader:
        def __len__(self) -> int:
            raise AssertionError("its length was asked for")

    told: list[tuple[object, int]] = []
    step_clock.evaluated = lambda *said: told.append(said)
    wait, known, found = ValidationWait(step_clock), Loader(), Loader()
    with ValidationSpan(step_clock.ledger, wait):
        wait.begin(known, workers=False)
        for _ in range(3):
            with wait:
                pass
    with Span(step_clock.ledger, VALIDATION):
        wait.begin(workers=False)
        with wait:
            pass
        wait.end(found)
    wait.end()
    with wait:  # of no validation
        pass
    assert told == [(known, 3), (found, 1)]


def test_updates_of_the_first_optimizer_are_counted_and_all_are_told() -> None:
    clock = StepClock(Ledger(now=FakeTime()))
    one, other = object(), object()
    assert clock.count_update(one)
    heard: list[object] = []
    clock.on_update = heard.append
    assert not any(clock.count_update(optimizer) for optimizer in (other, one, other))
    assert clock.optimizer_step == 2
    assert heard == [other, one, other]
