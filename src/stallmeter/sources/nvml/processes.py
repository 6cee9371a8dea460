"""Which of the memory on a GPU belongs to this rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...machine.processes import is_own


def job_memory(processes: Iterable[Any]) -> int | None:
    """Return the device memory of this process and its children, other ranks left out, in bytes.

    None when NVML names none of them or gives no numbers: in a container of its own PID namespace drivers name the
    processes by their number on the host, or by ours but without their memory.

    Args:
        processes: With `pid` and `usedGpuMemory`, as NVML lists them.
    """
    ours = sum(p.usedGpuMemory or 0 for p in processes if is_own(p.pid))
    return int(ours) or None
