"""What the optimizers of a loop take, by torch's hooks: of a watched one, and of a framework that does not tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..sources.optimizers import has_closure, hear_steps, is_compiling
from ..timing.updating import UpdateSpan
from .run import Run


class OptimizerWatch:
    """Books the steps of torch's optimizers on the loop's thread, and has told how the first one is set up.

    Args:
        run: Of the loop.
        is_here: Whether the calling thread is the loop's.
    """

    def __init__(self, run: Run, is_here: Callable[[], bool]) -> None:
        self._run = run
        self._is_here = is_here
        self._clock = run.clock
        self._span = UpdateSpan(run.clock)
        self._handles: list[Any] = []
        self._compiling: Callable[[], bool] = bool

    def listen(self) -> None:
        """Hear of every step from now on; again and again, because a program may import torch's optimizers late.

        On the loop's thread, between two steps: torch goes through its hooks at each step, and a change meanwhile would
        be an error there.
        """
        if not self._handles:
            self._compiling = is_compiling()
            self._handles = hear_steps(self._before, self._after)

    def close(self) -> None:
        """Take the hooks back; as for `listen`."""
        while self._handles:
            self._handles.pop().remove()

    def _before(self, optimizer: object, given: Any, named: Any) -> None:
        if not self._compiling() and self._is_here():
            self._span.begin(timed=not has_closure(optimizer, given, named))

    def _after(self, optimizer: object, *_: Any) -> None:
        if self._compiling() or not self._is_here() or not self._span.end():
            return
        if self._clock.count_update(optimizer):
            self._run.tell_optimizer(optimizer)
