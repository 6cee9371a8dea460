"""The span of an optimizer's step, where torch's hooks tell of it: before, and after it if it did not raise."""

from __future__ import annotations

from .ledger import OPTIMIZER, Ledger, WorkSpan


class UpdateSpan(WorkSpan):
    """The span of an optimizer's step. One that has another optimizer make its step is one step, not two."""

    __slots__ = ("_begun_in", "_within")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, OPTIMIZER)
        self._begun_in = -1
        self._within = 0

    def is_within(self, step: int) -> bool:
        """Whether an optimizer that is about to step in this step of the loop does so for another one, at it already.

        One of an earlier step has raised, and the program went on: its time ends now.
        """
        inside = OPTIMIZER in self.ledger.stack
        if inside and self._begun_in == step:
            self._within += 1
            return True
        if inside:
            self.ledger.exit(OPTIMIZER)
        self._begun_in, self._within = step, 0
        return False

    def ends_within(self) -> bool:
        """Whether the optimizer that has stepped did so for another one."""
        if not self._within:
            return False
        self._within -= 1
        return True
