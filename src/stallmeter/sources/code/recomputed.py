"""What steps compute a second time in their backward pass: activations that a checkpoint of torch's did not keep.

Without reentrance torch computes them where the first saved tensor is asked for, in a hook of its own. With it they are
computed in the backward of an autograd function, which then has the gradients of them computed: that is no second time.
"""

from __future__ import annotations

from collections.abc import Sequence

from .fold import Frame, Seen

FILE = "torch/utils/checkpoint.py"
"""Holds both kinds, in torch 2.2 to 2.13."""

ASKED_FOR = frozenset({"recompute_fn", "unpack_hook"})
"""Last parts of the names of what computes without reentrance, and of what asks for it: in the backward pass alone."""

REENTRANT = "CheckpointFunction.backward"
"""End of the name of the backward that computes forward first."""

HOLDS_BACKWARD = "torch/autograd/__init__.py"
"""And calls this then, itself."""


def recomputed(seen: Sequence[Seen]) -> list[Seen]:
    """Return which stacks are of a second computation. On an accelerator torch makes it on another thread.

    Args:
        seen: Of the steps.
    """
    return [one for one in seen if any(_recomputes(one.stack, at) for at in range(len(one.stack)))]


def _recomputes(stack: Sequence[Frame], at: int) -> bool:
    function = stack[at].function
    if function.file != FILE:
        return False
    if function.name.rpartition(".")[2] in ASKED_FOR:
        return True
    called = stack[at + 1].function.file if at + 1 < len(stack) else ""
    return function.name.endswith(REENTRANT) and called != HOLDS_BACKWARD
