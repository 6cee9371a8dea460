"""Functions of the user's that torch calls while it computes gradients: hooks, and what computes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .fold import Frame, Seen
from .roles import GRADIENTS

FUNCTIONS = "torch/autograd/function.py"
"""From where the backward of functions of one's own is called, and their forward."""

APPLY = "apply"
"""Last part of the name of what calls them there, and their forward."""

CALLS_HOOKS = "torch/utils/hooks.py"
"""Stands between what computes gradients and the hook of a module."""


def in_hooks_of_gradients(seen: Sequence[Seen]) -> list[Seen]:
    """Return which stacks are of a hook that torch calls with a gradient: of a tensor, a parameter or a module.

    What a hook does with an optimizer, to update weights as soon as they have their gradient, is the training. On a
    GPU torch calls hooks on another thread.

    Args:
        seen: Of the steps.
    """
    return [one for one in seen if _is_in_a_hook(one.stack)]


def in_functions(seen: Sequence[Seen]) -> list[Seen]:
    """Return which stacks are of an autograd function of the user's own, of its forward or of its backward.

    Args:
        seen: Of the steps.
    """
    return [one for one in seen if any(_calls_function(*two) for two in pairwise(one.stack))]


def _calls_function(caller: Frame, called: Frame) -> bool:
    name = caller.function.name.rpartition(".")[2]
    return called.function.own and caller.function.file == FUNCTIONS and name == APPLY


def _is_in_a_hook(stack: Sequence[Frame]) -> bool:
    library = [(i, frame.function) for i, frame in enumerate(stack) if not frame.function.own]
    computing = [i for i, function in library if function.file.startswith(GRADIENTS)]
    if not computing or stack[computing[-1]].function.file == FUNCTIONS:
        return False
    if any(function.role.is_of_optimizer for i, function in library if i > computing[-1]):
        return False
    called = next((frame for frame in stack[computing[-1] + 1 :] if frame.function.file != CALLS_HOOKS), None)
    return called is not None and called.function.own
