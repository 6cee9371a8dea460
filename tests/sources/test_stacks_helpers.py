"""What the program's other threads do while the training thread waits for one of them, or beside its steps."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallmeter.machine.blocked import is_known_here
from stallmeter.machine.frames import Place, stack_of
from stallmeter.records import CodeLook
from stallmeter.sources.code.reading import Reading
from stallmeter.sources.code.whose import Whose
from stallmeter.sources.stacks.helpers import Helpers
from stallmeter.sources.stacks.others import at_work_beside, awaits_thread, stand_in_line
from stallmeter.sources.stacks.sampler import STEADY, Look

NAME = "feeder of this file"
"""Of the threads of these tests: one that a test before has left may be at work as well."""


class Feeder:
    """A producer whose batches take long."""

    def __init__(self) -> None:
        self.ended, self.reached = threading.Event(), threading.Event()

    def run(self) -> None:
        self.make_batch()

    def make_batch(self) -> None:
        self.reached.set()
        while not self.ended.is_set():
            time.sleep(0.001)


def serve(ended: threading.Event) -> None:
    """A thread that waits for another one."""
    ended.wait()


@contextmanager
def running(*targets: tuple[Callable[..., None], tuple[object, ...]]) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=target, args=args, daemon=True, name=NAME) for target, args in targets]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(10)


@pytest.fixture
def feeder() -> Iterator[Feeder]:
    found = Feeder()
    with running((found.run, ())):
        assert found.reached.wait(10)
        yield found
        found.ended.set()


def looks_beside(helpers: Helpers, count: int = 10) -> None:
    me = threading.get_ident()
    ours = {thread.ident for thread in threading.enumerate() if thread.name == NAME}
    for _ in range(count):
        seen = tuple(found for found in at_work_beside(me) if found[0] in ours)
        helpers.add(Look(0, STEADY, 10_000_000, (), seen))


def told(helpers: Helpers) -> CodeLook | None:
    return helpers.tell(Reading(Whose([Path(__file__).parent])), 1.0)


def counted(*times: int | None) -> Callable[[int], int | None]:
    """A schedule whose threads have got a CPU so many times at each question."""
    asked: dict[int, int] = {}

    def schedule(thread: int) -> int | None:
        asked[thread] = asked.get(thread, -1) + 1
        return times[min(asked[thread], len(times) - 1)]

    return schedule


def test_a_thread_that_waits_for_another_one_has_nothing_to_do(feeder: Feeder) -> None:
    ended = threading.Event()
    with running((serve, (ended,))) as (server,):
        time.sleep(0.05)
        found = [thread for thread, _ in at_work_beside(threading.get_ident())]
        ended.set()
    assert server.ident not in found
    assert len(found) >= 1


def test_a_thread_of_our_own_is_none_of_the_programs(feeder: Feeder) -> None:
    thread = next(one for one in threading.enumerate() if one.name == NAME)
    assert thread.ident in dict(at_work_beside(threading.get_ident()))
    thread.name = "stallmeter-" + NAME
    assert thread.ident not in dict(at_work_beside(threading.get_ident()))


def test_who_waits_at_a_queue_is_known() -> None:
    items: queue.Queue[int] = queue.Queue()
    with running((lambda: str(items.get()) and None, ())) as (consumer,):
        assert consumer.ident is not None
        deadline_s = time.monotonic() + 10
        while not awaits_thread(stack_of(consumer.ident)):
            assert time.monotonic() < deadline_s
        items.put(1)
    assert not awaits_thread(stack_of(threading.get_ident()))
    assert not awaits_thread(())


def test_the_function_that_makes_what_is_awaited_is_told(feeder: Feeder) -> None:
    steps = iter((0, 100))
    helpers = Helpers("", lambda: next(steps), counted(1000, 1400))
    looks_beside(helpers)
    helpers.count_runs()
    helpers.count_runs()

    look = told(helpers)

    assert look is not None
    assert (look.place, look.bucket, look.seen, look.wall_s) == ("helpers", "", 10, pytest.approx(0.1))
    assert look.spots[0].function == "Feeder.make_batch"
    assert look.spots[0].wall_s <= look.wall_s


def test_one_that_runs_now_and_then_makes_no_batches(feeder: Feeder) -> None:
    """A monitor that sleeps is always found asleep: the kernel counts how often it ran."""
    steps = iter((0, 100))
    helpers = Helpers("", lambda: next(steps), counted(1000, 1010))
    looks_beside(helpers)
    helpers.count_runs()
    helpers.count_runs()
    assert told(helpers) is None


def test_where_nobody_counts_nothing_is_told(feeder: Feeder) -> None:
    helpers = Helpers("", lambda: 0, counted(None))
    looks_beside(helpers)
    helpers.count_runs()
    assert told(helpers) is None


def test_several_threads_at_once_are_no_more_than_the_time(feeder: Feeder) -> None:
    other = Feeder()
    with running((other.run, ())):
        assert other.reached.wait(10)
        steps = iter((0, 10))
        helpers = Helpers("steps", lambda: next(steps), counted(0, 100))
        looks_beside(helpers)
        helpers.count_runs()
        helpers.count_runs()
        look = told(helpers)
        other.ended.set()
    assert look is not None
    assert look.bucket == "steps"
    assert sum(spot.wall_s for spot in look.spots) == pytest.approx(look.wall_s)


@pytest.mark.parametrize(("bucket", "seen", "wall_s"), [("steps", 10, 0.1), ("", 40, 0.4)])
def test_beside_the_steps_only_the_time_counts_in_which_threads_are_at_work(
    feeder: Feeder, bucket: str, seen: int, wall_s: float
) -> None:
    """What is awaited is awaited all the time."""
    steps = iter((0, 10))
    helpers = Helpers(bucket, lambda: next(steps), counted(0, 100))
    looks_beside(helpers)
    for _ in range(30):
        helpers.add(Look(0, 0, 10_000_000, (), ()))
    helpers.count_runs()
    helpers.count_runs()
    look = told(helpers)
    assert look is not None
    assert (look.seen, look.wall_s) == (seen, pytest.approx(wall_s))
    assert sum(spot.wall_s for spot in look.spots) == pytest.approx(0.1)


def test_threads_that_end_at_once_made_what_was_asked() -> None:
    """A thread for each batch is gone before anybody counts how often it runs."""
    feeder = Feeder()
    helpers = Helpers("", lambda: 0)
    with running((feeder.run, ())):
        assert feeder.reached.wait(10)
        looks_beside(helpers)
        feeder.ended.set()
    helpers.count_runs()
    look = told(helpers)
    assert look is not None
    assert look.spots[0].function == "Feeder.make_batch"


def test_threads_in_one_place_that_wait_for_another_thread_stand_in_line() -> None:
    """For a lock: not those that sleep there, nor one alone."""
    lock, ended = threading.Lock(), threading.Event()

    def locked() -> None:
        with lock:
            pass

    def asleep() -> None:
        while not ended.is_set():
            time.sleep(0.001)

    def found(threads: list[threading.Thread]) -> tuple[tuple[int, tuple[Place, ...]], ...]:
        ours = {thread.ident for thread in threads}
        return tuple(one for one in at_work_beside(threading.get_ident()) if one[0] in ours)

    lock.acquire()
    with running((locked, ()), (locked, ()), (asleep, ()), (asleep, ())) as threads:
        waiting, sleeping = threads[:2], threads[2:]
        deadline_s = time.monotonic() + 10
        while is_known_here() and not stand_in_line(found(waiting)):
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        assert not stand_in_line(found(waiting)[:1])
        assert not stand_in_line(found(sleeping))
        ended.set()
        lock.release()


def test_where_the_kernel_tells_nothing_nobody_stands_in_line() -> None:
    place = (test_who_waits_at_a_queue_is_known.__code__, 0)
    me = threading.get_ident()
    assert not stand_in_line(((me, (place,)), (me + 1, (place,))), kind=lambda _: "")


def test_looks_that_find_a_line_are_counted(feeder: Feeder) -> None:
    helpers = Helpers("", lambda: 0)
    looks_beside(helpers)
    assert helpers.in_line == 0
    helpers.add(Look(0, STEADY, 10_000_000, (), (), in_line=True))
    look = told(helpers)
    assert look is not None
    assert look.in_line == pytest.approx(1 / helpers.count)
