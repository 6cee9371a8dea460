"""A watched loader behaves like the loader and times what the loop does with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stallmeter.batches import BatchSizes
from stallmeter.clock import StepClock
from stallmeter.ledger import COMPUTE, OTHER, VALIDATION, WORKER_STARTUP
from stallmeter.loop import Watched

from .conftest import FakeTime


class Slow:
    """Three batches of four; each takes a second, an iterator takes ten."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self.dataset = "the dataset"

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[list[int]]]:
        self.time.sleep(10)
        return self._batches()

    def _batches(self) -> Iterator[list[list[int]]]:
        for _ in range(3):
            self.time.sleep(1)
            yield [[0, 1, 2, 3]]


def watched(clock: StepClock, loader: Any, stage: str = "train") -> Watched[Any]:
    return Watched(loader, clock, stage=stage, prepare=lambda _: None, started=lambda _: None, size=BatchSizes())


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
    assert step_clock.ledger.acc[VALIDATION] == 3 * (10 + 3 * 3) * 1e9
    assert [s.step_time_s for s in step_clock.drain().steps] == [2, 2, 2]
    assert step_clock.ledger.acc[COMPUTE] == 3e9


def test_it_stands_in_for_the_loader(step_clock: StepClock, fake_time: FakeTime) -> None:
    loader = watched(step_clock, Slow(fake_time))
    assert len(loader) == 3
    assert loader.dataset == "the dataset"
    with pytest.raises(AttributeError):
        loader.nothing  # noqa: B018
    with pytest.raises(TypeError):
        len(watched(step_clock, iter([1])))


def test_another_thread_is_left_untimed(step_clock: StepClock, fake_time: FakeTime) -> None:
    loader, seen = watched(step_clock, Slow(fake_time)), []
    thread = threading.Thread(target=lambda: seen.extend(loader))
    thread.start()
    thread.join()
    assert len(seen) == 3
    assert step_clock.drain().steps == ()
