"""Looks at another thread's stack: when one is taken, and for how much time it stands."""

from __future__ import annotations

import sys
import threading

import pytest

from stallmeter.sources.stacks.sampler import (
    LONG_STEP,
    STEADY,
    SWITCH_S,
    StackSampler,
    Wanted,
)
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import CALLBACKS, CHECKPOINT, DATA_WAIT, FORWARD, START, VALIDATION, Ledger

MS = 1_000_000


class Time:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Rig:
    """A sampler that is asked for a look by the test, of the test's own thread."""

    def __init__(self, **wanted: object) -> None:
        self.time = Time()
        self.clock = StepClock(Ledger(START, self.time), unix_ns=lambda: 0)
        self.own = self.clock.ledger.slot(CALLBACKS, "StallMonitor")
        self.sampler = StackSampler(self.clock, self.own, now=self.time, thread_s=lambda: 0.0)
        self.sampler.wanted = Wanted(**{"first_steps": False, **wanted})  # type: ignore[arg-type]
        self.ledger = self.clock.ledger

    def run(self, ms: int, every: int = 1) -> None:
        """Let time pass, with looks as the thread would take them when it woke each millisecond."""
        for _ in range(0, ms, every):
            self.time.ns += every * MS
            if self.time.ns >= self.sampler._due_ns:
                self.sampler.look()

    def taken(self) -> list[tuple[int, int]]:
        looks = self.sampler.looks
        return [(look.slot, look.phase) for look in looks]

    def seconds(self, slot: int) -> float:
        return sum(look.weight_ns for look in self.sampler.looks if look.slot == slot) / 1e9


@pytest.fixture(autouse=True)
def switch_interval():
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def _in_step(rig: Rig) -> None:
    with_batch = rig.clock
    with_batch.begin(rig.ledger.settle())
    with_batch.worked = True


def test_nothing_is_looked_at_where_nothing_is_wanted():
    rig = Rig()
    _in_step(rig)
    rig.ledger.enter(FORWARD)
    rig.run(2000)
    assert rig.taken() == []
    assert 5 <= rig.sampler.glances <= 60


def test_what_is_asked_for_is_looked_at_while_it_is_open_and_stands_for_its_time():
    rig = Rig()
    slow, other = rig.ledger.slot(CALLBACKS, "Slow"), rig.ledger.slot(CALLBACKS, "Other")
    rig.sampler.wanted = Wanted(slots=frozenset({slow}), first_steps=False)
    rig.run(500)
    for _ in range(1000):
        for slot, ms in ((slow, 3), (other, 5), (FORWARD, 7)):
            rig.ledger.enter(slot)
            rig.run(ms)
            rig.ledger.exit(slot)
    assert {slot for slot, _ in rig.taken()} == {slow}
    assert rig.seconds(slow) == pytest.approx(3.0, rel=0.15)


def test_a_function_that_makes_a_look_late_counts_for_the_points_that_it_has_covered():
    """200 ms in which no look is possible, then 200 ms with looks: both are half of the time."""
    rig = Rig()
    rig.sampler.wanted = Wanted(slots=frozenset({CHECKPOINT}), first_steps=False)
    rig.run(100)
    held = free = 0.0
    for _ in range(50):
        rig.ledger.enter(CHECKPOINT)
        before = len(rig.sampler.looks)
        rig.run(200, every=200)
        held += sum(look.weight_ns for look in list(rig.sampler.looks)[before:]) / 1e9
        before = len(rig.sampler.looks)
        rig.run(200)
        free += sum(look.weight_ns for look in list(rig.sampler.looks)[before:]) / 1e9
        rig.ledger.exit(CHECKPOINT)
        rig.run(50)
    assert held == pytest.approx(10.0, rel=0.1)
    assert free == pytest.approx(10.0, rel=0.1)


def test_a_checkpoint_that_nobody_has_asked_for_is_met_while_it_is_written():
    rig = Rig()
    rig.run(1000)
    rig.ledger.enter(CHECKPOINT)
    rig.run(400)
    rig.ledger.exit(CHECKPOINT)
    assert {slot for slot, _ in rig.taken()} == {CHECKPOINT}
    assert len(rig.taken()) >= 10
    assert rig.seconds(CHECKPOINT) == pytest.approx(0.4, rel=0.3)


def test_short_callbacks_are_met_only_where_they_are_asked_for_and_own_hooks_never():
    rig = Rig()
    slow = rig.ledger.slot(CALLBACKS, "Slow")
    for _ in range(100):
        for slot in (slow, rig.own):
            rig.ledger.enter(slot)
            rig.run(20)
            rig.ledger.exit(slot)
    rig.ledger.enter(rig.own)
    rig.run(500)
    assert rig.taken() == []


def test_where_there_are_looks_enough_none_is_taken():
    rig = Rig(enough=frozenset({VALIDATION}))
    rig.ledger.enter(VALIDATION)
    rig.run(1000)
    assert rig.taken() == []


def test_long_steps_are_looked_at_once_they_are_long():
    rig = Rig(median_ns=20 * MS)
    for step in range(40):
        _in_step(rig)
        rig.ledger.enter(DATA_WAIT)
        rig.run(30)
        rig.ledger.exit(DATA_WAIT)
        rig.ledger.enter(FORWARD)
        rig.run(400 if step == 20 else 20)
        rig.ledger.exit(FORWARD)
    assert set(rig.taken()) == {(FORWARD, LONG_STEP)}
    assert rig.seconds(FORWARD) <= 0.4


def test_long_steps_of_which_there_are_looks_enough_are_none_of_the_others():
    """What runs in them alone would be told of all steps, and they would be told of twice."""
    rig = Rig(median_ns=20 * MS, long_ones=False, slots=frozenset({FORWARD}))
    for step in range(40):
        _in_step(rig)
        rig.ledger.enter(FORWARD)
        rig.run(400 if step == 20 else 20)
        rig.ledger.exit(FORWARD)
    assert set(rig.taken()) == {(FORWARD, STEADY)}
    assert rig.seconds(FORWARD) == pytest.approx(39 * 0.02 + 0.06, rel=0.3)


def test_the_start_and_the_first_steps_are_looked_at_under_their_number():
    rig = Rig(first_steps=True)
    rig.run(300)
    _in_step(rig)
    rig.ledger.enter(FORWARD)
    rig.run(200)
    rig.ledger.exit(FORWARD)
    assert set(rig.taken()) == {(START, 0), (FORWARD, 0)}
    assert rig.seconds(START) == pytest.approx(0.3, rel=0.2)


def test_the_switch_interval_is_short_only_while_something_is_in_question():
    before = sys.getswitchinterval()
    rig = Rig()
    rig.run(200)
    assert sys.getswitchinterval() == before
    rig.ledger.enter(CHECKPOINT)
    rig.run(300)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    rig.ledger.exit(CHECKPOINT)
    rig.run(300)
    assert sys.getswitchinterval() == before


def test_the_switch_interval_stays_where_other_threads_compute():
    """A short one would speed such a program up: what is looked at must not be another one."""
    before = sys.getswitchinterval()
    rig = Rig(slots=frozenset({FORWARD}), crowded=True)
    rig.sampler.look()
    assert sys.getswitchinterval() == before


def test_a_switch_interval_of_the_program_is_left_alone():
    rig = Rig()
    rig.ledger.enter(CHECKPOINT)
    rig.run(300)
    sys.setswitchinterval(0.123)
    rig.ledger.exit(CHECKPOINT)
    rig.run(300)
    assert sys.getswitchinterval() == pytest.approx(0.123)


def test_our_switch_interval_is_never_given_back_as_the_programs():
    """It was read while ours held, another one was set for a while, and then what had been read."""
    before = sys.getswitchinterval()
    rig = Rig()
    rig.ledger.enter(CHECKPOINT)
    rig.run(300)
    read = sys.getswitchinterval()
    sys.setswitchinterval(0.02)
    rig.ledger.exit(CHECKPOINT)
    rig.run(300)
    sys.setswitchinterval(read)
    rig.run(300)
    assert sys.getswitchinterval() == before


def test_a_real_thread_finds_the_function_that_the_other_is_in():
    clock = StepClock(Ledger(START))
    sampler = StackSampler(clock, -1)
    sampler.start()
    done = threading.Event()

    def wait_for_looks() -> None:
        while len(sampler.looks) < 5 and not done.wait(0.002):
            pass

    watchdog = threading.Timer(30.0, done.set)
    watchdog.start()
    wait_for_looks()
    watchdog.cancel()
    sampler.end()
    assert len(sampler.looks) >= 5
    assert any(code is wait_for_looks.__code__ for look in sampler.looks for code, _ in look.stack)
    assert all(look.phase in (0, STEADY) for look in sampler.looks)
