"""How full the memory of this rank's GPUs is, and whether ever more of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from ..records import AllocatorSample
from .gpus import GpuHistory
from .memo import Memo
from .trends import Trend, trend, trend_of


@dataclass(frozen=True, slots=True)
class Memory:
    """How full a GPU's memory was at most."""

    index: int
    used_bytes: int
    """By everybody, and by PyTorch's cache."""
    needed_bytes: int
    """The same without what PyTorch only kept cached at its peak; equal where the allocator was not measured."""
    total_bytes: int
    allocator: AllocatorSample | None

    @property
    def needed_pct(self) -> float:
        """Needed share of the memory."""
        return 100.0 * self.needed_bytes / self.total_bytes

    @property
    def retries(self) -> int:
        """Allocations that only succeeded after PyTorch had emptied its cache, and those that failed altogether."""
        known = self.allocator
        return 0 if known is None else (known.alloc_retries or 0) + (known.ooms or 0)


class GpuMemorySignals:
    """Signals of GPU memory.

    Args:
        gpus: What is known of every visible GPU.
    """

    def __init__(self, gpus: GpuHistory) -> None:
        self.memo = Memo(gpus.memo)
        self._gpus = gpus

    @property
    def peak(self) -> Memory | None:
        """Highest use of memory of this rank's GPU, the one that was filled most; None when none tells."""
        return self.memo("peak", self._find_peak)

    def _find_peak(self) -> Memory | None:
        known = ((index, self._total_bytes(index)) for index in self._gpus.own)
        found = [
            memory(index, peak, int(total), self._gpus.allocators.get(index))
            for index, total in known
            if total and (peak := self._gpus.memory_peak_bytes.get(index)) is not None
        ]
        return max(found, key=lambda m: m.needed_pct, default=None)

    @property
    def trends(self) -> Mapping[int, Trend] | None:
        """Trend of the memory in use, bytes, of each GPU of this rank; None with too few samples."""
        trends = {index: self.trend(index, "memory_used_bytes") for index in self._gpus.own}
        return {index: known for index, known in trends.items() if known is not None} or None

    def trend(self, index: int, name: str) -> Trend | None:
        """Trend of a field of `GpuSample` since the first steps, in its unit; None with too few samples."""
        return self.memo(f"trend {index} {name}", lambda: self._find_trend(index, name))

    def _find_trend(self, index: int, name: str) -> Trend | None:
        return trend_of(self._gpus.at_work(index), attrgetter(name))

    def tensor_trend(self, index: int) -> Trend | None:
        """Trend of what PyTorch's tensors hold of a GPU since the first steps, bytes, without what is kept cached."""
        return self.memo(f"tensors {index}", lambda: trend(self._gpus.allocated_at_work(index)))

    def left_bytes(self, index: int) -> float | None:
        """Memory that nobody uses on a GPU, as last seen."""
        used = self._gpus.newest(index, lambda s: s.memory_used_bytes)
        total = self._total_bytes(index)
        return None if used is None or total is None else max(0.0, total - used)

    def _total_bytes(self, index: int) -> float | None:
        return self._gpus.newest(index, lambda s: s.memory_total_bytes)


def memory(index: int, used_bytes: int, total_bytes: int, allocator: AllocatorSample | None) -> Memory:
    """Tell what is needed of the highest use of memory.

    Args:
        index: Of the GPU.
        used_bytes: At most, of all samples.
        total_bytes: Of the GPU.
        allocator: PyTorch's, with its peaks over the whole run; None when it was not measured.
    """
    cached = 0
    if allocator is not None:
        reserved, allocated = allocator.reserved_peak_bytes, allocator.allocated_peak_bytes
        if reserved is not None and allocated is not None:
            cached = max(0, reserved - allocated)
            used_bytes = max(used_bytes, min(reserved, total_bytes))  # a peak between two samples
    return Memory(
        index=index,
        used_bytes=used_bytes,
        needed_bytes=max(0, used_bytes - cached),
        total_bytes=total_bytes,
        allocator=allocator,
    )
