"""Where a training thread stands in whose steps nothing happens any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stallmeter.records import CodeLook, Event
from stallmeter.records.code import STANDING
from stallmeter.records.steps import STANDS
from stallmeter.sources.stacks.standing import Standing
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import BACKWARD, VALIDATION, Ledger

HERE = ((compile("x", "<one>", "exec"), 0),)
THERE = ((compile("x", "<one>", "exec"), 2),)


class Bench:
    """A loop whose time is set, and whose thread is where it is said to be."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.at = HERE
        self.said: list[str] = []
        self.looks: list[CodeLook] = []
        self.clock = StepClock(Ledger(now=lambda: int(self.now_s * 1e9)))
        self.standing = Standing(self.clock, self.said.append, look=lambda _: self.at)

    def steps(self, count: int, step_s: float = 1.0) -> None:
        for _ in range(count):
            self.clock.begin(self.clock.ledger.settle())
            self.clock.worked = True
            self.look(step_s)

    def look(self, passed_s: float) -> list[str]:
        self.now_s += passed_s
        found = self.standing.sample(self.now_s)
        self.looks += [record for record in found if isinstance(record, CodeLook)]
        return [record.detail for record in found if isinstance(record, Event) and record.name == STANDS]


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.steps(5)
    return made


def test_it_is_told_at_the_second_look_in_one_place_and_again_when_twice_as_long(bench: Bench) -> None:
    bench.clock.ledger.enter(BACKWARD)
    assert bench.look(29.0) == []
    assert bench.look(1.0) == []
    [told] = bench.look(1.0)
    assert told.startswith("for 31 s in backward: ")
    assert [bench.look(10.0) for _ in range(3)] == [[], [], []]
    assert bench.look(2.0)[0].startswith("for 63 s in backward")
    assert bench.said == [told]
    assert [(look.bucket, look.wall_s, look.spots[0].wall_s) for look in bench.looks] == [
        (STANDING, 31.0, 31.0),
        (STANDING, 63.0, 63.0),
    ]


def test_it_is_taken_back_when_steps_go_on_and_not_when_the_loop_is_left(bench: Bench) -> None:
    for left, long_s in ((False, 400.0), (True, 4000.0)):
        bench.look(long_s)
        assert bench.look(1.0)
        seconds = [look.wall_s for look in bench.looks]
        if left:
            bench.clock.pause()
            bench.look(1.0)
            assert [look.wall_s for look in bench.looks] == seconds
        bench.steps(2)
        assert [look.wall_s for look in bench.looks] == [*seconds, 0.0]


def test_a_thread_that_is_elsewhere_at_each_look_does_not_stand(bench: Bench) -> None:
    for place in (HERE, THERE, HERE, THERE):
        bench.at = place
        assert bench.look(40.0) == []


def test_long_steps_among_others_are_no_news(bench: Bench) -> None:
    bench.look(20.0)
    bench.steps(3)
    assert [bench.look(9.0) for _ in range(11)] == [[]] * 11  # five times 21 s have not passed
    assert bench.look(9.0) == []
    assert bench.look(9.0)


@pytest.mark.parametrize("begun", [False, True])
def test_what_comes_before_the_first_step_has_ended_is_a_start(begun: bool) -> None:
    bench = Bench()
    if begun:
        bench.clock.begin(bench.clock.ledger.settle())
    assert [bench.look(60.0) for _ in range(3)] == [[]] * 3


def test_the_time_between_epochs_is_none_of_a_step(bench: Bench) -> None:
    bench.clock.pause()
    assert [bench.look(60.0) for _ in range(3)] == [[]] * 3


def test_a_validation_takes_its_time(bench: Bench) -> None:
    bench.clock.ledger.enter(VALIDATION)
    assert [bench.look(60.0) for _ in range(3)] == [[]] * 3


def test_a_thread_that_is_gone_is_nowhere(bench: Bench) -> None:
    bench.at = ()
    assert [bench.look(60.0) for _ in range(3)] == [[]] * 3


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    let_go = threading.Event()
    yield let_go
    let_go.set()


def test_the_place_is_the_users_line_and_the_call_beneath_it(waiting: threading.Event) -> None:
    bench, ready = Bench(), threading.Event()

    def hangs() -> None:
        bench.clock.ledger.thread = threading.get_ident()
        ready.set()
        waiting.wait()

    threading.Thread(target=hangs, daemon=True).start()
    assert ready.wait(30)
    bench.steps(3)
    standing = Standing(bench.clock, bench.said.append)
    bench.standing = standing
    bench.look(0.0)
    bench.look(40.0)
    for _ in range(200):  # it may not be in its wait yet
        if bench.look(1.0):
            break
    [said] = bench.said
    assert "hangs, " in said
    assert f"test_standing.py:{hangs.__code__.co_firstlineno + 3} (threading.Event.wait)" in said
