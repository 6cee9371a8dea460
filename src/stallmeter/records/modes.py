"""Modes of torch that are there to find mistakes, and slow each step down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugModes:
    """For how long such modes were on since the run began; read when something was, and once at the beginning."""

    time_s: float
    anomaly_s: float = 0.0
    """``torch.autograd.set_detect_anomaly``."""
    profiler_s: float = 0.0
    """A profiler of torch's, within its active steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAutocast:
    """Whether modules were called with ``torch.autocast("cpu")`` in the steps that were looked at. The newest holds."""

    time_s: float
    kind: str
    """``bfloat16`` or ``float16``; empty where it was off."""
