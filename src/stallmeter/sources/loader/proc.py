"""What the kernel says about one thread or process. None wherever it does not say."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from os import pread
from pathlib import Path

_FIELD_BYTES = 64
"""More than the three numbers of a schedstat file take."""


def open_run_queue() -> int | None:
    """Open the scheduler statistics of the calling thread.

    Returns:
        A file descriptor that names this thread for good, whoever reads it; None where the kernel keeps no such file.
    """
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    # A kernel booted without scheduler statistics prints three zeros; a running thread has had a time slice.
    if pread(fd, _FIELD_BYTES, 0).split() == [b"0", b"0", b"0"]:
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


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A running process. The pid alone does not name one: the kernel uses it again."""

    start_ticks: int
    """When it started, in clock ticks since boot."""
    rss_bytes: int


def process_stat(pid: int) -> ProcessStat | None:
    """Read a process's start and resident size; None when it is gone, a zombie, or there is no procfs."""
    try:
        # The name in parentheses may hold spaces and parentheses itself.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] == b"Z":
            return None
        return ProcessStat(int(fields[19]), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, IndexError, ValueError):
        return None


def unique_bytes(pid: int) -> int | None:
    """Sum the memory that no other process shares. The kernel walks every page for it: milliseconds per GB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
        private = [int(line.split()[1]) for line in lines if line.startswith(b"Private_")]
    except (OSError, IndexError, ValueError):
        return None
    return sum(private) * 1024 if private else None
