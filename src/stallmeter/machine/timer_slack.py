"""How late the kernel may wake a thread that waits for a time."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_PR_SET_TIMERSLACK = 29


def wake_on_time(slack_ns: int = 1_000) -> bool:
    """Have the calling thread's waits end on time; returns whether the kernel agreed. Linux only.

    Without it waits end up to 50 µs late, so that several threads may be woken at once (`man 2 prctl`). Threads and
    processes that the calling thread starts afterwards inherit it.

    Args:
        slack_ns: Nanoseconds that a wait may end late.
    """
    if sys.platform != "linux":
        return False
    with suppress(AttributeError, OSError):  # no such function here
        return bool(ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0) == 0)
    return False
