"""The CPUs that runs are pinned to, and what other processes take of them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

QUIET_CPUS = 0.3
"""A machine on which others use less is quiet."""

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(cpus: Sequence[int], patience_s: float) -> None:
    """Wait until the CPUs are free, as long as the patience lasts."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        before, started = busy_s(cpus), time.monotonic()
        time.sleep(0.25)
        if (busy_s(cpus) - before) / (time.monotonic() - started) < QUIET_CPUS:
            return


def busy_s(cpus: Sequence[int], text: str | None = None) -> float:
    """Return the seconds that these CPUs have been busy; 0 where the system does not say."""
    if text is None:
        try:
            text = Path("/proc/stat").read_text()
        except OSError:
            return 0.0
    wanted = {f"cpu{c}" for c in cpus}
    ticks = 0
    for line in text.splitlines():
        name, *values = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, values[:7])
            ticks += user + nice + system + irq + softirq
    return ticks * _TICK_S


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process that runs; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def usable_cpus(count: int) -> tuple[int, ...]:
    """Return the CPUs to pin a run to."""
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return tuple(known[:count])
