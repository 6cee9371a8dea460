"""Every step of an optimizer of torch, by the hooks that torch has for all of them. Nothing here imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def hear_steps(before: Callable[..., None], after: Callable[..., None]) -> list[Any]:
    """Have every step of every optimizer told, on the thread that makes it.

    Both are called by torch itself, with the optimizer and the arguments of its step: a function in between would cost
    a call for each. While `is_compiling` says so they must come to an end at once, because a clock or a thread's number
    would break a graph in two.

    Args:
        before: Called before a step.
        after: Called after it.

    Returns:
        Handles whose ``remove()`` takes the hooks back; none where the program has not imported torch's optimizers.
    """
    optimizers: Any = sys.modules.get("torch.optim.optimizer")
    if optimizers is None:
        return []
    return [optimizers.register_optimizer_step_pre_hook(before), optimizers.register_optimizer_step_post_hook(after)]


def has_closure(optimizer: object, given: Any, named: Any) -> bool:
    """Whether an optimizer's step is given a function that computes the loss and its gradients.

    Args:
        optimizer: Which.
        given: Arguments of its step as torch tells them, itself among them.
        named: Its keyword arguments.
    """
    return named.get("closure") is not None or any(one is not optimizer and callable(one) for one in given)


def is_compiling() -> Callable[[], bool]:
    """Return what says whether torch is tracing what calls it."""
    return getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_compiling", None) or bool
