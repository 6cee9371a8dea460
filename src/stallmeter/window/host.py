"""How busy the host is, its memory and its network, from the samples of the whole run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from ..machine.budget import Budget
from ..records import GarbagePauses, HostSample, MemorySample
from ..records.stats import Reservoir
from . import network
from .facts import Facts
from .garbage import GarbageSignals
from .host_files import OpenFileSignals
from .host_memory import HostMemorySignals
from .loop_cpu import LoopCpuSignals
from .memo import Memo
from .steps import StepSignals


class HostSignals:
    """Signals of the host and of this rank's processes on it.

    Args:
        facts: Tell who else is on the host.
        steps: Tell when training began.
        size: Most samples kept.
    """

    def __init__(self, facts: Facts, steps: StepSignals, *, size: int = 1024) -> None:
        self.memo = Memo(steps.memo)
        self.samples: Reservoir[HostSample] = Reservoir(size)
        self._facts = facts
        self.memory = HostMemorySignals(self.samples, steps, self.memo, size=size)
        self.files = OpenFileSignals(self.samples, steps, self.memo)
        self.garbage = GarbageSignals()
        self.loop = LoopCpuSignals(self)

    def append(self, sample: HostSample | MemorySample | GarbagePauses) -> None:
        """Take a sample."""
        self.memo.changes += 1
        if isinstance(sample, GarbagePauses):
            self.garbage.append(sample)
            return
        self.memory.append(sample)
        if isinstance(sample, MemorySample):
            return
        self.samples.add(sample)

    def median(self, of: Callable[[HostSample], float | None]) -> float | None:
        """Median of something over the run; None when it was never measured."""
        values = [v for s in self.samples.items if (v := of(s)) is not None]
        return statistics.median(values) if values else None

    # -- CPUs ----------------------------------------------------------------------------------------------------------

    @property
    def usable_cpus(self) -> float | None:
        """CPUs that the job may use."""
        return self.median(lambda s: s.usable_cpus)

    @property
    def cpus_per_rank(self) -> float | None:
        """CPUs that this rank may use: its part of those that the job may use, where several ranks share a node."""
        budget = self._facts.budget
        if budget is None or budget.ranks_on_node == 1:
            return self.usable_cpus
        return budget.cpus_per_rank

    @property
    def job_cpus(self) -> float | None:
        """CPUs that this rank's own processes keep busy, workers included."""
        return self.median(lambda s: s.job_cpus)

    @property
    def others_cpus(self) -> float | None:
        """CPUs that processes outside the job keep busy and it could use; None where other ranks may be among them."""
        budget = self._facts.budget
        shared = budget is not None and budget.ranks_on_node > 1 and not budget.bound_per_rank
        others = self.median(lambda s: None if shared and s.ranks_cpus is None else s.others_cpus)
        return others if others is None or budget is None else budget.in_the_way(others)

    @property
    def cpu_busy_pct(self) -> float | None:
        """Share of the usable CPUs that this rank, other ranks and others keep busy, median over the run."""
        return self.median(lambda s: _cpu_busy_pct(s, self._facts.budget))

    @property
    def cpu_throttled_pct(self) -> float | None:
        """Share of the quota's periods in which the job was throttled, percent."""
        return self.median(lambda s: s.cpu_throttled_pct)

    @property
    def iowait_pct(self) -> float | None:
        """Share of the host's CPU time idle while something waits for storage, median over the run."""
        return self.median(lambda s: s.cpu_iowait_pct)

    # -- memory and network --------------------------------------------------------------------------------------------

    @property
    def links(self) -> Mapping[str, network.Link] | None:
        """Traffic of each network interface over the run; None when there is none."""
        return self.memo("links", lambda: network.links(self.samples.items)) or None


def _cpu_busy_pct(sample: HostSample, budget: Budget | None) -> float | None:
    if sample.job_cpus is None or sample.others_cpus is None or not sample.usable_cpus:
        return None
    others = sample.others_cpus if budget is None else budget.in_the_way(sample.others_cpus)
    busy = sample.job_cpus + (sample.ranks_cpus or 0.0) + others
    return min(100.0, 100.0 * busy / sample.usable_cpus)
