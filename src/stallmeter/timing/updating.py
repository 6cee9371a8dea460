"""The span of an optimizer's step, where torch's hooks tell of it: before, and after it if it did not raise."""

from __future__ import annotations

from .clock import StepClock
from .ledger import OPTIMIZER, WorkSpan


class UpdateSpan:
    """The span of an optimizer's step. One that has another optimizer make its step is one step, not two.

    Args:
        clock: Of the loop.
    """

    __slots__ = ("_began", "_begun_in", "_clock", "_ledger", "_open", "_span", "_untimed", "_within")

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._ledger = clock.ledger
        self._span = WorkSpan(clock.ledger, OPTIMIZER)
        self._begun_in = -1
        self._within = 0
        self._untimed = False
        """Whether a step goes on that is not timed."""
        self._open = False
        """Whether one is timed: the program may have opened a span of its own around its optimizer."""
        self._began: int | None = None
        """`Ledger.last` since this began, where the step's mark may be short; see `StepClock.left_at`."""

    def begin(self, *, timed: bool = True) -> bool:
        """An optimizer is about to step. Returns False where it does so for another one, at it already.

        One of an earlier step has raised, and the program went on: its time ends now.

        Args:
            timed: Whether all that it does is its own. What a closure computes is not: then nothing is booked, because
                the closure's part of the time is not known.
        """
        clock, ledger = self._clock, self._ledger
        if self._untimed or (self._open and OPTIMIZER in ledger.stack):
            if self._begun_in == clock.index:
                self._within += 1
                return False
            if self._open:
                ledger.exit(OPTIMIZER)
                self._open = False
        self._begun_in, self._within = clock.index, 0
        self._untimed = not timed or OPTIMIZER in ledger.stack
        if self._untimed:
            return True
        alone = ledger.last is clock.left_at
        self._span.__enter__()
        self._open = True
        self._began = ledger.last if alone else None
        return True

    def end(self) -> bool:
        """The optimizer has stepped. Returns False where it did so for another one."""
        if self._within:
            self._within -= 1
            return False
        if self._untimed:
            self._untimed = False
            return True
        ledger = self._ledger
        alone = ledger.last is self._began
        self._span.__exit__()
        self._open = False
        if alone:
            self._clock.left_at = ledger.last
        return True
