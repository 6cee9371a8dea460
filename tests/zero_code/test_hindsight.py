"""The past is booked as it would have been at its time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import VALIDATION, validation_ns
from stallmeter.timing.loop import Watched
from stallmeter.timing.turns import Turns
from stallmeter.zero_code.hindsight import Past, begin_validation, book_training, book_validation
from stallmeter.zero_code.iteration import Fetch, Iteration, Timed, Undecided
from stallmeter.zero_code.known import Known, Stage

from ..conftest import FakeTime

MS = 1_000_000


class Loader:
    """Something that can be remembered."""

    dataset: object = None


CALLS: dict[str, Any] = {
    "prepare": lambda _: None,
    "started": lambda _: None,
    "beside": lambda _, make: make(),
}
"""Of a loader that nobody looks into."""


def watching(clock: StepClock) -> Callable[[Any, str], Watched[Any]]:
    turns = Turns(clock, lambda why: None)

    def size(batch: object) -> int | None:
        return batch.samples if type(batch) is Past else 7

    return lambda loader, stage: Watched(
        loader,
        turns,
        stage=stage,
        prepare=lambda _: None,
        started=lambda _: None,
        beside=lambda _, make: make(),
        size=size,
    )


def undecided(loader: object, began: int, fetches: list[tuple[int, int]], left: list[Any]) -> Iteration:
    loop: Any = SimpleNamespace(updates=0, left=lambda _: None)
    iteration = Undecided(loop, loader, iter(left), began * MS, (began + 1) * MS, True)
    iteration.fetches = [Fetch(asked * MS, got * MS, 4, True) for asked, got in fetches]
    return iteration


def test_training_is_booked_at_its_own_times(step_clock: StepClock, fake_time: FakeTime) -> None:
    iteration = undecided(Loader(), 10, [(12, 20), (50, 55)], ["third"])
    fake_time.ns = 80 * MS
    book_training(step_clock, watching(step_clock), [iteration])
    assert type(iteration) is Timed
    assert next(iteration) == "third"
    fake_time.ns = 90 * MS
    del iteration
    steps = step_clock.drain().steps
    assert [(round(s.total_s * 1e3), s.samples) for s in steps] == [(38, 4), (30, 4), (10, 7)]
    assert round(1e3 * (steps[0].compute_s or 0)) == 30
    assert round(1e3 * steps[1].data_wait_s) == 5
    assert sum(step_clock.ledger.acc) == 89 * MS


def test_it_passes_for_the_loaders_own_iterator(step_clock: StepClock, fake_time: FakeTime) -> None:
    """As programs look at it: ``isinstance``. Its type is what is done with it, and changes."""
    iteration = undecided(Loader(), 10, [], ["batch"])
    own = type(iter([]))
    assert isinstance(iteration, own)
    assert isinstance(iteration, Iteration)
    assert not isinstance(iteration, Loader)
    iteration.__class__ = Timed
    assert type(iteration) is Timed
    assert iteration.__class__ is own
    assert next(iteration) == "batch"


def test_two_loaders_of_one_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    first = undecided(Loader(), 12, [(20, 25)], [])
    second = undecided(Loader(), 10, [(25, 31)], [])
    fake_time.ns = 40 * MS
    book_training(step_clock, watching(step_clock), [first, second])
    del first
    (step,) = step_clock.drain().steps
    assert round(step.total_s * 1e3) == 20
    assert round(1e3 * ((step.data_wait_s or 0) + (step.worker_startup_s or 0))) == 11


def test_a_fetch_from_before_the_ledger_costs_no_batch(step_clock: StepClock, fake_time: FakeTime) -> None:
    iteration = undecided(Loader(), 0, [(0, 0)], ["next"])
    fake_time.ns = 30 * MS
    step_clock.ledger.settle()
    book_training(step_clock, watching(step_clock), [iteration])
    assert list(iteration) == ["next"]
    assert len(step_clock.drain().steps) == 2


def test_validation_is_booked_from_its_beginning_to_its_end(step_clock: StepClock, fake_time: FakeTime) -> None:
    iteration = undecided(Loader(), 10, [(12, 20), (50, 55)], [])
    fake_time.ns = 80 * MS
    book_validation(step_clock, watching(step_clock), iteration, 70 * MS)
    step_clock.ledger.settle()
    assert validation_ns(step_clock.ledger.acc) == 60 * MS
    assert VALIDATION not in step_clock.ledger.stack


def test_validation_that_goes_on(step_clock: StepClock, fake_time: FakeTime) -> None:
    iteration = undecided(Loader(), 10, [], ["batch"])
    fake_time.ns = 20 * MS
    begin_validation(step_clock, watching(step_clock), iteration)
    assert next(iteration) == "batch"
    fake_time.ns = 50 * MS
    assert next(iteration, None) is None
    assert validation_ns(step_clock.ledger.acc) == 40 * MS


def test_what_is_known_of_loaders() -> None:
    known = Known()
    train, look, again, unlike = Loader(), Loader(), Loader(), Loader()
    train.dataset = look.dataset = again.dataset = Loader()
    known.learn_validation(look)
    assert (known.stage(look), known.stage(train)) == (Stage.VALIDATION, Stage.UNKNOWN)
    del look
    known.remember(train, Stage.TRAINING)
    assert (known.stage(train), known.stage(again), known.stage(unlike)) == (
        Stage.TRAINING,
        Stage.TRAINING,
        Stage.UNKNOWN,
    )
    known.learn_validation(train)
    assert known.stage(train) is Stage.MIXED
