"""The samples of all GPUs that a rank may see, and which of these GPUs are its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..records import AllocatorSample, GpuSample
from ..records.stats import Reservoir
from .facts import Facts
from .gpu_samples import newest
from .memo import Memo
from .steps import StepSignals

STRAY = 0.1
"""A GPU on which a rank holds less than this part of what it holds elsewhere is none that it uses: often a small tensor
or a bare context lies on the first one by accident."""


class GpuHistory:
    """What is known of every visible GPU, by its position among them.

    Args:
        facts: Tell how many ranks share the node.
        steps: Tell when training began.
        size: Most samples kept of each GPU.
    """

    def __init__(self, facts: Facts, steps: StepSignals, *, size: int = 1024) -> None:
        self.memo = Memo(steps.memo)
        self.samples: dict[int, Reservoir[GpuSample]] = {}
        self.allocators: dict[int, AllocatorSample] = {}
        """The newest sample of PyTorch's allocator on each; peaks and counts in it are of the whole run."""
        self.allocated: dict[int, Reservoir[tuple[float, float]]] = {}
        """Unix times and bytes in PyTorch's tensors on each."""
        self.memory_peak_bytes: dict[int, int] = {}
        """Highest use of each GPU's memory, of all samples: of those that are kept a peak may be missing."""
        self._facts, self._steps, self._size = facts, steps, size

    def append(self, record: GpuSample | AllocatorSample) -> None:
        """Take a sample of a GPU or of the allocator on it."""
        self.memo.changes += 1
        if isinstance(record, AllocatorSample):
            self.allocators[record.index] = record
            if record.allocated_bytes is not None:
                series = self.allocated.setdefault(record.index, Reservoir(self._size))
                series.add((record.time_s, record.allocated_bytes))
            return
        if record.index not in self.samples:
            self.samples[record.index] = Reservoir(self._size)
        self.samples[record.index].add(record)
        used = record.memory_used_bytes
        if used is not None:
            self.memory_peak_bytes[record.index] = max(used, self.memory_peak_bytes.get(record.index, 0))

    @property
    def own(self) -> Sequence[int]:
        """Positions, among the visible GPUs, of those that this rank uses: all where it is alone and nothing tells.

        The allocator of this process knows best, then NVML's list of processes, then the number of the rank on its
        node. Where several ranks see GPUs and none of these tells, there is none.
        """
        return self.memo("own", self._find_own)

    def _find_own(self) -> Sequence[int]:
        visible, budget = sorted(self.samples), self._facts.budget
        allocated = {index: a.reserved_peak_bytes for index, a in self.allocators.items() if index in self.samples}
        named = {index: self.newest(index, lambda s: s.job_memory_bytes) for index in visible}
        if found := _in_use(allocated) or _in_use(named):
            return found
        if budget is None or budget.ranks_on_node == 1 or len(visible) == 1:
            return visible
        return [budget.local_rank] if budget.ranks_on_node <= len(visible) and budget.local_rank in visible else []

    def newest(self, index: int, of: Callable[[GpuSample], float | None]) -> float | None:
        """The newest value of something that is sampled rarely; None when it never was."""
        return newest(self.samples[index].items, of)

    def allocated_at_work(self, index: int) -> Sequence[tuple[float, float]]:
        """Unix times and bytes in PyTorch's tensors on a GPU since the first steps; empty where that is not known."""
        begun_s, series = self._steps.begun_s, self.allocated.get(index)
        return [] if series is None else [point for point in series.items if point[0] >= begun_s]

    def at_work(self, index: int) -> Sequence[GpuSample]:
        """Samples of a GPU since the first steps."""
        begun_s = self._steps.begun_s
        return [s for s in self.samples[index].items if s.time_s >= begun_s]


def _in_use(held_bytes: Mapping[int, float | None]) -> list[int]:
    """Return the GPUs that a process uses, in order, from what it holds on each."""
    most = max((held for held in held_bytes.values() if held), default=0.0)
    return sorted(index for index, held in held_bytes.items() if held and held >= STRAY * most)
