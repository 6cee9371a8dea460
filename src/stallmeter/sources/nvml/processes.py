"""Which of the processes on a GPU belong to this job."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_DEPTH = 64
"""Most ancestors that are looked at: a process tree has no loops, but it may change while it is read."""


def job_memory(processes: Iterable[Any]) -> int | None:
    """Return the device memory of this process and its children, in bytes.

    None when NVML names none of them or gives no numbers: in a container of its own PID namespace drivers name the
    processes by their number on the host, or by ours but without their memory.

    Args:
        processes: With `pid` and `usedGpuMemory`, as NVML lists them.
    """
    ours = sum(p.usedGpuMemory or 0 for p in processes if is_ours(p.pid))
    return int(ours) or None


def is_ours(pid: int, proc: Path = _PROC) -> bool:
    """Tell whether a process is this one or descends from it.

    Args:
        pid: The process.
        proc: Where the kernel lists processes.
    """
    own = os.getpid()
    for _ in range(_DEPTH):
        if pid == own:
            return True
        pid = _parent(pid, proc)
        if pid <= 1:
            return False
    return False


def _parent(pid: int, proc: Path) -> int:
    """Return the parent's number; 0 when there is no such process or the system does not say."""
    try:
        # The name in parentheses may hold spaces and parentheses of its own.
        fields = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, IndexError, ValueError):
        return 0
