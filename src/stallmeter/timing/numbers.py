"""Numbers of a batch, read without asking a device and without an operation of torch's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MOST_MEMBERS = 4096
"""Members of a list that may be tensors, the first ones."""

ODD = (AttributeError, RuntimeError, TypeError, ValueError)
"""What a tensor raises that NumPy cannot read: a sparse one, one of bfloat16, one with a gradient, or none at all."""


def numbers_of(tensor: Any) -> Any:
    """Return a tensor's numbers as NumPy has them, or what is no tensor as it is; None on an accelerator.

    There reading would wait for the device. An operation of torch's would be seen by a profiler or a dispatch mode of
    the program's.

    Raises:
        Exception: One of `ODD`.
    """
    if getattr(getattr(tensor, "device", None), "type", "cpu") != "cpu":
        return None
    return tensor.numpy() if hasattr(tensor, "numpy") else tensor


def tensors_in(batch: object, depth: int = 3) -> Iterable[Any]:
    """Yield the tensors and arrays of a batch.

    Args:
        batch: Whatever a loader yields: a tensor, or lists, tuples and mappings of such.
        depth: Of lists in lists.
    """
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, (list, tuple)):
        for member in batch[:MOST_MEMBERS] if depth else ():
            yield from tensors_in(member, depth - 1)
    elif hasattr(batch, "dtype"):
        yield batch
