"""Intervals and bins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

Z_95 = 1.959964


def wilson_pct(right: int, of: int) -> tuple[float, float]:
    """Return the Wilson 95 % interval of a share, in percent (Wilson, JASA 22, 1927)."""
    if not of:
        return 0.0, 100.0
    share, z2 = right / of, Z_95 * Z_95
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = Z_95 / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return 100.0 * low if right else 0.0, 100.0 * high if right < of else 100.0


def share(right: int, of: int) -> str:
    """Return a share with its interval, in words."""
    if not of:
        return "none"
    low, high = wilson_pct(right, of)
    return f"{right} of {of} ({100 * right / of:.1f} %, {low:.0f} to {high:.0f})"


BINS = (0.0, 0.6, 0.7, 0.8, 0.9, 1.01)


def binned(pairs: Sequence[tuple[float, bool]]) -> list[tuple[float, float, list[tuple[float, bool]]]]:
    """Sort confidences with their outcome into bins; gives bounds and members of each that has some."""
    found = []
    for low, high in itertools.pairwise(BINS):
        members = [(said, right) for said, right in pairs if low <= said < high]
        if members:
            found.append((low, min(high, 1.0), members))
    return found
