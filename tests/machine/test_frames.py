"""The frames of all threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from stallmeter.machine import frames
from stallmeter.machine.frames import current_frames

PROGRAM = """
import gc, sys, threading, time
from stallmeter.machine.frames import current_frames

def yields(*_):
    time.sleep(0.0001)  # lets go of the GIL, as a callback of a few instructions does now and then

gc.callbacks.append(yields)
gc.set_threshold(3)
done = threading.Event()

def look():
    while not done.is_set():
        {look}()

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


def test_this_thread_is_among_them():
    assert current_frames()[threading.get_ident()] is sys._getframe()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled):
    try:
        gc.enable() if enabled else gc.disable()
        current_frames()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_the_collector_is_left_as_it_was_after_an_error(monkeypatch):
    def fails():
        raise MemoryError

    monkeypatch.setattr(frames.sys, "_current_frames", fails)
    with pytest.raises(MemoryError):
        current_frames()
    assert gc.isenabled()


def test_an_interpreter_without_them(monkeypatch):
    monkeypatch.setattr(frames, "CAN_LOOK", False)
    assert current_frames() == {}


def test_a_collection_meanwhile_does_not_stop_the_program():
    """With `sys._current_frames` itself this program hangs on Python 3.11.7."""
    program = PROGRAM.format(look="current_frames")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "done\n", ended.stderr
