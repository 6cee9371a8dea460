"""A loop's clock, and what sources have registered to be called between two of its steps."""

from __future__ import annotations

from collections.abc import Callable

from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import Ledger

from ..conftest import FakeTime


class Boundaries:
    """Calls what was registered after each step, as the run does.

    Args:
        now: Of the ledger; time stands still where none is given.
    """

    def __init__(self, now: Callable[[], int] | None = None) -> None:
        self.clock = StepClock(Ledger(now=now or FakeTime()))
        self.clock.open = True
        self.calls: list[Callable[[StepClock], bool]] = []

    def register(self, name: str, call: Callable[[StepClock], bool]) -> None:
        self.calls.append(call)

    @property
    def is_done(self) -> bool:
        return not self.calls

    def boundary(self, index: int | None = None) -> None:
        """End a step: the next one has this number."""
        self.clock.index = self.clock.index + 1 if index is None else index
        self.calls = [call for call in self.calls if call(self.clock)]
