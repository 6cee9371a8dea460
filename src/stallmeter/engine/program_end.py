"""What has to be waited for when the program ends: runs that go on, and reports of runs that have ended."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..records.steps import AT_EXIT


def why_it_ends() -> str:
    """Return why this process ends, for the recording: an exception that nobody has caught, or `AT_EXIT`."""
    # A child of multiprocessing ends with its exception on the way; torch's ranks turn theirs into an exit status.
    exc = sys.exc_info()[1]
    while isinstance(exc, SystemExit) and exc.__context__ is not None:
        exc = exc.__context__
    if exc is None and not hasattr(sys, "ps1"):  # where somebody types, an earlier line's
        exc = getattr(sys, "last_value", None)
    return AT_EXIT if exc is None or isinstance(exc, SystemExit) else f"exception: {type(exc).__name__}"


class Ends(Protocol):
    """A monitor."""

    @property
    def close_budget_s(self) -> float:
        """Most seconds to wait for it."""
        ...

    def exit(self) -> Callable[[float], None]:
        """Begin to end its run; returns what waits for the rest, no longer than until a deadline (monotonic)."""
        ...


_open: dict[int, Ends] = {}
_watched_pid: int | None = None
"""The process whose end is listened for: a fork inherits the list, but not the runs."""


def await_at_exit(monitor: Ends) -> None:
    """Have a monitor closed and waited for when this process ends."""
    global _watched_pid
    if _watched_pid != os.getpid():
        _open.clear()
        _watched_pid = os.getpid()
        # Children of multiprocessing leave by os._exit, which calls no atexit. They have imported it.
        process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
        if process is not None and util is not None and process.parent_process() is not None:
            util.Finalize(None, _end, exitpriority=100)
        else:
            atexit.register(_end)
    _open[id(monitor)] = monitor


def awaited() -> list[Ends]:
    """Return what this process waits for when it ends."""
    return list(_open.values()) if _watched_pid == os.getpid() else []


def forget(monitor: Ends) -> None:
    """Take back `await_at_exit`."""
    _open.pop(id(monitor), None)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Have no garbage of the program's collected meanwhile, for it would be on a thread of ours: its own waits here.

    What is called then is the program's, such as the end of a DataLoader's iterator, which waits for its workers for
    seconds. A thread that still does as the interpreter goes ends the process with SIGABRT.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _end() -> None:
    """Wait for all of them together no longer than for the one that may take longest."""
    if _watched_pid == os.getpid():
        with _nothing_collected():
            _end_all()


def _end_all() -> None:
    left = list(_open.values())  # in one step: endings take themselves out on threads of their own
    waits: list[Callable[[float], None]] = []
    try:
        waits.extend(monitor.exit() for monitor in left)
        deadline_s = time.monotonic() + max((monitor.close_budget_s for monitor in left), default=0.0)
        for wait in waits:
            wait(deadline_s)
    except KeyboardInterrupt:  # the user waits no longer, and is told what is left
        for wait in waits:
            wait(time.monotonic())
