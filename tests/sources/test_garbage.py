"""Collections are counted to the nanosecond, on the thread that trains, by what it was doing."""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest

from stallmeter.recording.reader import Reader
from stallmeter.records import GarbagePauses, MemorySample
from stallmeter.sources.garbage import GarbageSource
from stallmeter.timing.ledger import COMPUTE, DATA_WAIT, FIRST_WAIT, FORWARD, START, VALIDATION, Ledger

from ..monitors import bare_monitor

pytestmark = pytest.mark.usefixtures("quick_collections")


class Clock:
    """Nanoseconds that a test moves."""

    def __init__(self):
        self.ns = 1

    def __call__(self):
        return self.ns


def collect(callbacks, clock, took_s, generation=2):
    """What the collector does in a pass."""
    for callback in callbacks:
        callback("start", {"generation": generation})
    clock.ns += round(took_s * 1e9)
    for callback in callbacks:
        callback("stop", {"generation": generation, "collected": 0, "uncollectable": 0})


def none():
    """How many passes there were: none but those that a test makes up."""
    return [0, 0, 0]


@pytest.fixture
def made():
    """A source, the list it is called from, its clock and the ledger."""
    clock, callbacks = Clock(), []
    ledger = Ledger(START, now=clock)
    return GarbageSource(ledger, now=clock, callbacks=callbacks, counts=none), callbacks, clock, ledger


def test_by_what_the_thread_was_doing(made):
    """Before the first step it is nobody's loss; waits and validation are told apart."""
    source, callbacks, clock, ledger = made
    collect(callbacks, clock, 1.0)
    ledger.base(COMPUTE)
    collect(callbacks, clock, 0.25)
    for slot, took_s in ((DATA_WAIT, 0.125), (VALIDATION, 0.5), (FORWARD, 0.0625)):
        ledger.enter(slot)
        collect(callbacks, clock, took_s, generation=1)
        ledger.exit(slot)
    (found,) = source.sample(10.0)
    assert (found.passes, found.pause_s, found.training_s) == (2, 1.9375, 0.9375)
    assert (found.waiting_s, found.validation_s, found.longest_s) == (0.125, 0.5, 0.5)
    assert found.blocks is not None
    assert found.automatic


def test_who_calls_the_collector_is_named():
    """By the user's own function that asks most; passes that begin by themselves, and younger ones, are nobody's."""
    clock, callbacks, asked = Clock(), [], [True]
    ledger = Ledger(START, now=clock)
    source = GarbageSource(ledger, now=clock, callbacks=callbacks, is_called=lambda: asked[0], counts=none)
    ledger.base(COMPUTE)

    def often():
        collect(callbacks, clock, 0.5)

    collect(callbacks, clock, 0.125)
    often()
    collect(callbacks, clock, 0.25, generation=1)
    asked[0] = False
    collect(callbacks, clock, 1.0)
    (found,) = source.sample(1.0)
    assert (found.training_s, found.called_s) == (1.875, 0.625)
    assert found.called_file.endswith("test_garbage.py")
    assert found.called_function == "collect"  # it stands for the collector here, which is no function of Python's
    assert found.called_line > 0
    assert source.sample(100.0)[0].called_s == 0.0


@pytest.mark.parametrize("enabled", [True, False])
def test_a_call_is_told_from_a_pass_that_begins_by_itself(enabled):
    ledger = Ledger(START)
    source = GarbageSource(ledger)
    ledger.base(COMPUTE)
    before, thresholds = gc.isenabled(), gc.get_threshold()
    try:
        gc.set_threshold(100, 1, 1)
        kept = [[i] for i in range(20_000)]
        gc.set_threshold(1_000_000)  # none begins by itself any more
        (by_itself,) = source.sample(0.0)
        if not enabled:
            gc.disable()
        gc.collect()
        (called,) = source.sample(100.0)
    finally:
        gc.set_threshold(*thresholds)
        (gc.enable if before else gc.disable)()
        source.close()
    assert len(kept) == 20_000
    assert (by_itself.called_s, by_itself.called_file) == (0.0, "")
    assert called.passes == 1
    assert called.called_s == called.training_s > 0.0
    assert called.called_function == "test_a_call_is_told_from_a_pass_that_begins_by_itself"


def test_of_many_passes_some_stand_for_all():
    """Noted for a moment at each poll; Python counts the others. Those before the training are no loss of it."""
    clock, callbacks, counted, waits_s = Clock(), [], [0, 0, 0], []
    ledger = Ledger(START, now=clock)

    def passes(number, took_s, generation=0):
        counted[generation] += number
        for _ in range(number if callbacks else 0):
            collect(callbacks, clock, took_s, generation)
        if not callbacks:
            clock.ns += round(number * took_s * 1e9)

    def glance(seconds):
        waits_s.append(seconds)
        passes(100, 2e-5)
        passes(1, 0.25, generation=2)

    source = GarbageSource(ledger, now=clock, callbacks=callbacks, counts=lambda: counted, wait=glance)
    passes(5000, 1e-5)
    assert source.sample(1.0)[0].training_s == 0.0
    assert (waits_s, callbacks) == ([0.02], [])
    ledger.base(COMPUTE)
    passes(5000, 1e-5)
    assert not callbacks
    assert source.sample(2.0)[0].training_s == 0.0, "nothing is known of the training's yet"
    passes(9900, 1e-5)
    passes(2, 0.5, generation=2)
    found = source.sample(3.0)[0]
    # Passes of 20 µs and of a quarter of a second were noted, 100 of the one kind and one of the other.
    assert found.training_s == pytest.approx((5000 + 9900 + 100) * 2e-5 + 3 * 0.25)
    assert found.passes == 3
    assert waits_s == [0.02] * 3


def test_the_callbacks_keep_nothing_that_they_have_made():
    """What lives on among the program's objects brings these out of order: see the module."""
    ledger, info = Ledger(START), {"generation": 2}
    source = GarbageSource(ledger, callbacks=(callbacks := []), is_called=functools.partial(bool, 0), counts=none)

    def collect_once():
        for phase in ("start", "stop"):
            name = "".join(phase)
            for callback in callbacks:
                callback(name, info)

    for _ in range(5):
        collect_once()
    blocks, references = sys.getallocatedblocks(), sys.getrefcount(info)
    for _ in range(1000):
        collect_once()
    assert abs(sys.getallocatedblocks() - blocks) <= 5
    assert sys.getrefcount(info) == references
    assert source.sample(0.0)[0].passes == 1005


def test_an_epochs_first_wait_is_a_wait(made):
    """The ledger has a slot of its own for it."""
    source, callbacks, clock, ledger = made
    ledger.base(COMPUTE)
    ledger.enter(FIRST_WAIT)
    collect(callbacks, clock, 0.5)
    assert source.sample(1.0)[0].waiting_s == 0.5


def test_differences(made):
    """Records add up to all there was; what is not worth one is kept, but for one a minute."""
    source, callbacks, clock, ledger = made
    ledger.base(COMPUTE)
    assert [r.pause_s for r in source.sample(0.0)] == [0.0], "that nothing was collected is known"
    collect(callbacks, clock, 0.0004)
    assert source.sample(1.0) == ()
    collect(callbacks, clock, 0.0008)
    (found,) = source.sample(2.0)
    assert (found.training_s, found.longest_s, found.blocks) == (pytest.approx(0.0012), pytest.approx(0.0008), None)
    collect(callbacks, clock, 0.0002)
    assert source.sample(3.0) == ()
    assert source.sample(63.0)[0].training_s == pytest.approx(0.0002)


def test_other_threads(made):
    """They hold the lock, but are told apart."""
    source, callbacks, clock, ledger = made
    ledger.base(COMPUTE)
    thread = threading.Thread(target=collect, args=(callbacks, clock, 0.5))
    thread.start()
    thread.join()
    (found,) = source.sample(1.0)
    assert (found.pause_s, found.training_s, found.longest_s) == (0.5, 0.0, 0.0)


def test_a_list_that_the_program_changes(made):
    """It may clear the list or move us; we come back, and are gone in the end."""
    source, callbacks, clock, ledger = made
    ledger.base(COMPUTE)
    callbacks.clear()
    collect(callbacks, clock, 1.0)
    source.sample(1.0)
    other = lambda phase, info: None  # noqa: E731
    callbacks.insert(0, other)
    collect(callbacks, clock, 0.5)
    assert source.sample(2.0)[0].training_s == 0.5
    source.close()
    source.close()
    assert callbacks == [other]
    source.sample(3.0)
    assert callbacks == [other]


def test_a_callback_that_comes_inside_a_pass(made):
    """A stop without its start is no pause."""
    source, callbacks, clock, ledger = made
    ledger.base(COMPUTE)
    source.sample(0.0)
    clock.ns += 10**12
    for callback in callbacks:
        callback("stop", {"generation": 2, "collected": 0, "uncollectable": 0})
    assert source.sample(1.0) == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_for_real():
    """Python's own collector calls; a forked process does not."""
    ledger = Ledger(COMPUTE)
    before = list(gc.callbacks)
    source = GarbageSource(ledger)
    try:
        source.sample(0.0)
        kept = [[i] for i in range(100_000)]
        gc.collect()
        child = os.fork()
        if not child:
            os._exit(0 if all(callback in before for callback in gc.callbacks) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        (found,) = source.sample(100.0)
        assert found.passes >= 1
        assert 0 < found.longest_s <= found.training_s <= found.pause_s
        assert len(kept) == 100_000
    finally:
        source.close()
    assert gc.callbacks == before


class Late(Exception):
    """What a program's handler of a signal raises."""


class Node:
    """Refers to itself, so that only the collector finds it."""

    def __init__(self):
        self.me = self


@pytest.fixture
def late():
    """The number of a signal whose handler raises."""

    def handler(number, frame):
        raise Late

    number = signal.SIGUSR1
    before = signal.signal(number, handler)
    yield number
    signal.signal(number, before)


def send_in_a_pass(number):
    """Have the next pass of the collector send a signal to this process, without an instruction of Python."""
    node = Node()
    send = map(ctypes.CDLL(None)["raise"], itertools.repeat(number))
    return weakref.ref(node, functools.partial(next, send))


@pytest.fixture
def no_others() -> Iterator[None]:
    """Callbacks of others that are written in Python lose what a handler raises; hypothesis leaves one."""
    others = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = others


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signals")
@pytest.mark.usefixtures("no_others")
@pytest.mark.parametrize("called", [True, False])
def test_what_a_handler_raises_is_not_lost_when_its_signal_comes_in_a_pass(late, called):
    """The handler is run with the next instruction of Python: that must be the program's, in no callback of ours."""
    thresholds = gc.get_threshold()
    source = GarbageSource(Ledger(COMPUTE))
    source.sample(0.0)
    try:
        sent = send_in_a_pass(late)
        with pytest.raises(Late):
            if called:
                gc.collect()
            else:
                gc.set_threshold(100, 1, 1)
                kept = [[i] for i in range(20_000)]
                pytest.fail(f"lost among {len(kept)}")
        gc.set_threshold(*thresholds)
        assert sent() is None
        (found,) = source.sample(100.0)
        assert found.training_s > 0
        assert (found.called_s > 0) is called
    finally:
        gc.set_threshold(*thresholds)
        source.close()


@pytest.mark.usefixtures("no_others")
def test_no_instruction_of_python_is_run_in_a_pass():
    """Nor is anything kept of the program's: its objects die when it lets go of them."""
    source, events = GarbageSource(Ledger(COMPUTE)), []

    def asks():
        node = Node()
        gc.collect()
        node.me = None
        return weakref.ref(node)

    try:
        sys.setprofile(lambda frame, event, arg: events.append((event, frame.f_code.co_name)))
        try:
            died = asks()
        finally:
            sys.setprofile(None)
        assert died() is None
        called = [name for event, name in events if event == "call"]
        assert called == ["asks", "__init__"]
        (found,) = source.sample(100.0)
        assert found.called_function == "test_no_instruction_of_python_is_run_in_a_pass.<locals>.asks"
    finally:
        source.close()


def test_the_interpreter_ends_without_a_word():
    """Its last pass begins in no frame of Python's; a source that was never closed is called there, too."""
    program = (
        "from stallmeter.sources.garbage import GarbageSource; from stallmeter.timing.ledger import Ledger; import sys;"
        "sys.kept = GarbageSource(Ledger())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("raises", [False, True])
def test_in_a_run(tmp_path, raises):
    """A run counts, keeps what was counted beside its processes' memory, and leaves the collector as it was."""
    before = list(gc.callbacks)

    def train(monitor):
        kept = [[i] for i in range(100_000)]
        for _ in monitor.watch([[i] for i in range(5)]):
            gc.collect()
        if raises:
            raise KeyError(len(kept))

    monitor = bare_monitor(tmp_path, hardware=True, interval_s=0.05)
    with suppress(KeyError), monitor:
        train(monitor)
    monitor.finish()
    (folder,) = (path.parent for path in tmp_path.rglob("rank0.0000.jsonl"))
    records = [record for record, _ in Reader(folder)]
    found = [r for r in records if isinstance(r, GarbagePauses)]
    assert sum(r.passes for r in found) >= 5
    assert sum(r.training_s for r in found) > 0
    if sys.platform == "linux":
        assert any(isinstance(r, MemorySample) and r.main_bytes > 0 for r in records)
    assert gc.callbacks == before
