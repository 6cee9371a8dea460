"""Calls that the training thread makes between two steps, for those who must be on that thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..timing.clock import StepClock
from .guard import Guard


class BetweenSteps:
    """Calls what was added between two steps, until it returns False or fails.

    Args:
        clock: Whose steps.
        guard: Keeps errors away.
        own_slot: Of the ledger: the time is stallmeter's own.
    """

    def __init__(self, clock: StepClock, guard: Guard, own_slot: int) -> None:
        self._clock = clock
        self.guard = guard
        self._own_slot = own_slot
        # Added to by the sampler thread, emptied by the training thread: append and popleft of a deque are each atomic.
        self._calls: deque[tuple[str, Callable[[StepClock], bool]]] = deque()

    def add(self, name: str, call: Callable[[StepClock], bool]) -> None:
        """Have something called; from any thread.

        Args:
            name: What it is, for when it fails.
            call: Returns whether it wants to be called again.
        """
        # In this order: `_run` looks again after it has taken itself out, so that no call is forgotten in between.
        self._calls.append((name, call))
        self._clock.at_boundary = self._run

    def _run(self) -> None:
        clock, calls = self._clock, self._calls
        clock.ledger.enter(self._own_slot)
        for _ in range(len(calls)):  # what is added meanwhile waits for the next step
            name, call = calls.popleft()
            if self.guard(name, call, clock):
                calls.append((name, call))
        if not calls:
            clock.at_boundary = None
            if calls:  # another thread has just added one, and what it set is gone
                clock.at_boundary = self._run
        clock.ledger.exit(self._own_slot)
