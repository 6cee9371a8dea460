"""Memory that this rank's processes hold themselves: several times a second at first, so that a short run shows a leak.

The sampler asks once a second, which makes a trend of ten samples in ten seconds. A thread of its own reads five times
as often at first and ever less so, and ends when it would read no more often than the sampler asks. A reading takes
30 µs a process.

What is counted is anonymous and shared memory. Pages of files are resident, too, but the kernel takes them back.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ..machine.heap import free_in_heap
from ..machine.processes import held_memory
from ..records import MemorySample

FAST_S = 0.2
"""Time between two readings at first: 40 of them in 8 s."""

THINNING = 0.01
"""Later the time between two readings is this part of the time since the first, up to that of the sampler."""

FREE_SHARE = 0.002
"""While the allocator counts its gaps, threads that ask it for memory may wait: this share of the time at most."""

WAITING = 4096
"""Readings that are kept between two samples; the oldest go first."""


class MemorySource:
    """The source of `MemorySample`; returns nothing where the kernel does not tell files from the rest.

    Args:
        pids: Returns this rank's own processes, the one that trains first; replaced whole, not changed.
        steps: Returns how many steps have begun.
        interval_s: How often `sample` is called.
        read: Returns anonymous and shared memory of a process, bytes; None when it cannot be read.
        free: Returns what this process has freed and its allocator keeps, bytes; None when it cannot be read.
        clock: Monotonic seconds.
        cpu: CPU seconds of the calling thread.
    """

    name = "memory"
    overflows = False

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        steps: Callable[[], int] = lambda: 0,
        *,
        interval_s: float = 1.0,
        read: Callable[[int], tuple[int, int] | None] = held_memory,
        free: Callable[[], int | None] = free_in_heap,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pids = pids
        self._steps = steps
        self._interval_s = interval_s
        self._read = read
        self._free = free
        self._clock = clock
        self._cpu = cpu
        self._began_s = clock()
        self._free_due_s = self._began_s
        self._first: dict[int, int] = {}
        """What each child process held when it was first seen."""
        # Appended by the thread, taken off by the sampler's: both are atomic.
        self._taken: deque[MemorySample] = deque(maxlen=WAITING)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def sample(self, time_s: float) -> Sequence[MemorySample]:
        """Return the readings since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        if self._thread is None:
            if self.take(time_s) is None:
                return ()
            thread = threading.Thread(target=self._follow, name="stallmeter-memory", daemon=True)
            thread.start()
            self._thread = (
                thread  # the run may end meanwhile, in another thread, and only what was started can be joined
            )
        elif not self._thread.is_alive():
            self.take(time_s)
        found = []
        while self._taken:
            found.append(self._taken.popleft())
        return found

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(FAST_S)

    def take(self, time_s: float) -> MemorySample | None:
        """Read once and keep it for the next sample; None where nothing can be read.

        Args:
            time_s: Unix time.
        """
        pids = self._pids()
        main = self._read(pids[0]) if pids else None
        if main is None:
            return None
        held = {pid: size[0] for pid in pids[1:] if (size := self._read(pid)) is not None}
        self._first = {pid: self._first.get(pid, size) for pid, size in held.items()}
        found = MemorySample(
            time_s=time_s,
            main_bytes=main[0],
            main_shared_bytes=main[1],
            main_free_bytes=self._freed(pids[0]),
            workers=len(held),
            workers_bytes=sum(held.values()),
            workers_grown_bytes=sum(max(0, size - self._first[pid]) for pid, size in held.items()),
            step=self._steps(),
        )
        self._taken.append(found)
        return found

    def _freed(self, pid: int) -> int | None:
        """Ask this process's allocator, where it is the one that trains and the last answer has been paid for."""
        now_s = self._clock()
        if pid != os.getpid() or now_s < self._free_due_s:
            return None
        # In CPU time: the wait for the interpreter's lock afterwards holds up nobody.
        began_s = self._cpu()
        found = self._free()
        spent_s = self._cpu() - began_s
        self._free_due_s = now_s + max(spent_s / FREE_SHARE, THINNING * (now_s - self._began_s))
        return found

    def _follow(self) -> None:
        began_s = self._clock()
        while not self._ended.wait(self._pause_s(self._clock() - began_s)):
            if self._pause_s(self._clock() - began_s) >= self._interval_s or self.take(time.time()) is None:
                return

    def _pause_s(self, elapsed_s: float) -> float:
        """Return how long to wait for the next reading."""
        return min(self._interval_s, max(FAST_S, THINNING * elapsed_s))
