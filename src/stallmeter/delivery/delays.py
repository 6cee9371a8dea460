"""How long to wait before what has failed is tried again."""

from __future__ import annotations

FIRST_DELAY_S = 1.0
"""Wait after the first failure; it doubles with each further one."""

MAX_DELAY_S = 15.0
"""Longest wait between two tries."""


def delay_s(failures: int, longest_s: float = MAX_DELAY_S) -> float:
    """Return how long to wait after so many failures in a row before the one that has just been seen."""
    return min(longest_s, FIRST_DELAY_S * 2.0 ** min(failures, 10))
