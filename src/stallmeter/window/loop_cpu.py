"""How long the training thread itself waits for a CPU, and on whose account."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from ..records import HostSample
from ..records.stats import Reservoir

HOLDS_CPUS, WAITS_PCT = 0.25, 20.0
"""CPUs that other jobs keep busy, and percent of its time that the training thread waits for one, in a sample in which
they hold it up; our choice. Seen beside a job on one of two CPUs: 0.6 to 1.0, and 26 to 51 %, beside 2 % else."""

LONGEST_S = 2.5
"""Before a sample it is told for so long, where those before it were not kept."""


class _Host(Protocol):
    @property
    def samples(self) -> Reservoir[HostSample]: ...
    @property
    def job_cpus(self) -> float | None: ...
    @property
    def others_cpus(self) -> float | None: ...
    @property
    def cpus_per_rank(self) -> float | None: ...
    @property
    def usable_cpus(self) -> float | None: ...
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
    def runs_share(self) -> float | None:
        """Share (0 to 1) of the time in which the training thread runs on a CPU, median over the run."""
        runs_pct = self._host.median(lambda s: s.loop_cpu_pct)
        return None if runs_pct is None else runs_pct / 100.0

    @property
    def blocked_share(self) -> float | None:
        """Share (0 to 1) of the time in which the training thread could not run, but for want of a CPU; median."""
        runs = self.runs_share
        return None if runs is None else max(0.0, 1.0 - runs - (self.wait_pct or 0.0) / 100.0)

    @property
    def neighbour_wait_pct(self) -> float | None:
        """Of that what other jobs cause: the part of the chance that all CPUs are taken which is gone without them.

        What runs beside the thread is taken to come and go independently, so that its number at a moment is Poisson's.
        A job that leaves CPUs free hardly makes its own thread wait; one that fills them does, whoever else is there.
        """
        own, others = self.beside_cpus, self._host.others_cpus
        if own is None or others is None:
            return None
        return self.wait_without_pct(others, own + (self.threads_cpus or 0.0))

    @property
    def held_up(self) -> tuple[tuple[float, float], ...] | None:
        """When other jobs held CPUs and the training thread waited for one: begin and end, Unix times, seconds.

        None where neither was measured.
        """
        if self.wait_pct is None or self._host.others_cpus is None:
            return None
        found, before_s = [], -math.inf
        for sample in self._host.samples.items:
            others, waits_pct = sample.others_cpus or 0.0, sample.loop_cpu_wait_pct or 0.0
            if others >= HOLDS_CPUS and waits_pct >= WAITS_PCT:
                found.append((max(before_s, sample.time_s - LONGEST_S), sample.time_s))
            before_s = sample.time_s
        return tuple(found)

    @property
    def beside_cpus(self) -> float | None:
        """CPUs that the job's processes keep busy beside the one that trains: workers, and what else it has started."""
        job, main = self._host.job_cpus, self._host.median(lambda s: s.main_cpus)
        return None if job is None or main is None else max(0.0, job - main)

    @property
    def threads_cpus(self) -> float | None:
        """CPUs that other threads of the program keep busy in the process that trains, median over the run."""
        return self._host.median(lambda s: s.threads_cpus)

    @property
    def threads_wait_pct(self) -> float | None:
        """Share of the time in which the training thread could run and had no CPU because of such threads, percent.

        None of it where CPUs are idle all the while: threads that pass Python's lock to each other are woken on the CPU
        of the one that let go of it, and wait there for a moment beside idle ones. What they wait for is the lock.
        """
        threads, others, usable = self.threads_cpus, self._host.others_cpus, self._host.cpus_per_rank
        if threads is None:
            return None
        job = self._host.job_cpus
        if job is not None and usable and job + (others or 0.0) < TAKEN * usable:
            return 0.0
        return self.wait_without_pct(threads, (self.beside_cpus or 0.0) + (others or 0.0))

    @property
    def workers_wait_pct(self) -> float | None:
        """Share of the time in which the training thread could run and had no CPU because of the job's own processes.

        Other ranks on the host, which share its CPUs, are none of them.
        """
        own, ranks = self.beside_cpus, self._host.median(lambda s: s.ranks_cpus) or 0.0
        if own is None:
            return None
        rest = ranks + (self.threads_cpus or 0.0) + (self._host.others_cpus or 0.0)
        return self.wait_without_pct(own, rest, usable=self._host.usable_cpus)

    @property
    def team(self) -> float | None:
        """Threads that compute the loop's operations at a time, the training thread among them: 1 or more."""
        main, runs = self._host.median(lambda s: s.main_cpus), self.runs_share
        return max(1.0, (main - (self.threads_cpus or 0.0)) / runs) if main and runs else None

    def wait_without_pct(self, cpus: float, rest: float, usable: float | None = None) -> float | None:
        """Return how much less of the time the training thread would wait for a CPU, percent, if some were free.

        Args:
            cpus: That would be free.
            rest: That others would keep busy all the same.
            usable: CPUs that all of them share; by default what the job has for each rank.
        """
        waits_pct, usable = self.wait_pct, usable or self._host.cpus_per_rank
        if waits_pct is None or not usable:
            return None
        taken = chance_of_at_least(max(1, round(usable)), cpus + rest)
        return 0.0 if taken <= 0.0 else waits_pct * (1.0 - chance_of_at_least(max(1, round(usable)), rest) / taken)


TAKEN = 0.7
"""Part of the CPUs that is busy where a thread waits for one; our choice. Seen: 0.8 and 0.96 where threads take the
steps' CPUs, 0.6 where they take Python's lock."""

SURELY = 100.0
"""Beyond twice the count and so many the chance of fewer is below 1e-10, and the terms of the sum become too small."""

MANY = 10_000
"""From this count on the number is taken to be normal, to a hundredth: the sum would have as many terms, and in the
logarithm of the first one no digit would be left."""


def chance_of_at_least(count: int, mean: float) -> float:
    """Return the chance that a Poisson number of this mean is ``count`` or more."""
    if mean <= 0.0:
        return 0.0
    if mean > 2.0 * count + SURELY:
        return 1.0
    if count >= MANY:
        return math.erfc((count - 0.5 - mean) / math.sqrt(2.0 * mean)) / 2.0
    # From the k-th term on, so that a small chance is no difference of two numbers near 1.
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    total, k = 0.0, count
    while term > 0.0 and (k <= mean or term > 1e-12 * total):
        total += term
        k += 1
        term *= mean / k
    return min(1.0, total)
