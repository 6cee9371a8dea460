"""Who makes the batches: threads found at work while the loop waits, and nobody else."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stallmeter.machine.blocked import Wait
from stallmeter.records import ProducerLooks
from stallmeter.sources import producers
from stallmeter.sources.producers import MIN_BODY_LOOKS, MIN_LOOKS, ProducerSource

LOOKS = 40
Schedule = tuple[int, int, int]


class Bench:
    """A source whose looks are made by the test, in this process with a few threads that do nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ProducerSource, "_follow", lambda _: None)
        monkeypatch.setattr(producers, "thread_schedule", lambda _root, _pid, tid: self.schedules.get(tid))
        monkeypatch.setattr(producers, "threads_of", lambda pid: self.threads.get(pid, []))
        self.waiting, self.blind, self.steps, self.now_s = True, True, 0, 0.0
        self.states: dict[int, Wait | None] = {}
        self.schedules: dict[int, Schedule] = {}
        self.used: dict[int, Schedule] = {}
        self.threads: dict[int, list[int]] = {}
        self.pids: tuple[int, ...] = (os.getpid(),)
        self.source = ProducerSource(
            lambda: self.waiting,
            lambda: self.blind,
            lambda: self.steps,
            lambda: self.pids,
            looks_at=lambda _, tid: self.states.get(tid),
            clock=lambda: self.now_s,
        )
        self.loop = threading.get_native_id()
        self.states[self.loop] = Wait("threads")

    def put(self, tid: int, kind: str, *, times: int = 1000, ran_s: float = 0.5, pid: int | None = None) -> None:
        """A thread in this state, that runs ``times`` times and ``ran_s`` seconds meanwhile."""
        self.threads.setdefault(pid or os.getpid(), []).append(tid)
        self.states[tid] = Wait(kind)
        self.schedules[tid] = (int(ran_s * 1e9), 0, times)

    def watch(self, looks: int = LOOKS, *, steps: int = 100) -> ProducerLooks:
        """Look so many times in a second with so many steps."""
        before = {tid: self.used.get(tid, (0, 0, 0)) for tid in self.schedules}
        final, self.schedules = self.schedules, before
        assert not self.source.sample(0.0)
        for _ in range(looks):
            self.source.look()
        self.used = {tid: tuple(map(sum, zip(before[tid], final[tid], strict=True))) for tid in final}
        self.schedules, self.steps, self.now_s = self.used, self.steps + steps, self.now_s + 1.0
        (record,) = self.source.sample(1.0)
        self.schedules = final
        return record


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(monkeypatch)
    yield made
    made.source.close()


def test_threads_that_compute_while_the_loop_waits_are_producers(bench: Bench) -> None:
    bench.put(1, "running", ran_s=0.9)
    bench.put(2, "running", ran_s=0.7)
    bench.put(3, "threads")  # nothing to do

    found = bench.watch()

    assert (found.looks, found.running, found.loop_running) == (LOOKS, 2.0, 0)
    assert found.cpu_s == pytest.approx(1.6)
    assert (found.steps, found.period_s, found.outside) == (100, 1.0, 0.0)


@pytest.mark.parametrize("kind", ["sleep", "socket", "file"])
def test_one_that_is_blocked_counts_where_it_runs_as_often_as_there_are_batches(bench: Bench, kind: str) -> None:
    bench.put(1, kind, times=100)

    assert getattr(bench.watch(steps=100), kind) == 1.0


def test_one_that_serves_something_else_does_not(bench: Bench) -> None:
    bench.put(1, "socket", times=3)
    bench.put(2, "running", times=100)

    found = bench.watch(steps=100)

    assert (found.socket, found.running) == (0.0, 1.0)


def test_many_readers_that_share_the_batches_count_together(bench: Bench) -> None:
    for tid in range(1, 9):
        bench.put(tid, "file", times=13)

    assert bench.watch(steps=100).file == 8.0


def test_processes_are_looked_into_and_told_apart(bench: Bench) -> None:
    bench.pids = (os.getpid(), 77)
    bench.put(770, "running", pid=77)
    bench.put(1, "running")

    found = bench.watch()

    assert (found.running, found.outside, found.processes) == (2.0, 1.0, 1)


@pytest.mark.parametrize(
    ("own", "others", "running", "blocked"),
    [
        ("running", None, LOOKS, 0),
        ("interpreter", None, LOOKS, 0),  # it waits for us
        ("file", None, 0, LOOKS),
        ("sleep", None, 0, LOOKS),
        ("socket", "running", 0, 0),  # for the process that computes
        ("sleep", "running", 0, 0),  # it asks again and again
        ("interpreter", "running", 0, 0),
        ("threads", "running", 0, 0),
    ],
)
def test_the_loop_that_makes_its_batches_itself(
    bench: Bench, own: str, others: str | None, running: int, blocked: int
) -> None:
    bench.states[bench.loop] = Wait(own)
    if others is not None:
        bench.put(1, others)

    found = bench.watch()

    assert (found.loop_running, found.loop_blocked) == (running, blocked)


@pytest.mark.parametrize(("times", "blocked"), [(0, LOOKS), (50, 0)])
def test_a_thread_that_has_served_something_else_does_not_make_the_loops_batches(
    bench: Bench, times: int, blocked: int
) -> None:
    bench.states[bench.loop] = Wait("sleep")
    with thread_of_python() as tid:
        bench.put(tid, "socket", times=times)
        bench.watch()

        assert bench.watch().loop_blocked == blocked


def test_nobody_sleeps_until_a_librarys_thread_at_a_socket_has_a_batch(bench: Bench) -> None:
    bench.states[bench.loop] = Wait("sleep")
    bench.put(1, "socket", times=50)  # of Ray, say: Python code has not started it
    bench.watch()

    assert bench.watch().loop_blocked == LOOKS


def test_the_loop_that_computes_waits_for_the_lock_only_with_others(bench: Bench) -> None:
    bench.waiting = False
    bench.states[bench.loop] = Wait("interpreter")
    alone = bench.watch()
    with thread_of_python() as tid:
        bench.put(tid, "running")
        together = bench.watch()

    assert (alone.body_looks, alone.body_interpreter, alone.looks) == (LOOKS, 0, 0)
    assert (together.body_looks, together.body_interpreter, together.body_blocked) == (LOOKS, LOOKS, 0)
    bench.states[bench.loop] = Wait("threads")
    others = bench.watch()
    assert (others.body_interpreter, others.body_blocked) == (0, LOOKS)


def test_our_own_threads_and_the_loops_are_no_producers(bench: Bench) -> None:
    with thread_of_python("stallmeter-memory") as own, thread_of_python("reader") as other:
        bench.put(own, "running")
        bench.put(other, "running")
        bench.put(bench.loop, "running")
        found = bench.watch()

    assert found.running == 1.0


def test_of_very_many_threads_some_stand_for_all(bench: Bench) -> None:
    for tid in range(1, 101):
        bench.put(tid, "running" if tid % 2 else "threads")

    assert bench.watch(looks=400).running == pytest.approx(50, rel=0.25)


def test_what_it_draws_leaves_the_programs_random_numbers_alone(bench: Bench) -> None:
    for tid in range(1, 101):
        bench.put(tid, "running")
    before = random.getstate()

    bench.watch(looks=20)
    bench.source._pause_s(0.0)

    assert random.getstate() == before


def test_where_torchs_workers_are_looked_into_nothing_is_looked_at(bench: Bench) -> None:
    bench.put(1, "running")
    bench.blind = False

    assert not bench.source.sample(0.0)


def test_too_few_looks_wait_for_the_next_record(bench: Bench) -> None:
    assert not bench.source.sample(0.0)
    for _ in range(MIN_LOOKS - 1):
        bench.source.look()
    assert not bench.source.sample(1.0)
    bench.source.look()
    (found,) = bench.source.sample(2.0)

    assert found.looks == MIN_LOOKS < MIN_BODY_LOOKS


def test_a_thread_that_cannot_be_read_is_left_out(bench: Bench) -> None:
    bench.put(1, "running")
    bench.states[1] = None

    assert bench.watch().running == 0.0


def test_looking_goes_on_while_threads_come_and_go(bench: Bench) -> None:
    bench.put(1, "running")
    bench.watch()
    bench.threads[os.getpid()].remove(1)
    del bench.schedules[1]
    bench.put(2, "running")

    assert bench.watch().running == 1.0


def test_it_looks_by_itself_and_ends_its_thread() -> None:
    looked = threading.Event()

    def looks_at(_pid: int, _tid: int) -> Wait:
        looked.set()
        return Wait("running")

    source = ProducerSource(lambda: True, lambda: True, lambda: 0, looks_at=looks_at)
    source.sample(0.0)
    assert looked.wait(30)
    source.close()

    assert not [
        thread for thread in threading.enumerate() if thread.name == "stallmeter-producers" and thread.is_alive()
    ]


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the interpreter ends there is none to be had, or the run ends before it has started."""
    source = ProducerSource(lambda: True, lambda: True, lambda: 0)
    monkeypatch.setattr(threading.Thread, "start", _refused)
    with pytest.raises(RuntimeError, match="can't start"):
        source.sample(0.0)
    source.close()


def _refused(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@contextmanager
def thread_of_python(name: str = "reader") -> Iterator[int]:
    ended = threading.Event()
    wait: Callable[[], object] = ended.wait
    thread = threading.Thread(target=wait, name=name, daemon=True)
    thread.start()
    try:
        yield thread.native_id or 0
    finally:
        ended.set()
        thread.join()
