"""Fetches of a loader without workers, timed in the thread that runs the loop."""

from __future__ import annotations

from collections import deque
from os import close, getpid
from threading import get_ident
from time import monotonic_ns, process_time_ns, thread_time_ns

from ...machine.procfs import open_run_queue, read_run_queue, run_queue_ns
from .device_use import DeviceUse
from .ring import UNKNOWN, Fetch, Usual
from .worker import RECENT

CAPACITY = 8192
"""Batches kept until they are read."""

_Raw = tuple[int, int, int, int, bytes, bytes]
"""End, wall, CPU of the thread and of the process, run queue before and after."""


class LoopTimer:
    """Takes readings on the training thread; whoever drains does the arithmetic."""

    __slots__ = (
        "_cpu",
        "_fd",
        "_pid",
        "_process_cpu",
        "_queued",
        "_raw",
        "_recent",
        "_thread",
        "_wall",
        "beside",
        "device",
        "lost",
        "made",
    )

    def __init__(self) -> None:
        self._raw: deque[_Raw] = deque(maxlen=CAPACITY)
        self._recent: deque[_Raw] = deque(maxlen=RECENT)
        self._pid = self._thread = 0
        self._fd: int | None = None
        self._queued = b""
        self._cpu = self._process_cpu = self._wall = 0
        self.made = self.beside = 0
        """Batches that were timed, and those of them that come beside the ones that make the steps."""
        self.device = DeviceUse()
        self.lost = 0
        """Batches dropped because nobody drained in time."""

    def before(self) -> None:
        """The loop asks for a batch."""
        if get_ident() != self._thread or getpid() != self._pid:
            # The descriptor names the thread that opened it: after a fork that is a thread of the parent.
            self._open()
        if self.device.used is None:
            self.device.before()
        # The wall clock is read outside the others, so that no part is ever longer than the whole.
        self._wall = monotonic_ns()
        if self._fd is not None:
            self._queued = read_run_queue(self._fd)
        self._process_cpu = process_time_ns()
        self._cpu = thread_time_ns()

    def after(self, *, beside: bool = False) -> None:
        """The loop got it. Ignored without a call of `before`, so that the end of a loader needs no care.

        Args:
            beside: It is no batch that makes a step, but one that comes with it.
        """
        if not self._wall:
            return
        cpu = thread_time_ns() - self._cpu
        process_cpu = process_time_ns() - self._process_cpu
        queued = b"" if self._fd is None else read_run_queue(self._fd)
        end = monotonic_ns()
        # A deque is the queue between the threads: its ends are safe without a lock, and a full one drops the oldest by
        # itself. Between the two lines the other thread may take some: then one is counted as lost that was not.
        self.made += 1
        self.beside += beside
        raw = self._raw
        if len(raw) == CAPACITY:
            self.lost += 1
        made = end, end - self._wall, cpu, process_cpu, self._queued, queued
        raw.append(made)
        self._recent.append(made)
        self._wall = 0
        if self.device.used is None:
            self.device.after()

    def recent(self) -> list[Usual]:
        """Return the newest batches that nobody looked into. For the thread that makes them."""
        return [Usual(wall, cpu, run_queue_ns(before, after)) for _, wall, cpu, _, before, after in self._recent]

    def pass_over(self) -> None:
        """The batch that is being made leaves no record."""
        self._wall = 0

    def drain(self) -> list[Fetch]:
        """Return the batches since the last call. May be called by another thread."""
        fetches = []
        while self._raw:  # only this side takes off: what was seen is there
            end, wall, cpu, process_cpu, before, after = self._raw.popleft()
            queued = run_queue_ns(before, after)
            fetches.append(
                Fetch(
                    end_ns=end,
                    wall_ns=wall,
                    cpu_ns=cpu,
                    process_cpu_ns=process_cpu,
                    run_queue_ns=UNKNOWN if queued is None else queued,
                    collate_ns=UNKNOWN,
                    read_bytes=UNKNOWN,
                    items=UNKNOWN,
                )
            )
        return fetches

    def close(self) -> None:
        """Close the descriptor; the next batch opens it again."""
        if self._fd is not None:
            close(self._fd)
        self._fd = None
        self._pid = self._thread = 0

    def _open(self) -> None:
        self.close()
        self._fd = open_run_queue()
        self._pid, self._thread = getpid(), get_ident()
