"""A watched loader behaves like the loader and times what the loop does with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.timing import batches
from stallmeter.timing.batches import BatchSizes
from stallmeter.timing.clock import SHORT, StepClock
from stallmeter.timing.ledger import (
    COMPUTE,
    FORWARD,
    OTHER,
    VALIDATION,
    VALIDATION_START,
    VALIDATION_WAIT,
    WORKER_STARTUP,
    Ledger,
    Span,
    validation_ns,
)
from stallmeter.timing.loop import PATIENCE, SURE_BATCHES, Watched, _Training
from stallmeter.timing.turns import CLOSED, OTHER_THREAD, Turns
from stallmeter.timing.updating import UpdateSpan

from ..conftest import FakeTime


class Slow:
    """Three batches of four; each takes a second, an iterator takes ten."""

    def __init__(self, time: FakeTime, batches: int = 3) -> None:
        self.time = time
        self.batches = batches
        self.dataset = "the dataset"

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[list[int]]]:
        self.time.sleep(10)
        return self._batches()

    def _batches(self) -> Iterator[list[list[int]]]:
        for _ in range(self.batches):
            self.time.sleep(1)
            yield [[0, 1, 2, 3]]


_turns: dict[int, Turns] = {}
_told: list[str] = []


@pytest.fixture(autouse=True)
def _no_turns() -> None:
    _turns.clear()
    _told.clear()


CALLS: dict[str, Any] = {
    "prepare": lambda _: None,
    "started": lambda _: None,
    "beside": lambda _, make: make(),
}
"""Of a loader that nobody looks into."""


def turns_of(clock: StepClock) -> Turns:
    """One for each clock, as a monitor has."""
    return _turns.setdefault(id(clock), Turns(clock, lambda why: None if why in _told else _told.append(why)))


def watched(clock: StepClock, loader: Any, stage: str = "train") -> Watched[Any]:
    return Watched(
        loader,
        turns_of(clock),
        stage=stage,
        prepare=lambda _: None,
        started=lambda _: None,
        beside=lambda _, make: make(),
        size=BatchSizes(),
    )


def test_each_batch_is_a_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    for _ in watched(step_clock, Slow(fake_time)):
        fake_time.sleep(2)
    steps = step_clock.drain().steps
    assert [(s.data_wait_s, s.compute_s, s.total_s, s.samples) for s in steps] == [(1, 2, 3, 4)] * 3
    assert step_clock.ledger.acc[WORKER_STARTUP] == 10e9


def test_leaving_early_closes_the_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    for number, _ in enumerate(watched(step_clock, Slow(fake_time))):
        fake_time.sleep(2)
        if number == 1:
            break
    fake_time.sleep(50)
    step_clock.pause()
    assert [s.total_s for s in step_clock.drain().steps] == [3, 3]
    assert step_clock.ledger.acc[OTHER] == 50e9


def test_a_new_iterator_for_each_batch(step_clock: StepClock, fake_time: FakeTime) -> None:
    """From the third on the step goes on with its batch; before, they may be looks at the loader."""
    loader = watched(step_clock, Slow(fake_time))
    for _ in range(6):
        next(iter(loader))
        fake_time.sleep(2)
    step_clock.pause()
    assert [s.total_s for s in step_clock.drain().steps] == [1, 1, 3, 3, 3, 3]
    assert step_clock.ledger.acc[WORKER_STARTUP] == 60e9


def test_loops_that_are_left_after_one_batch_close_their_steps(step_clock: StepClock, fake_time: FakeTime) -> None:
    for _ in range(6):
        for _ in watched(step_clock, Slow(fake_time)):
            fake_time.sleep(2)
            break
        fake_time.sleep(5)
    step_clock.pause()
    assert [s.total_s for s in step_clock.drain().steps] == [3] * 6


def test_workers_of_a_loader_beside_take_a_while_to_end(step_clock: StepClock, fake_time: FakeTime) -> None:
    class Ending:
        def __init__(self) -> None:
            self.batches = iter(((1,), (2,)))

        def __iter__(self) -> Ending:
            return self

        def __next__(self) -> tuple[int, ...]:
            fake_time.sleep(1)
            return next(self.batches)

        def __del__(self) -> None:
            fake_time.sleep(4)

    class Loader:
        def __iter__(self) -> Ending:
            return Ending()

    beside = watched(step_clock, Loader())
    for _ in watched(step_clock, Slow(fake_time)):
        next(iter(beside))
        fake_time.sleep(2)
    steps = step_clock.drain().steps
    assert [(s.data_wait_s, s.worker_startup_s, s.compute_s) for s in steps] == [(2, 4, 2)] * 3


def test_an_exception_in_the_loop_closes_the_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    with pytest.raises(KeyError):
        for _ in watched(step_clock, Slow(fake_time)):
            fake_time.sleep(2)
            raise KeyError
    step_clock.pause()
    assert [s.total_s for s in step_clock.drain().steps] == [3]


def test_epochs_are_told_apart(step_clock: StepClock, fake_time: FakeTime) -> None:
    loader = watched(step_clock, Slow(fake_time))
    for _ in range(2):
        for _ in loader:
            fake_time.sleep(1)
        fake_time.sleep(5)
    step_clock.pause()
    assert [(s.epoch, s.epoch_start) for s in step_clock.drain().steps] == [
        (0, True),
        (0, False),
        (0, False),
        (1, True),
        (1, False),
        (1, False),
    ]
    assert step_clock.ledger.acc[OTHER] == 10e9


def test_validation_is_one_bucket(step_clock: StepClock, fake_time: FakeTime) -> None:
    validation = watched(step_clock, Slow(fake_time), "validation")
    for _ in watched(step_clock, Slow(fake_time)):
        for _ in validation:
            fake_time.sleep(2)
        fake_time.sleep(1)
    step_clock.pause()
    acc = step_clock.ledger.acc
    assert (acc[VALIDATION_START], acc[VALIDATION_WAIT], acc[VALIDATION]) == (3 * 10e9, 3 * 3e9, 3 * 6e9)
    assert validation_ns(acc) == 3 * (10 + 3 * 3) * 1e9
    assert [s.step_time_s for s in step_clock.drain().steps] == [2, 2, 2]
    assert step_clock.ledger.acc[COMPUTE] == 3e9


def test_a_validation_that_is_over_is_told(step_clock: StepClock, fake_time: FakeTime) -> None:
    told: list[tuple[object, int]] = []
    step_clock.evaluated = lambda *found: told.append(found)
    whole, left = Slow(fake_time), Slow(fake_time)
    list(watched(step_clock, whole, "validation"))
    iteration = iter(watched(step_clock, left, "validation"))
    next(iteration)
    assert told == [(whole, 3)]
    del iteration
    assert told == [(whole, 3), (left, 1)]
    list(watched(step_clock, whole))
    assert len(told) == 2


def test_the_first_batch_of_workers_is_part_of_their_start(step_clock: StepClock, fake_time: FakeTime) -> None:
    loader = Slow(fake_time)
    loader.num_workers = 2  # type: ignore[attr-defined]
    for _ in watched(step_clock, loader, "validation"):
        fake_time.sleep(2)
    acc = step_clock.ledger.acc
    assert (acc[VALIDATION_START], acc[VALIDATION_WAIT], acc[VALIDATION]) == (11e9, 2e9, 6e9)


def test_it_stands_in_for_the_loader(step_clock: StepClock, fake_time: FakeTime) -> None:
    loader = watched(step_clock, Slow(fake_time))
    assert len(loader) == 3
    assert loader.dataset == "the dataset"
    with pytest.raises(AttributeError):
        loader.nothing  # noqa: B018
    with pytest.raises(TypeError):
        len(watched(step_clock, iter([1])))
    assert watched(step_clock, iter([1]))
    assert not watched(step_clock, [])


def test_what_is_set_on_it_is_set_on_the_loader(step_clock: StepClock, fake_time: FakeTime) -> None:
    own = Slow(fake_time)
    loader = watched(step_clock, own)
    loader.dataset = "another"
    loader.epoch = 3  # type: ignore[attr-defined]
    assert (own.dataset, own.epoch) == ("another", 3)  # type: ignore[attr-defined]
    del loader.dataset
    assert not hasattr(own, "dataset")


def in_thread(call: Callable[[], Any]) -> Any:
    """Run something in another thread and return what it returned."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def booked_is_wall(clock: StepClock) -> bool:
    return sum(clock.ledger.peek()) == clock.ledger.now() - clock.ledger.origin


# -- threads ----------------------------------------------------------------------------------------------------------


def test_another_thread_is_left_untimed_during_an_iteration(step_clock: StepClock, fake_time: FakeTime) -> None:
    """It gets its batches, and one warning says why they are not timed."""
    loader = watched(step_clock, Slow(fake_time))
    for number, _ in enumerate(loader):
        fake_time.sleep(2)
        if number < 2:
            assert in_thread(lambda: len(list(loader))) == 3
            assert in_thread(lambda: len(list(watched(step_clock, Slow(fake_time), "validation")))) == 3
    assert len(step_clock.drain().steps) == 3
    assert _told == [OTHER_THREAD]
    assert booked_is_wall(step_clock)


def test_epochs_in_one_thread_after_the_other(step_clock: StepClock, fake_time: FakeTime) -> None:
    """As a pool of threads runs them."""
    loader = watched(step_clock, Slow(fake_time))
    assert len(list(loader)) == 3
    assert in_thread(lambda: len(list(loader))) == 3
    assert in_thread(lambda: len(list(loader))) == 3
    assert [s.epoch for s in step_clock.drain().steps] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert not _told


def test_an_iterator_that_is_made_here_and_used_there(step_clock: StepClock, fake_time: FakeTime) -> None:
    iterator = iter(watched(step_clock, Slow(fake_time)))
    assert in_thread(lambda: len(list(iterator))) == 3
    assert [s.data_wait_s for s in step_clock.drain().steps] == [1, 1, 1]
    assert not _told


def test_an_iterator_that_two_threads_use(step_clock: StepClock, fake_time: FakeTime) -> None:
    iterator = iter(watched(step_clock, Slow(fake_time)))
    next(iterator)
    assert in_thread(lambda: next(iterator)) == [[0, 1, 2, 3]]
    next(iterator)
    step_clock.pause()
    assert len(step_clock.drain().steps) == 2
    assert _told == [OTHER_THREAD]
    assert booked_is_wall(step_clock)


def test_a_thread_that_died_in_the_middle(step_clock: StepClock, fake_time: FakeTime) -> None:
    """Its iterator lives on in a traceback, say."""
    kept: list[Any] = []

    def leave() -> None:
        kept.append(iter(watched(step_clock, Slow(fake_time))))
        next(kept[0])

    in_thread(leave)
    assert len(list(watched(step_clock, Slow(fake_time)))) == 3
    assert len(step_clock.drain().steps) == 4
    assert not _told


@pytest.mark.parametrize("stage", ["train", "validation"])
def test_garbage_that_another_thread_collects(step_clock: StepClock, fake_time: FakeTime, stage: str) -> None:
    """The ledger is moved by its own thread alone; the step that was left ends when it was left."""
    holder = [iter(watched(step_clock, Slow(fake_time), stage))]
    next(holder[0])
    fake_time.sleep(2)
    before = step_clock.ledger.acc[:], step_clock.ledger.last, step_clock.ledger.stack[:]
    in_thread(holder.clear)
    assert before == (step_clock.ledger.acc, step_clock.ledger.last, step_clock.ledger.stack)
    fake_time.sleep(50)
    assert turns_of(step_clock).take()
    step_clock.pause()
    assert step_clock.ledger.stack == [OTHER]
    assert booked_is_wall(step_clock)
    if stage == "train":
        assert [s.total_s for s in step_clock.drain().steps] == [3]
        assert step_clock.ledger.peek()[OTHER] == 50e9


@pytest.mark.parametrize("stage", ["train", "validation", "beside"])
def test_what_is_left_when_the_interpreter_ends_asks_nothing(
    step_clock: StepClock, fake_time: FakeTime, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of modules may be gone by then: all that it calls may fail."""
    kept = iter(watched(step_clock, Slow(fake_time), "train" if stage == "beside" else stage))
    next(kept)
    if stage == "beside":
        kept = iter(watched(step_clock, Slow(fake_time)))
        next(kept)
    calls: list[str] = []
    monkeypatch.setattr(Turns, "has", lambda _: calls.append("has"))
    ends: Any = getattr(type(kept), "__del__")  # noqa: B009 - mypy knows of none
    ends(kept, lambda: True)
    assert calls == []
    ends(kept, lambda: False)
    assert calls


# -- several loaders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shorter", [None, "first", "second"])
def test_zip(step_clock: StepClock, fake_time: FakeTime, shorter: str | None) -> None:
    """A step for each pair, with the waits of both."""
    first, second = Slow(fake_time), Slow(fake_time)
    if shorter is not None:
        {"first": first, "second": second}[shorter].batches = 2
    for _ in range(2):
        for _ in zip(watched(step_clock, first), watched(step_clock, second), strict=False):
            fake_time.sleep(2)
        fake_time.sleep(5)
    step_clock.pause()
    steps = step_clock.drain().steps
    assert [(s.data_wait_s, s.compute_s, s.total_s, s.samples) for s in steps] == [(2, 2, 4, 4)] * len(steps)
    assert len(steps) == (6 if shorter is None else 4)
    assert step_clock.ledger.acc[WORKER_STARTUP] == 40e9
    assert not _told
    assert booked_is_wall(step_clock)


def test_zip_of_a_loader_with_itself(step_clock: StepClock, fake_time: FakeTime) -> None:
    loader = watched(step_clock, Slow(fake_time))
    for _ in zip(loader, loader, strict=True):
        fake_time.sleep(2)
    step_clock.pause()
    assert len(step_clock.drain().steps) == 3
    assert booked_is_wall(step_clock)


def test_a_loader_beside_that_begins_again(step_clock: StepClock, fake_time: FakeTime) -> None:
    """The loop of a semi-supervised training: two batches of the other loader a step, from its beginning again."""
    other = watched(step_clock, Slow(fake_time))
    iterator = iter(())
    for _ in watched(step_clock, Slow(fake_time)):
        for _ in range(2):
            try:
                next(iterator)
            except StopIteration:
                iterator = iter(other)
                next(iterator)
        fake_time.sleep(1)
    steps = step_clock.drain().steps
    assert [(s.data_wait_s, s.compute_s) for s in steps] == [(3, 1)] * 3
    assert booked_is_wall(step_clock)


def test_a_loader_inside_the_steps_of_another(step_clock: StepClock, fake_time: FakeTime) -> None:
    """The outer one makes the steps."""
    for _ in watched(step_clock, Slow(fake_time)):
        for _ in watched(step_clock, Slow(fake_time)):
            fake_time.sleep(2)
        fake_time.sleep(1)
    steps = step_clock.drain().steps
    assert [(s.data_wait_s, s.compute_s, s.total_s) for s in steps] == [(4, 7, 21)] * 3
    assert booked_is_wall(step_clock)


def test_a_loader_that_asks_another(step_clock: StepClock, fake_time: FakeTime) -> None:
    """However many items make a batch of the outer one, they are its wait."""

    def batches() -> Iterator[list[int]]:
        for _ in range(3):
            yield [len(batch) for batch in watched(step_clock, Slow(fake_time, PATIENCE * 2))]

    for _ in watched(step_clock, batches()):
        fake_time.sleep(2)
    steps = step_clock.drain().steps
    assert [s.compute_s for s in steps] == [2] * 3
    assert booked_is_wall(step_clock)


def test_an_iteration_that_nobody_goes_on_with(step_clock: StepClock, fake_time: FakeTime) -> None:
    """It is kept, as in a notebook. The same loader takes over at once, another one when it is clear which is used."""
    loader = Slow(fake_time)
    kept = iter(watched(step_clock, loader))
    next(kept)
    assert len(list(watched(step_clock, loader))) == 3
    assert len(step_clock.drain().steps) == 4
    again = iter(watched(step_clock, loader))
    next(again)
    for _ in watched(step_clock, Slow(fake_time, PATIENCE + 50)):
        fake_time.sleep(1)
    assert 45 < len(step_clock.drain().steps) < 55
    assert booked_is_wall(step_clock)
    del kept, again


def test_a_closed_monitor_says_so(step_clock: StepClock, fake_time: FakeTime) -> None:
    turns = Turns(step_clock, _told.append, closed=lambda: True)
    _turns[id(step_clock)] = turns
    assert len(list(watched(step_clock, Slow(fake_time)))) == 3
    assert step_clock.drain().count == 0
    assert _told == [CLOSED]


# -- the short way ----------------------------------------------------------------------------------------------------

UPDATES = ["update", "update twice", "update within", "update fails", "span in update", "span, update", "update, span"]
KINDS = ["", "span", "loader", "hook", "log", "loader fails", *UPDATES]
bodies = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KINDS)), max_size=20)


def update(clock: StepClock, by: UpdateSpan, time: FakeTime, kind: str, span: Span) -> None:
    """Have an optimizer step in one of the ways of `UPDATES`."""
    if kind == "span, update":
        with span:
            time.sleep(1)
    for _ in range(2 if kind == "update twice" else 1):
        assert by.begin()
        time.sleep(5)
        if kind == "span in update":
            with span:
                time.sleep(1)
        if kind == "update within":
            assert not by.begin()
            assert not by.end()
        if kind != "update fails":
            assert by.end()
        clock.optimizer_step = (clock.optimizer_step or 0) + 1
        time.sleep(1)
    if kind == "update, span":
        with span:
            time.sleep(1)


def train(bodies: list[tuple[int, str]], *, short: bool) -> tuple[list[Any], list[int]]:
    """Train with a loop's body, or a fetch, of every kind; return the steps and the ledger."""
    time = FakeTime()
    clock = StepClock(Ledger(OTHER, time), loop=COMPUTE, idle=OTHER, unix_ns=lambda: 0)
    span, by = Span(clock.ledger, FORWARD), UpdateSpan(clock)

    def batches() -> Iterator[list[int]]:
        for wait, kind in bodies:
            time.sleep(wait + 1)
            if kind == "loader":
                with span:
                    time.sleep(1)
            if kind == "loader fails":
                raise KeyError
            yield [0] * (wait + 1)

    with pytest.MonkeyPatch.context() as patch:
        if not short:
            patch.setattr(_Training, "__next__", _Training._next_in_full)
        with suppress(KeyError):
            for (wait, kind), _ in zip(bodies, watched(clock, batches()), strict=False):
                clock.before_fetch = None
                time.sleep(wait + 2)
                if kind == "span":
                    with span:
                        time.sleep(3)
                elif kind == "hook":
                    clock.before_fetch = lambda: (1, True)
                elif kind in UPDATES:
                    update(clock, by, time, kind, span)
                assert booked_is_wall(clock)
    clock.pause()
    _turns.clear()
    return list(clock.drain().steps), clock.ledger.acc


@given(bodies)
def test_the_short_way_books_what_the_long_one_does(bodies: list[tuple[int, str]]) -> None:
    assert train(bodies, short=True) == train(bodies, short=False)


def test_the_mark_of_a_step_with_an_update_is_short(step_clock: StepClock, fake_time: FakeTime) -> None:
    by = UpdateSpan(step_clock)
    for _ in zip(watched(step_clock, [[0]] * 10), range(10), strict=True):
        update(step_clock, by, fake_time, "update", Span(step_clock.ledger, FORWARD))
    step_clock.pause()
    assert [len(mark) == SHORT for mark in step_clock.marks] == [False, False, *[True] * 9, False]
    assert [step.optimizer_step for step in step_clock.drain().steps] == list(range(1, 11))


class Sized:
    """A loader that states its batch size."""

    batch_size = 4

    def __init__(self, sizes: list[int], length: int | None = None) -> None:
        self.sizes = sizes
        self.length = length or len(sizes)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        return ([0] * size for size in self.sizes)


@pytest.mark.parametrize("last", [4, 3])
def test_not_every_batch_of_a_stated_size_is_looked_at(
    step_clock: StepClock, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one always is: it may be smaller."""
    monkeypatch.setattr(batches, "LENGTHS_OF", {Sized.__module__.partition(".")[0]})
    looks: list[int] = []

    def size(batch: object) -> int:
        looks.append(step_clock.index)
        return len(batch)  # type: ignore[arg-type]

    sizes = [4] * 50 + [last]
    loader = Watched(
        Sized(sizes),
        turns_of(step_clock),
        stage="train",
        prepare=lambda _: None,
        started=lambda _: None,
        beside=lambda _, make: make(),
        size=size,
    )
    for _ in range(2):
        for _ in loader:
            pass
    assert [s.samples for s in step_clock.drain().steps] == 2 * sizes
    assert len(looks) < len(sizes)
    assert looks[:SURE_BATCHES] == [*range(SURE_BATCHES)]
    assert 50 in looks


def test_a_loader_that_does_not_keep_to_its_size_is_looked_at(step_clock: StepClock) -> None:
    sizes = [4, 4, 3] + [4, 2] * 40
    for _ in watched(step_clock, Sized(sizes)):
        pass
    assert [s.samples for s in step_clock.drain().steps] == sizes
