"""Rows of a batch, known again in a later epoch by some of their numbers.

Items come in another order, and texts with as much padding as the longest of their batch needs. So a row is known by
numbers at fixed places, and by the same without what it ends with or begins with again and again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .numbers import ODD, numbers_of, tensors_in

MOST_ROWS = 256
"""Rows of a batch that are looked at, the first ones: each takes some microseconds."""

LEAST = 4
"""Numbers by which a row is known, at the least: a class or a length is many rows'."""

DENSE, WIDER = 64, 1.05
"""Numbers that are all looked at, and by how much places lie further apart beyond them."""

MOST_RESULTS = 16
"""Numbers of a result that are kept to be compared."""

DIFFERS = (1e-4, 1e-2)
"""By how much results are another where numbers were added up in another order, beside their mean: of 32 bits and more,
and of fewer. Another batch's statistics make more of a difference. Our choice."""

Marks = tuple[int, ...]
"""What a row is known by: one of them is enough. Empty where too few numbers tell it from others."""


@lru_cache(8)
def _places(size: int) -> tuple[int, ...]:
    """Return where the numbers of a row are looked at: the first of them in a longer row are at the same places."""
    found, place = list(range(min(DENSE, size))), float(DENSE)
    while place < size:
        found.append(int(place))
        place = max(place + 1.0, place * WIDER)
    return tuple(found)


def number_of_rows(given: object) -> int | None:
    """Return how many rows a batch has, without a look at them; None where its largest tensor has none.

    Args:
        given: As of `rows_of`.
    """
    shape: Any = getattr(max(tensors_in(given), key=_size, default=None), "shape", ())
    return int(shape[0]) if len(shape) > 1 else None


def rows_of(given: object) -> tuple[int, list[Marks]] | None:
    """Return how many rows a batch has, and what the first ones are known by; None where nothing can be read.

    Args:
        given: What a module is given: of its tensors the one with the most numbers tells its rows. On an accelerator
            nothing is read, which would wait for the device.
    """
    largest = max(tensors_in(given), key=_size, default=None)
    try:
        numbers = None if largest is None else numbers_of(largest)
        if numbers is None or numbers.ndim < 2 or not numbers.size:
            return None
        return len(numbers), [_marks(row) for row in numbers[:MOST_ROWS]]
    except ODD:
        return None


def results_of(made: object, rows: int) -> list[Any] | None:
    """Return the first numbers of what was made of each row, as far as `rows_of` looks; None where they cannot be read.

    Args:
        made: What a module returned: its first tensor with a place for each row is taken.
        rows: Of what it was given.
    """
    try:
        for tensor in tensors_in(made):
            if len(getattr(tensor, "shape", ())) > 1 and tensor.shape[0] == rows:
                numbers = numbers_of(tensor)
                return None if numbers is None else [row.flat[:MOST_RESULTS] for row in numbers[:MOST_ROWS]]
    except ODD:
        return None
    return None


def are_alike(one: Any, other: Any) -> bool:
    """Whether two results are the same but for the order in which their numbers were added up."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    size = abs(one).mean() + abs(other).mean()
    return bool((abs(one - other) <= DIFFERS[one.itemsize < 4] * size).all())  # false where one of them is no number


def _size(tensor: Any) -> int:
    size = 1
    for length in getattr(tensor, "shape", ()):
        size *= int(length)
    return size


def _marks(row: Any) -> Marks:
    """Return what a row is known by, whatever it is padded with at either end."""
    numbers = row.flat[list(_places(row.size))]
    ends, begins = (numbers != numbers[-1]).nonzero()[0], (numbers != numbers[0]).nonzero()[0]
    if not len(ends):  # all the same: padding, or an empty picture
        return ()
    parts = numbers, numbers[: ends[-1] + 1], numbers[begins[0] :]
    return tuple({hash(part.tobytes()): None for part in parts if len(part) >= LEAST})
