"""Numbers of a batch, read without asking a device and without an operation of torch's."""

from __future__ import annotations

from typing import Any

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
