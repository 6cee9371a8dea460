"""The processes and threads that a test started, told from those that other tests left."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 30.0
_earlier: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

ProcessesLeft = Callable[[], set[int]]
"""Returns the children that came since the test began and do not end."""


def children() -> set[int]:
    """Return the process ids of this process's children.

    Those that multiprocessing started and that have ended are waited for: torch 2.2 terminates a worker that does not
    end by itself and lets it lie.
    """
    found = {child.pid for child in multiprocessing.active_children() if child.pid is not None}
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found.update(int(pid) for pid in path.read_text().split())
    return found


def left(before: set[int], *, collect: bool = False) -> set[int]:
    """Return the children that were not there ``before`` and do not end.

    Args:
        before: What `children` returned before the test began.
        collect: Whether what only garbage holds on to may be collected first.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (found := children() - before) and time.monotonic() < deadline:
        if collect:
            gc.collect()
        time.sleep(0.02)
    return found


def forget_threads() -> None:
    """A test begins: a thread that hangs since an earlier one is none of its own."""
    _earlier.update(threading.enumerate())


def our_threads(name: str = "stallmeter") -> list[threading.Thread]:
    """Return stallmeter's threads of this test that are alive, those whose name begins so."""
    return [t for t in threading.enumerate() if t.name.startswith(name) and t not in _earlier]
