"""Numbers so near zero that many CPUs compute with them many times slower: subnormal ones, below 1.2e-38 in 32 bits.

The tail of a recursive filter decays to them, as do products of many small factors; padding with zeros does not. Some
CPUs are as quick with them as with others, which is tried before any is told of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from typing import Any

from .numbers import ODD, numbers_of, tensors_in

SAMPLE = 4096
"""Numbers of a tensor that are looked at, spread over it."""

MOST_TENSORS = 8
"""Tensors of a batch that are looked at, the first ones."""

LEAST_NORMAL = {"float32": ("uint32", 0x7FFFFFFF, 0x00800000), "float64": ("uint64", (1 << 63) - 1, 1 << 52)}
"""Of each type, the one whose bits are read, those of the magnitude, and the least normal number (IEEE 754)."""

TRIED = 32
"""Rows and columns of the matrices that are multiplied to see how long it takes, in one thread."""

TRIES = 8
"""So often; the shortest time counts, which nothing has held up."""

SLOWER = 1.5
"""Times as long as with other numbers, from which on they cost something: where they do it is ten times and more."""


@cache
def are_slow(now: Callable[[], int] = time.perf_counter_ns) -> bool:
    """Whether this CPU computes slower with subnormal numbers than with others, by a trial of half a millisecond.

    Our measurement: on an EPYC of AMD's products of matrices took 1.0 times as long, on the CPU of another machine 2.4
    times with one such number in a hundred.

    Args:
        now: Nanoseconds.
    """
    import numpy as np  # there, where numbers were read

    one, out = np.ones((TRIED, TRIED), np.float32), np.empty((TRIED, TRIED), np.float32)
    shortest: dict[tuple[object, bool], int] = {}
    kinds = {small: np.full((TRIED, TRIED), 1e-40 if small else 1.0, np.float32) for small in (False, True)}
    for operation in (np.multiply, np.dot):
        for _ in range(TRIES):
            for small, numbers in kinds.items():
                began = now()
                operation(numbers, one, out=out)
                taken, key = now() - began, (operation, small)
                shortest[key] = min(taken, shortest.get(key, taken))
    return any(shortest[each, True] >= SLOWER * shortest[each, False] for each in (np.multiply, np.dot))


def subnormal_share(batch: object) -> float | None:
    """Return which share (0 to 1) of a batch's floating-point numbers is subnormal, by a sample; None without any.

    It is 0 where they cost nothing: the calling thread has them flushed to zero (``torch.set_flush_denormal(True)``),
    or the CPU is as quick with them.

    Args:
        batch: Whatever a loader yields: a tensor, or lists, tuples and mappings of such. On an accelerator nothing is
            read, which would wait for the device; there they cost nothing either.
    """
    counts = [found for tensor in islice(tensors_in(batch), MOST_TENSORS) if (found := _count(tensor)) is not None]
    looked_at = sum(number for number, _ in counts)
    return sum(subnormal for _, subnormal in counts) / looked_at if looked_at else None


def subnormal_in(tensors: Iterable[Any]) -> float | None:
    """Return which share (0 to 1) of the numbers of some tensors is subnormal, by a sample of each; None without any.

    Args:
        tensors: None that requires gradients, of which NumPy reads nothing. The largest are looked at.
    """
    largest = sorted(tensors, key=lambda tensor: -int(tensor.numel()))[:MOST_TENSORS]
    found = [(int(tensor.numel()), count) for tensor in largest if (count := _count(tensor)) is not None]
    numbers = sum(number for number, _ in found)
    return sum(number * small / looked_at for number, (looked_at, small) in found) / numbers if numbers else None


def _count(tensor: Any) -> tuple[int, int] | None:
    """Return how many numbers of a tensor were looked at, and how many of these are subnormal."""
    try:
        numbers = numbers_of(tensor)
        kind = None if numbers is None else LEAST_NORMAL.get(numbers.dtype.name)
        if kind is None or not numbers.flags.c_contiguous or not numbers.size:
            return None
        bits_as, magnitude, least = kind
        # An odd distance: numbers that recur with a power of two are not met each time.
        sample = numbers.reshape(-1)[:: max(1, numbers.size // SAMPLE) | 1]
        small = numbers.dtype.type(1e-40 if bits_as == "uint32" else 1e-310)
        if small * numbers.dtype.type(1.0) == 0.0:
            return len(sample), 0
        bits = sample.view(bits_as) & magnitude
        found = int(((bits > 0) & (bits < least)).sum())
        return len(sample), found if found and are_slow() else 0
    except ODD:
        return None
