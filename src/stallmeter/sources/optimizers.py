"""Every step of an optimizer of torch, by the hooks that torch has for all of them. Nothing here imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def hear_steps(before: Callable[[], None], after: Callable[[object], None]) -> list[Any]:
    """Have every step of every optimizer told, on the thread that makes it; what is compiled tells nothing.

    Args:
        before: Called before a step.
        after: Called after it, with the optimizer.

    Returns:
        Handles whose ``remove()`` takes the hooks back; none where the program has not imported torch's optimizers.
    """
    optimizers: Any = sys.modules.get("torch.optim.optimizer")
    if optimizers is None:
        return []
    compiling = is_compiling()

    # What is traced must come to an end at once: a clock or a thread's number would break a graph in two.
    def pre(*_: Any) -> None:
        if not compiling():
            before()

    def post(optimizer: Any, *_: Any) -> None:
        if not compiling():
            after(optimizer)

    return [optimizers.register_optimizer_step_pre_hook(pre), optimizers.register_optimizer_step_post_hook(post)]


def is_compiling() -> Callable[[], bool]:
    """Return what says whether torch is tracing what calls it."""
    return getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_compiling", None) or bool
