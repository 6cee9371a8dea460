"""How long the training thread itself waits for a CPU, and on whose account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..records import HostSample


class _Host(Protocol):
    @property
    def job_cpus(self) -> float | None: ...
    @property
    def others_cpus(self) -> float | None: ...
    @property
    def cpus_per_rank(self) -> float | None: ...
    def median(self, of: Callable[[HostSample], float | None]) -> float | None: ...


class LoopCpuSignals:
    """Signals of the training thread and the CPUs.

    Args:
        host: Its samples.
    """

    def __init__(self, host: _Host) -> None:
        self._host = host

    @property
    def wait_pct(self) -> float | None:
        """Share of the time in which the training thread could run and had no CPU, percent, median over the run."""
        return self._host.median(lambda s: s.loop_cpu_wait_pct)

    @property
    def neighbour_wait_pct(self) -> float | None:
        """Of that what other jobs cause.

        All of it where the job alone leaves half of the CPUs free, else their part of what runs beside the thread.
        """
        waits_pct, job, usable = self.wait_pct, self._host.job_cpus, self._host.cpus_per_rank
        others, main = self._host.others_cpus, self._host.median(lambda s: s.main_cpus)
        if waits_pct is None or job is None or others is None or main is None or not usable:
            return None
        if job <= usable / 2.0:
            return waits_pct if others > 0 else 0.0
        beside = others + max(0.0, job - main)
        return waits_pct * others / beside if beside > 0 else 0.0
