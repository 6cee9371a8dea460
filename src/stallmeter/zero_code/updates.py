"""A training that asks no loader for its batches: its steps end with those of its optimizer.

Where it has no optimizer, and changes the weights itself, they end when gradients have been computed.

What it does for a batch, or waits, is then part of a step: looks at its stack tell how much.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..engine.run import Run, are_loops_claimed
from ..timing.clock import StepClock
from .hindsight import Past

ENOUGH_UPDATES = 8
LEAST_S = 1.0
"""So many updates in so long, and no loader, are a training of its own kind: a small fit inside a program is none."""

MOST_OTHERS = 64
"""After so many updates of other optimizers in a row the first one is given up, and the present one makes the steps."""


class NoLoader:
    """Stands for the loader of a loop that has none: it hands out nothing, at once."""

    def __iter__(self) -> Iterator[Past]:
        return self

    def __next__(self) -> Past:
        return Past(None)


class Updates:
    """Makes a loop's steps of the updates of its first optimizer, once there were enough of them without a loader.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since_s = 0.0
        self._count = 0
        self._clock: StepClock | None = None
        self._steps: Iterator[Any] | None = None
        self._optimizer: Callable[[], object] = lambda: None
        self._others = 0

    @property
    def make_steps(self) -> bool:
        """Whether the steps are made of updates now."""
        return self._steps is not None

    def are_enough(self) -> bool:
        """Count one more update that goes with no loader; returns whether it is time to make steps of them."""
        if not self._count:
            self._since_s = self._now()
        self._count += 1
        if self._count < ENOUGH_UPDATES or self._now() - self._since_s < LEAST_S:
            return False
        self._count = 0
        return True

    def begin(self, clock: StepClock, steps: Iterator[Any]) -> None:
        """Make steps from the end of this update on.

        Args:
            clock: Of the run.
            steps: Times a `NoLoader`: each time it is asked a step ends.
        """
        self._clock, self._steps = clock, steps

    def end(self) -> None:
        """Make no more steps: a loader makes them. What was begun since the last update is none."""
        self._steps = self._clock = None

    def forget(self) -> None:
        """Whatever is updated next makes the steps: gradients did, before an optimizer was heard of."""
        self._optimizer = lambda: None

    def before(self) -> None:
        """An update is about to be made: what goes on is a step, and no evaluation behind the last one."""
        if self._clock is not None and self._clock.open:
            self._clock.worked = True

    def after(self, by: object, run: Run | None = None) -> None:
        """An update was made.

        Args:
            by: The optimizer, or what stands for all gradients.
            run: Of the steps. A framework may have taken its loop over.
        """
        clock, steps = self._clock, self._steps
        if clock is None or steps is None:
            return
        if are_loops_claimed(run):
            clock.worked = False  # what has begun since the last update is the framework's
            self.end()
            return
        first = self._optimizer()
        if first is not by:
            self._others += 1
            if first is not None and self._others < MOST_OTHERS:
                return
            self._optimizer = weakref.ref(by)
        self._others = 0
        next(steps)
        clock.worked = False
