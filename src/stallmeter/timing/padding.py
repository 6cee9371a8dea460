"""How much of a batch of sequences is there for none of them: padding that a shorter batch would not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .numbers import ODD, numbers_of

MASK = "attention_mask"
"""What tokenizers and collators call the tensor that tells tokens (not 0) from padding (0): transformers' name."""

MOST_POSITIONS = 300_000
"""A mask of more numbers is not looked at: that would take a third of a millisecond."""


class Padding(NamedTuple):
    """Positions of the sequences in a batch."""

    positions: int
    """All of them."""
    used: int
    """Those in which at least one sequence has a token."""


def padding_of(batch: object) -> Padding | None:
    """Return how long the sequences of a batch are made, and how many positions any of them uses.

    Args:
        batch: Whatever a loader yields: a mapping with a mask of two dimensions, rows by positions, or a list or tuple
            that holds one. On an accelerator the mask is not read, which would wait for the device.
    """
    mask = mask_of(batch)
    tokens = None if mask is None else tokens_in(mask)
    return None if tokens is None else Padding(int(tokens.shape[1]), int(tokens.any(axis=0).sum()))


def mask_of(batch: object) -> Any:
    """Return the mask of a batch: of a mapping, or of the first in a list or tuple that has one; None without."""
    members = batch if isinstance(batch, (list, tuple)) else (batch,)
    masks = (member.get(MASK, None) for member in members if isinstance(member, Mapping))
    return next((mask for mask in masks if mask is not None), None)


def tokens_in(mask: Any) -> Any:
    """Return, as truth values of rows by positions, where a mask has tokens; None where it cannot be read."""
    shape: Any = getattr(mask, "shape", ())
    if len(shape) != 2 or not 0 < shape[0] * shape[1] <= MOST_POSITIONS:
        return None
    try:
        numbers = numbers_of(mask)
        return None if numbers is None else numbers != 0
    except ODD:
        return None
