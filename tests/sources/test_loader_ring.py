"""Every record a worker writes is read once, or counted as lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stallmeter.sources.loader import ring as ring_module
from stallmeter.sources.loader.ring import CAPACITY, LANES, Fetch, Order, Ring, words
from stallmeter.sources.loader.worker import FetchTimer


def make(workers: int = 1) -> Ring:
    return Ring(torch.zeros(words(workers), dtype=torch.int64), workers)


def record(number: int) -> Fetch:
    return Fetch(*(number * 10 + i for i in range(len(Fetch._fields))))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2 * CAPACITY), max_size=5))
def test_what_was_written_is_read_or_lost(bursts: list[int]) -> None:
    ring = make()
    lane = ring.writer(0)
    written, got = 0, []
    for burst in bursts:
        for _ in range(burst):
            lane.write(*record(written))
            written += 1
        drained = ring.drain()
        assert len(drained) >= min(burst, CAPACITY - 1)
        got += drained
    assert len(got) + ring.lost == written
    numbers = [fetch.end_ns // 10 for _, fetch in got]
    assert numbers == sorted(set(numbers))
    assert [fetch for _, fetch in got] == [record(number) for number in numbers]
    assert ring.drain() == []


def test_workers_do_not_mix() -> None:
    ring = make(3)
    lanes = [ring.writer(worker) for worker in range(3)]
    for number in range(9):
        lanes[number % 3].write(*record(number))
    assert [(worker, fetch.end_ns // 10 % 3) for worker, fetch in ring.drain()] == [
        (w, w) for w in (0, 1, 2) for _ in "abc"
    ]


def test_a_ring_for_fewer_workers() -> None:
    with pytest.raises(IndexError):
        make(2).writer(2)


def test_a_record_overwritten_while_it_is_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = make()
    lane = ring.writer(0)
    for number in range(10):
        lane.write(*record(number))
    unpack = ring_module._RECORD.unpack_from

    class Racing:
        """The worker writes on while the first record is being copied."""

        size = ring_module._RECORD.size
        pack_into = ring_module._RECORD.pack_into
        raced = False

        def unpack_from(self, *args: object) -> tuple[int, ...]:
            copied = unpack(*args)
            if not self.raced:
                self.raced = True
                for number in range(10, CAPACITY + 3):
                    lane.write(*record(number))
            return copied

    monkeypatch.setattr(ring_module, "_RECORD", Racing())
    first = ring.drain()
    # Records 0 to 2 have been overwritten, and 3 is where the worker writes next.
    assert [fetch for _, fetch in first] == [record(number) for number in range(4, 10)]
    assert ring.lost == 4
    assert len(ring.drain()) + len(first) + ring.lost == CAPACITY + 3


@pytest.fixture
def as_pid(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda pid: monkeypatch.setattr(os, "getpid", lambda: pid)


def test_two_iterators_have_lanes_of_their_own(as_pid: Callable[[int], None]) -> None:
    ring = make()
    as_pid(101)
    first = ring.writer(0)
    as_pid(102)
    second = ring.writer(0)
    for number in range(4):
        first.write(*record(number))
        second.write(*record(100 + number))
    assert [fetch.end_ns // 10 for _, fetch in ring.drain()] == [0, 1, 2, 3, 100, 101, 102, 103]
    assert [worker.pid for worker in ring.seen()] == [101, 102]


def test_lanes_are_used_again(as_pid: Callable[[int], None]) -> None:
    ring = make()
    for epoch in range(3 * LANES):
        as_pid(200 + epoch)
        ring.writer(0).write(*record(epoch))
        assert [fetch for _, fetch in ring.drain()] == [record(epoch)]
    assert len(ring.seen()) == LANES


def test_a_writer_that_lost_its_lane_moves_on(as_pid: Callable[[int], None]) -> None:
    ring = make()
    as_pid(101)
    first = ring.writer(0)
    # Both workers read the count of starts at the same moment, and took the same lane.
    first._words[0] = 0
    as_pid(102)
    second = ring.writer(0)
    first.write(*record(1))
    second.write(*record(2))
    first.write(*record(3))
    assert sorted(fetch.end_ns // 10 for _, fetch in ring.drain()) == [1, 2, 3]


def test_more_iterators_than_lanes(as_pid: Callable[[int], None]) -> None:
    ring = make()
    lanes = []
    for number in range(2 * LANES):
        as_pid(300 + number)
        lanes.append(ring.writer(0))
    for _ in range(20):
        for number, lane in enumerate(lanes):
            lane.write(*record(number))
    got = [fetch for _, fetch in ring.drain()]
    # Some are not heard any more, but nothing wrong is.
    assert all(fetch in [record(number) for number in range(2 * LANES)] for fetch in got)
    assert len(got) >= 20 * LANES - LANES


def test_an_order_is_one_processs(as_pid: Callable[[int], None]) -> None:
    """Those that take its place find that it is claimed, until another one is given."""
    ring = make()
    order = Order(1, 3, False)
    ring.order(0, order.word)
    as_pid(101)
    lane = ring.writer(0)
    assert lane.order() == order.word
    lane.claim()
    as_pid(102)
    later = ring.writer(0)
    assert later.order() < 0
    later.claim()
    assert later.order() == -order.word
    ring.order(0, 0)
    assert (lane.order(), later.order()) == (0, 0)


def test_a_worker_looks_into_no_first_batch_and_no_others_order(as_pid: Callable[[int], None], tmp_path: Path) -> None:
    ring = make()
    ring.order(0, Order(1, 3, False).word)
    looking = []
    for pid in (101, 102):
        as_pid(pid)
        timer = FetchTimer([], ring.writer(0), str(tmp_path / "answers"))
        for _ in range(3):
            timer.start()
            looking.append(timer.look is not None)
            if timer.look is None:
                timer.stop(None)
            else:
                timer.pass_over()
    assert looking == [False, True, True, False, False, False]
