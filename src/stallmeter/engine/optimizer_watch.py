"""What the optimizers of a watched loop take: its program tells nothing but which loader it iterates."""

from __future__ import annotations

from typing import Any

from ..sources.optimizers import has_closure, hear_steps, is_compiling
from ..timing.turns import Turns
from ..timing.updating import UpdateSpan
from .run import Run


class OptimizerWatch:
    """Books the steps of torch's optimizers on the loop's thread, and has told how the first one is set up.

    Args:
        run: Of the loop.
        turns: Say which thread the loop's is.
    """

    def __init__(self, run: Run, turns: Turns) -> None:
        self._run = run
        self._turns = turns
        self._clock = run.clock
        self._span = UpdateSpan(run.clock)
        self._handles: list[Any] = []
        self._compiling = is_compiling()
        self._first: int | None = None
        """The optimizer whose steps are counted."""

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
        if not self._compiling() and self._turns.has():
            self._span.begin(timed=not has_closure(optimizer, given, named))

    def _after(self, optimizer: object, *_: Any) -> None:
        if self._compiling() or not self._turns.has() or not self._span.end():
            return
        clock = self._clock
        if self._first is None:
            self._first, clock.optimizer_step = id(optimizer), 0
            self._run.tell_optimizer(optimizer)
        if id(optimizer) == self._first:
            clock.optimizer_step = (clock.optimizer_step or 0) + 1
