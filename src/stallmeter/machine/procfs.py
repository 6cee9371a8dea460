"""What the kernel says in files, where psutil does not read them. None or nothing where there is no such file.

Workers read their own thread's here around each batch, without psutil: importing it takes 26 ms in each spawned worker.
Whatever is read of another process is read in `processes`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import time
from os import pread
from pathlib import Path

from .opened import OPEN

RUN_QUEUE = "proc/thread-self/schedstat"
"""The calling thread's time on a CPU, its wait for one (both ns) and its number of time slices."""

FIRST_FIELD = 3
"""Number of the first of `process_fields`, counted from 1 as in proc_pid_stat(5)."""

_START = 22
"""Field of a process's start, clock ticks after the boot."""

_FIELD_BYTES = 64
"""More than the three numbers of a schedstat file take."""


def read_text(path: Path | None) -> str:
    """Return a small file of the kernel; empty without one, and where it cannot be read.

    Bytes that are no UTF-8 come back as they were when the text names a path again.
    """
    if path is None:
        return ""
    try:
        with OPEN(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def read_numbers(path: Path, pattern: str) -> dict[str, int]:
    """Return what a regular expression with two groups, a name and a number, finds in the lines of a file."""
    return {key: int(value) for key, value in re.findall(pattern, read_text(path), re.MULTILINE)}


@functools.cache
def process_space(root: Path = Path("/")) -> str:
    """Return what names the processes among which a number stands for one; empty where the system does not tell.

    It is another one after each start of the machine, and in each container.
    """
    try:
        space = (root / "proc/self/ns/pid").readlink()
    except OSError:
        return ""
    boot = read_text(root / "proc/sys/kernel/random/boot_id").strip()
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:16] if boot else ""


def process_fields(root: Path, process: int | str) -> list[str]:
    """Return the fields of a process's ``stat`` from its state on; empty where that cannot be read.

    Args:
        root: Where the kernel's files are.
        process: Its number, or ``self``.
    """
    # The name before them, in brackets, may hold anything.
    return read_text(root / f"proc/{process}/stat").rpartition(")")[2].split()


def process_age_s(root: Path = Path("/")) -> float | None:
    """Return for how long this process has run, seconds; None where the system does not tell.

    Both ends are times since the boot: a clock that is set meanwhile, or a container's own uptime, changes neither.
    """
    try:
        began_s = int(process_fields(root, "self")[_START - FIRST_FIELD]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
    except (AttributeError, IndexError, OSError, ValueError):
        return None


def counts_run_queue(schedstat: str) -> bool:
    """Whether a thread's scheduler statistics are any: a kernel booted without them prints three zeros."""
    words = schedstat.split()
    return len(words) == 3 and words != ["0", "0", "0"]  # a running thread has had a time slice


def thread_times_ns(root: Path, pid: int, thread: int) -> tuple[int, int] | None:
    """Return how long a thread has been on a CPU and how long it has waited for one, ns; None where nobody counts."""
    known = thread_schedule(root, pid, thread)
    return None if known is None else known[:2]


def thread_schedule(root: Path, pid: int, thread: int) -> tuple[int, int, int] | None:
    """Return a thread's time on a CPU and its wait for one, ns, and how often it got one; None where nobody counts."""
    text = read_text(root / f"proc/{pid}/task/{thread}/schedstat")
    if not counts_run_queue(text):
        return None
    ran, waited, times = text.split()
    return int(ran), int(waited), int(times)


def open_run_queue() -> int | None:
    """Open the scheduler statistics of the calling thread.

    Returns:
        A file descriptor that names this thread for good, whoever reads it; None where the kernel keeps no such file.
    """
    try:
        fd = os.open(f"/{RUN_QUEUE}", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    if not counts_run_queue(read_run_queue(fd).decode(errors="replace")):
        os.close(fd)
        return None
    return fd


def read_run_queue(fd: int) -> bytes:
    """Read the statistics raw, for `run_queue_ns`; empty when the descriptor was closed by somebody else."""
    try:
        return pread(fd, _FIELD_BYTES, 0)
    except OSError:
        return b""


def run_queue_ns(before: bytes, after: bytes) -> int | None:
    """Return the time (ns) a thread waited for a CPU between two readings; None when they are no such readings."""
    try:
        waited = int(after.split()[1]) - int(before.split()[1])
    except (IndexError, ValueError):
        return None
    return waited if waited >= 0 else None


if sys.platform == "linux":
    from resource import RUSAGE_SELF, getrusage

    COUNTS_READS = Path("/proc/self/io").exists()
    """Whether the kernel accounts for I/O at all; where it does not, its counters stay 0."""

    # getrusage sees memory-mapped reads too, and counts what came from a device in units of 512 bytes whatever the
    # block size; /proc/self/io costs five times as much.
    def process_read_bytes() -> int:
        """Bytes that this process has read from block devices."""
        return getrusage(RUSAGE_SELF).ru_inblock * 512

else:
    COUNTS_READS = False

    def process_read_bytes() -> int:
        """Nothing that means the same elsewhere."""
        return 0
