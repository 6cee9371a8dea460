"""Where other threads stand."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from stallmeter.machine import frames
from stallmeter.machine.frames import DEEPEST, codes_of_threads, lines_of, running_threads, stack_after, stack_of

HANGS = """
import gc, sys, threading, time
from stallmeter.machine.frames import running_threads, stack_of

def yields(*_):
    time.sleep(0.0001)  # lets go of the GIL, as a callback of a few instructions does now and then

gc.callbacks.append(yields)
gc.set_threshold(3)
done = threading.Event()
main = threading.get_ident()

def look():
    while not done.is_set():
        {look}

looker = threading.Thread(target=look)
looker.start()
for _ in range(600):
    started = threading.Thread(target=int)
    started.start()
    started.join()
done.set()
looker.join()
print("done")
"""

CRASHES = """
import functools, sys, threading
from stallmeter.machine.frames import stack_of

def numbers(count):
    for i in range(count):
        yield from inner(i)

def inner(i):
    yield [j for j in range(3)]
    yield (lambda: i)()

class Held:
    def __enter__(self):
        return self
    def __exit__(self, *_):
        return False
    def __del__(self):
        (lambda x: x)(1)

def deep(depth):
    with Held():
        if depth:
            return functools.reduce(lambda a, b: a + b, map(lambda x: deep(depth - 1) if x else 0, [1, 0]))
        return sum(1 for _ in numbers(4)) + len(sorted(range(5), key=lambda x: -x))

def fails(depth):
    if depth:
        fails(depth - 1)
    raise ValueError

done = threading.Event()
main = threading.get_ident()

def look():
    while not done.is_set():
        stack_of(main)

sys.setswitchinterval(1e-6)
looker = threading.Thread(target=look)
looker.start()
for round in range(100_000):
    deep(round % 12)
    try:
        fails(round % 12)
    except ValueError:
        pass
done.set()
looker.join()
print("done")
"""


class Standing:
    """A thread that stands in a function until it is let go."""

    def __init__(self, depth: int) -> None:
        self.there, self.go_on = threading.Event(), threading.Event()
        self.held: weakref.ref[Held] | None = None
        self.freed_by = 0
        self.thread = threading.Thread(target=self._down, args=(depth,))

    def __enter__(self) -> Standing:
        self.thread.start()
        assert self.there.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self.thread.join()

    def _down(self, depth: int) -> None:
        if depth:
            self._down(depth - 1)
        else:
            held = Held()
            self.held = weakref.ref(held, self._freed)
            self.there.set()
            self.go_on.wait(60)

    def _freed(self, _: object) -> None:
        self.freed_by = threading.get_ident()

    @property
    def identity(self) -> int:
        assert self.thread.ident is not None
        return self.thread.ident


class Held:
    """What a frame holds."""


@pytest.fixture
def standing() -> Iterator[Standing]:
    with Standing(3) as thread:
        yield thread


def test_threads_that_run(standing):
    assert {threading.get_ident(), standing.identity} <= running_threads()


def test_in_what_code_each_thread_is(standing):
    codes = codes_of_threads()
    assert codes.keys() == running_threads()
    assert codes[standing.identity].co_name == "wait"
    # The caller's own is that of the frame that asks.
    assert codes[threading.get_ident()].co_filename == frames.__file__


def test_a_thread_that_has_ended():
    with Standing(0) as ended:
        pass
    assert ended.identity not in running_threads()
    assert ended.identity not in codes_of_threads()
    assert stack_of(ended.identity) == ()


def test_a_stack_is_told_from_the_outside_in(standing):
    names = [code.co_name for code, _ in stack_of(standing.identity)]
    assert names[0] == "_bootstrap"
    assert names[names.index("_down") :][:4] == ["_down"] * 4
    assert names[-1] == "wait"


def test_a_place_is_in_the_line_that_runs(standing):
    code, at = next(place for place in stack_of(standing.identity) if place[0].co_name == "_down")
    assert code is Standing._down.__code__
    line = next(line for begin, end, line in code.co_lines() if begin <= at < end)
    assert line == code.co_firstlineno + 2


def test_lines_are_told_with_the_names_of_their_module(standing):
    found = [(line, names) for code, line, names in lines_of(standing.identity) if code.co_name == "_down"]
    assert found[0] == (Standing._down.__code__.co_firstlineno + 2, globals())


def test_of_a_deep_stack_the_innermost_is_told():
    with Standing(2 * DEEPEST) as deep:
        assert len(stack_of(deep.identity)) == DEEPEST
        assert stack_of(deep.identity)[-1][0].co_name == "wait"
        assert len(lines_of(deep.identity)) > 2 * DEEPEST


def test_its_own_stack():
    assert test_its_own_stack.__code__ in [code for code, _ in stack_of(threading.get_ident())]


def test_what_a_frame_holds_is_freed_by_its_own_thread():
    with Standing(0) as thread:
        for _ in range(100):
            stack_of(thread.identity)
    assert thread.held is not None
    assert thread.held() is None
    assert thread.freed_by == thread.identity


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    "look", [running_threads, codes_of_threads, lambda: stack_of(threading.get_ident()), lambda: lines_of(-1)]
)
def test_the_collector_is_left_as_it_was(enabled, look):
    try:
        gc.enable() if enabled else gc.disable()
        look()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_is_when_the_wait_ends(enabled):
    """The program switches it while a look is waited for."""
    switch = gc.enable if enabled else gc.disable
    try:
        gc.disable() if enabled else gc.enable()
        stack_after(switch, threading.get_ident())
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_a_stack_is_that_of_the_moment_at_which_the_wait_ends(standing):
    lock = threading.Lock()
    waited, (number, word), stack = stack_after(lock.acquire, standing.identity, (int, str))
    assert (waited, number, word) == (True, 0, "")
    assert [code for code, _ in stack] == [code for code, _ in stack_of(standing.identity)]
    assert lock.locked()


def test_the_collector_is_left_as_it_was_after_an_error(monkeypatch):
    def fails():
        raise MemoryError

    monkeypatch.setattr(frames.sys, "_current_frames", fails)
    with pytest.raises(MemoryError):
        stack_of(threading.get_ident())
    assert gc.isenabled()


def test_an_interpreter_without_them(monkeypatch):
    monkeypatch.setattr(frames, "CAN_LOOK", False)
    assert running_threads() == frozenset()
    assert codes_of_threads() == {}
    assert stack_of(threading.get_ident()) == lines_of(threading.get_ident()) == ()
    assert stack_after(list, threading.get_ident(), (int,)) == ([], (0,), ())


def test_no_other_thread_runs_during_a_look(standing):
    """A thread that is let in as often as can be never finds the collector switched off."""
    seen, done = set(), threading.Event()

    def watches() -> None:
        while not done.is_set():
            seen.add(gc.isenabled())

    watching = threading.Thread(target=watches)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        watching.start()
        for _ in range(20_000):
            stack_of(standing.identity)
    finally:
        done.set()
        sys.setswitchinterval(before)
        watching.join()
    assert seen == {True}


@pytest.mark.parametrize("look", ["running_threads()", "stack_of(main)"])
def test_a_collection_meanwhile_does_not_stop_the_program(look):
    """With `sys._current_frames` itself this program hangs on Python 3.11.7."""
    program = HANGS.format(look=look)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "done\n", ended.stderr


def test_a_thread_that_goes_on_meanwhile_is_read_as_it_was():
    """A walk by ``frame.f_back`` in Python reads what is no frame any more on Python 3.11.7, and crashes."""
    ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", CRASHES], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
