"""Collectives that a rank entered: when, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A run of collectives of one process group, as PyTorch's flight recorder has noted them."""

    time_s: float
    """Unix time of the reading."""
    group: str
    """Name of the process group, the same on all of its ranks."""
    base_s: float
    """Unix time from which the columns below count."""
    sequence: tuple[int, ...]
    """Number of each collective in its group: the same number is the same collective on all ranks."""
    began_us: tuple[int, ...]
    """When this rank asked for it, microseconds after ``base_s``."""
    took_us: tuple[int, ...]
    """From then until it was seen to be complete; -1 where nobody looked."""
    sent_bytes: tuple[int, ...]
    """Size of its input."""
