"""What the samples of one GPU say together: idle stretches, clocks held down, memory, how hard it really worked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..records import AllocatorSample, GpuSample
from ..records.stats import percentile

MIN_SAMPLES = 5
"""Below this many samples nothing is said."""

IDLE_PCT = 10.0
"""Utilization below which a sample counts as idle (SageMaker's LowGPUUtilization: a 5th percentile under 10 %)."""

STRAY = 0.1
"""A GPU on which a rank holds less than this part of what it holds elsewhere is none that it uses: often a small tensor
or a bare context lies on the first one by accident."""

THERMAL = frozenset(("sw_thermal", "hw_thermal"))
HARDWARE = frozenset(("hw_slowdown", "power_brake"))
"""The board's own protection; NVML sets hw_slowdown beside hw_thermal, too: then it is the heat."""
POWER = frozenset(("power_cap",))


@dataclass(frozen=True, slots=True)
class Idleness:
    """When a GPU had nothing to do while steps ran."""

    share_pct: float
    """Of the samples that were idle."""
    longest_s: float
    """Longest stretch of idle samples in a row."""
    p95_pct: float
    """Utilization that 5 % of the samples exceed; see `stallmeter.records.stats.percentile`."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """How often something held a GPU's clocks down while steps ran, as shares of the samples."""

    index: int
    thermal_pct: float
    hardware_pct: float
    power_pct: float
    """The power limit alone, without heat or hardware."""
    slowed_pct: float | None
    """By how much the SM clock was lower under heat or hardware than without; None when one of them was not seen."""
    temperature_c: float | None
    """Highest temperature."""
    temperature_limit_c: float | None
    """Temperature at which the driver slows the clocks down."""

    @property
    def forced_pct(self) -> float:
        """Share of the samples slowed by heat or hardware: what the power limit is not."""
        return self.thermal_pct + self.hardware_pct


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


@dataclass(frozen=True, slots=True)
class TensorCores:
    """What is known about the use of Tensor Cores."""

    capability: float
    """CUDA compute capability."""
    full_precision: bool | None
    """Whether the Trainer was told to compute in 32 bits or more; None when that is not known."""
    active_pct: float | None
    """Share of the time in which they worked; None where there is no GPM."""


def in_use(held_bytes: Mapping[int, float | None]) -> list[int]:
    """Return the GPUs that a process uses, in order.

    Args:
        held_bytes: What it holds on each.
    """
    most = max((held for held in held_bytes.values() if held), default=0.0)
    return sorted(index for index, held in held_bytes.items() if held and held >= STRAY * most)


def mean(samples: Sequence[GpuSample], of: Callable[[GpuSample], float | None]) -> float | None:
    """Return the mean of a signal; None with too few values."""
    values = [v for s in samples if (v := of(s)) is not None]
    return statistics.fmean(values) if len(values) >= MIN_SAMPLES else None


def newest(samples: Sequence[GpuSample], of: Callable[[GpuSample], float | None]) -> float | None:
    """Return the newest value of a signal that is sampled rarely; None when it never was."""
    return next((v for s in reversed(samples) if (v := of(s)) is not None), None)


def idleness(samples: Sequence[GpuSample]) -> Idleness | None:
    """Find idle samples and stretches of them; None with too few samples."""
    known = [(s.time_s, s.utilization_pct) for s in samples if s.utilization_pct is not None]
    if len(known) < MIN_SAMPLES:
        return None
    period_s = statistics.median(later - earlier for (earlier, _), (later, _) in pairwise(known))
    longest_s, began_s = 0.0, None
    for time_s, used in known:
        if used >= IDLE_PCT:
            began_s = None
            continue
        began_s = time_s if began_s is None else began_s
        longest_s = max(longest_s, time_s - began_s + max(0.0, period_s))
    ordered = sorted(used for _, used in known)
    return Idleness(
        share_pct=100.0 * sum(used < IDLE_PCT for used in ordered) / len(ordered),
        longest_s=longest_s,
        p95_pct=percentile(ordered, 0.95),
    )


def throttling(index: int, samples: Sequence[GpuSample]) -> Throttling | None:
    """Find what held the clocks down; None with too few samples that tell."""
    known = [(frozenset(s.throttle_reasons), s) for s in samples if s.throttle_reasons is not None]
    if len(known) < MIN_SAMPLES:
        return None
    hot = [s for reasons, s in known if reasons & THERMAL]
    forced = [s for reasons, s in known if reasons & HARDWARE and not reasons & THERMAL]
    capped = [s for reasons, s in known if reasons & POWER and not reasons & (THERMAL | HARDWARE)]
    free = [s for reasons, s in known if not reasons & (THERMAL | HARDWARE) and "gpu_idle" not in reasons]
    slow, fast = (mean(part, lambda s: s.sm_clock_mhz) for part in (hot + forced, free))
    temperatures = [s.temperature_c for s in samples if s.temperature_c is not None]
    return Throttling(
        index=index,
        thermal_pct=100.0 * len(hot) / len(known),
        hardware_pct=100.0 * len(forced) / len(known),
        power_pct=100.0 * len(capped) / len(known),
        slowed_pct=max(0.0, 100.0 * (1.0 - slow / fast)) if slow is not None and fast else None,
        temperature_c=max(temperatures, default=None),
        temperature_limit_c=newest(samples, lambda s: s.temperature_limit_c),
    )


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
