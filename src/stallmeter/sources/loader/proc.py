"""What the kernel says about the calling thread and process, read in workers around each batch. None where it does not.

psutil knows no run queue. What it knows is read without it here: importing it takes 26 ms in each spawned worker.
"""

from __future__ import annotations

import os
import sys
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
