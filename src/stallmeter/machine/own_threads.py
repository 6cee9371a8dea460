"""How much the program's own threads compute beside the one that trains."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .procfs import thread_times_ns

OWN = "stallmeter"
"""What the names of our own threads begin with."""

MOST_THREADS = 64
"""That are asked how much they compute."""


class Crowd:
    """Asks how much the program's other threads compute: those that Python code has started.

    Threads of a mathematical library, which work for an operation of the training, are none of them.

    Args:
        loop: Identity of the training thread.
        schedule: Returns for how long (ns) a thread, by its number of the system, has had a CPU; None where nobody
            counts.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        loop: int,
        schedule: Callable[[int], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._schedule = schedule or _ran_ns
        self._clock = clock
        self._ran_ns: dict[int, int] | None = None
        """By thread, at the last call; None before the first one."""
        self._asked_s = clock()

    def cpus(self) -> float | None:
        """Return how many CPUs they have kept busy since the last call; None the first time or where nobody counts."""
        now_s, before = self._clock(), self._ran_ns
        passed_s, self._asked_s = now_s - self._asked_s, now_s
        others = [
            thread.native_id
            for thread in threading.enumerate()
            if thread.native_id is not None and thread.ident != self._loop and not thread.name.startswith(OWN)
        ][:MOST_THREADS]
        asked = ((thread, self._schedule(thread)) for thread in others)
        self._ran_ns = {thread: ran_ns for thread, ran_ns in asked if ran_ns is not None}
        if before is None or (others and not self._ran_ns):
            return None
        # A thread that is new has run since then, all of it; some loops start one in each epoch. A number may be given
        # again, to another thread; and one that Python did not start may have run before it was known.
        known = {thread: ns for thread, ns in before.items() if ns <= self._ran_ns.get(thread, 0)}
        grown_ns = (ran_ns - known.get(thread, 0) for thread, ran_ns in self._ran_ns.items())
        return sum(min(ns, passed_s * 1e9) for ns in grown_ns) / 1e9 / passed_s if passed_s > 0 else 0.0


def _ran_ns(thread: int) -> int | None:
    times_ns = thread_times_ns(Path("/"), os.getpid(), thread)
    return None if times_ns is None else times_ns[0]


def thread_ran_ns(ident: int) -> int | None:
    """Return for how long (ns) a thread of Python has had a CPU or waited for one; None where nobody counts.

    Args:
        ident: Its identity in this process.
    """
    native = next((thread.native_id for thread in threading.enumerate() if thread.ident == ident), None)
    times_ns = None if native is None else thread_times_ns(Path("/"), os.getpid(), native)
    return None if times_ns is None else sum(times_ns)
