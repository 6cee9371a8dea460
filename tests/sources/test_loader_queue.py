"""What is ready when the loop asks, and whether what came had been ready."""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from stallmeter.sources.loader import LoaderProbe

from . import loader_datasets as data


class Queue(deque):
    def qsize(self) -> int:
        return len(self)


class FakeIterator:
    """torch's iterator over a map-style dataset, with workers that finish a task when told to."""

    def __init__(self, tasks: int, *, workers: int = 2, in_order: bool = True, pin_memory: bool = False) -> None:
        self._task_info: dict[int, tuple[Any, ...]] = {i: (i % workers,) for i in range(tasks)}
        self._tasks_outstanding = tasks
        self._rcvd_idx = 0
        self._num_workers = workers
        self._in_order = in_order
        self._pin_memory = pin_memory
        self._dataset_kind = 0
        self._worker_result_queue = Queue()
        self._data_queue = Queue() if pin_memory else self._worker_result_queue

    def finish(self, *tasks: int) -> None:
        self._worker_result_queue.extend(tasks)

    def pin(self, count: int) -> None:
        for _ in range(count):
            self._data_queue.append(self._worker_result_queue.popleft())

    def __len__(self) -> int:
        return 0

    def next(self) -> int:
        """As torch does it: park what is not due, hand out what is."""
        while True:
            if len(self._task_info[self._rcvd_idx]) == 2:
                return self._hand_out(self._rcvd_idx)
            task = self._data_queue.popleft()
            self._tasks_outstanding -= 1
            if task == self._rcvd_idx or not self._in_order:
                return self._hand_out(task)
            self._task_info[task] += ("batch",)

    def _hand_out(self, task: int) -> int:
        del self._task_info[task]
        while self._in_order and self._rcvd_idx not in self._task_info and self._task_info:
            self._rcvd_idx += 1
        return task


def over(iterator: Any) -> LoaderProbe:
    probe = LoaderProbe()
    probe.iterator_of = lambda: iterator
    return probe


def test_nothing_is_ready() -> None:
    iterator = FakeIterator(4)
    probe = over(iterator)
    assert probe.asked() == (0, False)
    iterator.finish(0)
    iterator.next()
    assert probe.answered() is False
    assert probe.out_of_order == 0


def test_the_next_one_is_ready_behind_another() -> None:
    iterator = FakeIterator(4)
    probe = over(iterator)
    iterator.finish(1, 0)
    assert probe.asked() == (2, None)
    assert iterator.next() == 0
    assert probe.answered() is True
    assert probe.out_of_order == 1
    # The other is parked now: it comes next, at once.
    assert probe.asked() == (1, True)
    assert iterator.next() == 1
    assert probe.answered() is True
    assert probe.out_of_order == 1


def test_one_slow_batch_holds_up_the_others() -> None:
    iterator = FakeIterator(6)
    probe = over(iterator)
    iterator.finish(1, 3)
    assert probe.asked() == (2, None)
    iterator.finish(5, 0)
    iterator.next()
    assert probe.answered() is False
    assert probe.out_of_order == 3


def test_everything_asked_for_is_ready() -> None:
    iterator = FakeIterator(2)
    iterator.finish(1, 0)
    assert over(iterator).asked() == (2, True)


@pytest.mark.parametrize("options", [{"workers": 1}, {"in_order": False}])
def test_nothing_can_stand_in_its_place(options: Any) -> None:
    iterator = FakeIterator(6, **options)
    probe = over(iterator)
    assert probe.asked() == (0, False)
    iterator.finish(0 if options == {"workers": 1} else 3)
    assert probe.asked() == (1, True)
    iterator.next()
    assert probe.answered() is True
    assert probe.out_of_order == 0


def test_batches_that_wait_to_be_pinned_are_ready() -> None:
    iterator = FakeIterator(4, pin_memory=True)
    probe = over(iterator)
    iterator.finish(0, 1, 2)
    iterator.pin(1)
    assert probe.asked() == (3, None)
    iterator.next()
    assert probe.answered() is True


@given(st.integers(1, 3), st.permutations(range(8)), st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_the_answer_is_what_happened(workers: int, order: list[int], bursts: list[int]) -> None:
    # One worker finishes its tasks in the order it got them.
    order = list(range(8)) if workers == 1 else order
    iterator = FakeIterator(8, workers=workers)
    probe = over(iterator)
    finished: set[int] = set()

    def finish(count: int) -> None:
        for _ in range(count):
            if order:
                finished.add(order[0])
                iterator.finish(order.pop(0))

    for due, burst in enumerate(bursts):
        finish(burst)
        ready, head = probe.asked()
        there = due in finished
        assert ready == len(finished) - due
        assert head in (there, None)
        while due not in finished:
            finish(1)
        assert iterator.next() == due
        assert probe.answered() is there
        finished |= set(range(due + 1))


class Raising:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class NoSize(FakeIterator):
    def __init__(self) -> None:
        super().__init__(4)
        self._data_queue.qsize = self._refuse

    @staticmethod
    def _refuse() -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    "odd",
    [
        None,
        iter([1, 2]),
        (i for i in range(3)),
        object(),
        Raising(),
        NoSize(),
        iter(DataLoader(data.Numbers())),
        type("Half", (), {"_task_info": {}})(),
        type("Slotted", (), {"__slots__": (), "_task_info": {}, "_pin_memory": 0, "_num_workers": 1})(),
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_an_iterator_that_cannot_be_asked(odd: object) -> None:
    probe = over(odd)
    for _ in range(2):
        assert probe.asked() == (None, None)
        assert probe.answered() is None


def test_an_adapter_that_fails_to_find_the_iterator() -> None:
    probe = LoaderProbe()
    assert probe.asked() == (None, None)
    probe.iterator_of = lambda: [][0]
    assert probe.asked() == (None, None)


def test_the_answer_without_a_question() -> None:
    iterator = FakeIterator(2)
    probe = over(iterator)
    assert probe.answered() is None
    probe.asked()
    probe.new_epoch()
    assert probe.answered() is None


def test_an_iterator_made_later_is_found() -> None:
    made: list[FakeIterator] = []
    probe = LoaderProbe()
    probe.iterator_of = lambda: made[0] if made else None
    assert probe.asked() == (None, None)
    made.append(FakeIterator(2))
    assert probe.asked() == (0, False)


def test_the_iterator_of_the_next_epoch_is_asked() -> None:
    epochs = [FakeIterator(4), FakeIterator(4)]
    current = [epochs[0]]
    probe = LoaderProbe()
    probe.iterator_of = lambda: current[0]
    assert probe.asked() == (0, False)
    epochs[1].finish(0)
    current[0] = epochs[1]
    probe.new_epoch()
    assert probe.asked() == (1, None)
    # Replaced within an epoch, as a loader that is cycled: the old one is gone.
    epochs.clear()
    current[0] = FakeIterator(4)
    assert probe.asked() == (0, False)


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_a_slow_batch_in_front_of_real_workers(kind: type[DataLoader]) -> None:
    # All four batches are asked for at first; all but the third come.
    dataset = data.Gated(4, 2)
    iterator = iter(kind(dataset, batch_size=1, num_workers=2))
    probe = over(iterator)
    deadline = time.monotonic() + 30
    while probe.asked()[0] != 3 and time.monotonic() < deadline:
        time.sleep(0.002)
    seen = []
    for index in range(4):
        ready, head = probe.asked()
        if index == dataset.held:
            # The fourth came before the first, or is to come before the third: a queue counts what is not in it yet.
            assert probe.out_of_order or iterator._data_queue._reader.poll(30)
            dataset.gate.set()
        next(iterator)
        seen.append((ready or 0, head, probe.answered()))
    assert [answer for *_, answer in seen] == [True, True, False, True]
    assert all(head in (answer, None) for _, head, answer in seen)
    assert [ready >= least for (ready, *_), least in zip(seen, (3, 2, 1, 1), strict=True)] == [True] * 4
    assert probe.out_of_order >= 1
    probe.close()


def test_workers_that_are_too_slow_have_nothing_ready() -> None:
    iterator = iter(DataLoader(data.Sleeping(6, 0.05), batch_size=1, num_workers=1))
    probe = over(iterator)
    seen = []
    for _ in range(6):
        asked = probe.asked()
        next(iterator)
        seen.append((*asked, probe.answered()))
    assert seen.count((0, False, False)) >= 5
    probe.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_the_end_of_an_iterable_dataset(persistent: bool) -> None:
    loader = DataLoader(data.Stream(), batch_size=4, num_workers=2, persistent_workers=persistent)
    probe = LoaderProbe()
    for _ in range(2):
        iterator = iter(loader)
        probe.iterator_of = lambda iterator=iterator: iterator
        probe.new_epoch()
        count = 0
        while True:
            ready, head = probe.asked()
            assert ready is None or 0 <= ready <= 4
            if next(iterator, None) is None:
                break
            count += 1
            answer = probe.answered()
            assert answer in (head, True, False)
        assert count == 6
    probe.close()


def test_an_iterator_left_early_is_not_kept_alive() -> None:
    iterator = iter(DataLoader(data.Numbers(), batch_size=4, num_workers=1))
    held = [iterator]
    probe = LoaderProbe()
    probe.iterator_of = lambda: held[0] if held else None
    next(iterator)
    assert probe.asked()[0] is not None
    gone = weakref.ref(iterator)
    del iterator
    held.clear()
    assert gone() is None
    assert probe.asked() == (None, None)
    assert probe.answered() is None
