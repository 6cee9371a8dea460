"""How this rank's GPU was used while steps ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..records import AllocatorSample, GpuSample
from ..records.stats import Reservoir
from . import gpu_samples
from .facts import Facts
from .gpu_memory import GpuMemorySignals
from .gpus import GpuHistory
from .memo import Memo
from .steps import StepSignals

MIN_TRACE_SAMPLES = 5
"""Below this many samples it is not said that a GPU was never used."""


class GpuSignals:
    """Signals of this rank's GPU; of several, the one that was used most.

    Args:
        facts: Tell how many ranks share the node, and the precision that was asked for.
        steps: Tell when training began.
        size: Most samples kept of each GPU.
    """

    def __init__(self, facts: Facts, steps: StepSignals, *, size: int = 1024) -> None:
        self._facts = facts
        self._gpus = GpuHistory(facts, steps, size=size)
        self.memo = Memo(self._gpus.memo)
        self.memory = GpuMemorySignals(self._gpus)
        """Signals of the memory."""

    def append(self, record: GpuSample | AllocatorSample) -> None:
        """Take a sample of a GPU or of the allocator on it."""
        self._gpus.append(record)

    @property
    def samples(self) -> Mapping[int, Reservoir[GpuSample]]:
        """Samples of every visible GPU, by its position among them."""
        return self._gpus.samples

    @property
    def allocators(self) -> Mapping[int, AllocatorSample]:
        """The newest sample of PyTorch's allocator on each GPU; peaks and counts in it are of the whole run."""
        return self._gpus.allocators

    @property
    def count(self) -> int | None:
        """GPUs that the job may see and that can be measured."""
        return len(self._gpus.samples) or None

    @property
    def own(self) -> Sequence[int]:
        """Positions, among the visible GPUs, of those that this rank uses; none where that cannot be told."""
        return self._gpus.own

    @property
    def utilization_pct(self) -> float | None:
        """Mean utilization while steps ran, of the GPU of this rank that was used most."""
        busiest = self._busiest
        return None if busiest is None else busiest[0]

    @property
    def _busiest(self) -> tuple[float, int] | None:
        """Mean utilization and position of the GPU that was used most."""
        return self.memo("busiest", self._find_busiest)

    def _find_busiest(self) -> tuple[float, int] | None:
        means = ((self._mean(index, lambda s: s.utilization_pct), -index) for index in self.own)
        found = max(((mean, order) for mean, order in means if mean is not None), default=None)
        return None if found is None else (found[0], -found[1])

    def _mean(self, index: int, of: Callable[[GpuSample], float | None]) -> float | None:
        return gpu_samples.mean(self._gpus.at_work(index), of)

    @property
    def idleness(self) -> gpu_samples.Idleness | None:
        """Idle samples, and the longest stretch of them."""
        busiest = self._busiest
        if busiest is None:
            return None
        return self.memo("idleness", lambda: gpu_samples.idleness(self._gpus.at_work(busiest[1])))

    @property
    def throttling(self) -> gpu_samples.Throttling | None:
        """What held the clocks down, of the GPU where that happened most; None when none tells."""
        return self.memo("throttling", self._find_throttling)

    def _find_throttling(self) -> gpu_samples.Throttling | None:
        of_each = (gpu_samples.throttling(index, self._gpus.at_work(index)) for index in self.own)
        known = (t for t in of_each if t is not None)
        return max(known, key=lambda t: (t.forced_pct, t.power_pct), default=None)

    @property
    def sm_active_pct(self) -> float | None:
        """Mean share of the multiprocessors that had work; None before Hopper."""
        busiest = self._busiest
        return None if busiest is None else self._mean(busiest[1], lambda s: s.sm_active_pct)

    @property
    def tensor_cores(self) -> gpu_samples.TensorCores | None:
        """Use of the Tensor Cores; None where neither setting nor use are known."""
        busiest, full = self._busiest, self._facts.full_precision
        if busiest is None:
            return None
        capability = self._gpus.newest(busiest[1], lambda s: s.compute_capability)
        active = self._mean(busiest[1], lambda s: s.tensor_active_pct)
        if capability is None or (full is None and active is None):
            return None
        return gpu_samples.TensorCores(capability, full, active)

    @property
    def trace_pct(self) -> float | None:
        """Highest utilization or share of memory in use that this rank's GPUs ever showed; None when one is unknown."""
        samples = [s for index in self.own for s in self._gpus.samples[index].items]
        used = [v for s in samples if (v := s.utilization_pct) is not None]
        held = [
            100.0 * s.memory_used_bytes / s.memory_total_bytes
            for s in samples
            if s.memory_used_bytes is not None and s.memory_total_bytes
        ]
        return max(*used, *held) if min(len(used), len(held)) >= MIN_TRACE_SAMPLES else None
