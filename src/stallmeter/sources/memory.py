"""Memory that this rank's processes hold themselves: several times a second at first, so that a short run shows a leak.

The sampler asks once a second, which makes a trend of ten samples in ten seconds. A thread of its own reads five times
as often at first and ever less so, and ends when it would read no more often than the sampler asks. A reading takes
30 µs a process.

What is counted is anonymous and shared memory. Pages of files are resident, too, but the kernel takes them back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ..machine.processes import held_memory
from ..records import MemorySample

FAST_S = 0.2
"""Time between two readings at first: 40 of them in 8 s."""

THINNING = 0.01
"""Later the time between two readings is this part of the time since the first, up to that of the sampler."""

WAITING = 4096
"""Readings that are kept between two samples; the oldest go first."""


class MemorySource:
    """The source of `MemorySample`; returns nothing where the kernel does not tell files from the rest.

    Args:
        pids: Returns this rank's own processes, the one that trains first; replaced whole, not changed.
        steps: Returns how many steps have begun.
        interval_s: How often `sample` is called.
        read: Returns anonymous and shared memory of a process, bytes; None when it cannot be read.
        clock: Monotonic seconds.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pids = pids
        self._steps = steps
        self._interval_s = interval_s
        self._read = read
        self._clock = clock
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
            self._thread = threading.Thread(target=self._follow, name="stallmeter-memory", daemon=True)
            self._thread.start()
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
            workers=len(held),
            workers_bytes=sum(held.values()),
            workers_grown_bytes=sum(max(0, size - self._first[pid]) for pid, size in held.items()),
            step=self._steps(),
        )
        self._taken.append(found)
        return found

    def _follow(self) -> None:
        began_s = self._clock()
        while not self._ended.wait(self._pause_s(self._clock() - began_s)):
            if self._pause_s(self._clock() - began_s) >= self._interval_s or self.take(time.time()) is None:
                return

    def _pause_s(self, elapsed_s: float) -> float:
        """Return how long to wait for the next reading."""
        return min(self._interval_s, max(FAST_S, THINNING * elapsed_s))
