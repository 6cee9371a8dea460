"""What the samples of one GPU say together: idle stretches, clocks held down, how hard it really worked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..records import GpuSample
from ..records.stats import percentile

MIN_SAMPLES = 5
"""Below this many samples nothing is said."""

IDLE_PCT = 10.0
"""Utilization below which a sample counts as idle (SageMaker's LowGPUUtilization: a 5th percentile under 10 %)."""

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
class TensorCores:
    """What is known about the use of Tensor Cores."""

    capability: float
    """CUDA compute capability."""
    full_precision: bool | None
    """Whether the Trainer was told to compute in 32 bits or more; None when that is not known."""
    active_pct: float | None
    """Share of the time in which they worked; None where there is no GPM."""


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
