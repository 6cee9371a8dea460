"""How many positions of a batch have a label: the others hold a number that the loss leaves out."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from .numbers import ODD, numbers_of, tensors_in

LEFT_OUT = (-100, -1)
"""Labels that are no class: what ``ignore_index`` of torch's losses is if nothing else is said, and what is often said.
Another one cannot be told from a class."""

MOST_TENSORS = 64
"""Tensors of a batch that are looked at, the first ones."""

LEAST_POSITIONS = 32
MOST_POSITIONS = 300_000
"""Of labels that are looked at: fewer are no sequences, and more would take a third of a millisecond and longer."""


class Labels(NamedTuple):
    """Labels of one batch."""

    positions: int
    labelled: int
    """Positions with a class."""


def labels_of(batch: object) -> Labels | None:
    """Return how many labels of a batch are classes; None where none is left out, or nothing tells of labels.

    Args:
        batch: Whatever a loader yields: a tensor, or lists, tuples and mappings of such. Labels are whole numbers, one
            negative number of `LEFT_OUT` among them. On an accelerator they are not read, which would wait for it.
    """
    for tensor in islice(tensors_in(batch), MOST_TENSORS):
        found = _labels(tensor)
        if found is not None:
            return found
    return None


def reads_all(batch: object) -> bool:
    """Whether all tensors of a batch are looked at, and there are some: on a CPU, and not too many.

    Args:
        batch: Whatever a loader yields.
    """
    found = list(islice(tensors_in(batch), MOST_TENSORS + 1))
    return 0 < len(found) <= MOST_TENSORS and all(
        getattr(getattr(tensor, "device", None), "type", "cpu") == "cpu" for tensor in found
    )


def _labels(tensor: object) -> Labels | None:
    try:
        numbers = numbers_of(tensor)
        if numbers is None or numbers.dtype.kind != "i" or numbers.ndim not in (1, 2):
            return None
        if not LEAST_POSITIONS <= numbers.size <= MOST_POSITIONS:
            return None
        least = int(numbers.min())
        if least not in LEFT_OUT:
            return None
        without = int((numbers == least).sum())
        # Two kinds of negative numbers mean something else.
        return Labels(numbers.size, numbers.size - without) if int((numbers < 0).sum()) == without else None
    except ODD:
        return None
