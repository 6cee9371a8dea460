"""A training that asks no loader for its batches: its steps end with those of its optimizer.

Where it has no optimizer, and changes the weights itself, they end when gradients have been computed.

What it does for a batch, or waits, is then part of a step: looks at its stack tell how much.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from ..engine.run import Run, are_loops_claimed, count_claims
from ..timing.clock import StepClock

ENOUGH_UPDATES = 8
LEAST_S = 1.0
"""So many updates in so long, and no loader, are a training of its own kind: a small fit inside a program is none."""

MOST_OTHERS = 64
"""After so many updates of other optimizers in a row the first one is given up, and the present one makes the steps."""


MOST_PAST = 4096
"""Updates that are remembered until they are known to be steps: a second of them decides, and these are very short."""


@dataclass(slots=True)
class Update:
    """One that was made before it was known that updates are the loop's steps. Times are the ledger's, in ns."""

    by: Callable[[], object]
    """Its optimizer, while there is one."""
    thread: int
    called: int
    """When the program asked for it: the first time takes a while until anything of ours is there."""
    began: int
    ended: int = 0
    """0 while it goes on."""
    timed: bool = True
    """Whether all of it is the optimizer's own; see `UpdateSpan.begin`."""


class PastUpdates:
    """Remembers updates until it is known whether they are steps, so that the first ones are steps, too."""

    def __init__(self) -> None:
        self._found: list[Update] = []
        self._began_ns: int | None = None
        self._is_full = False

    def begin(self, by: object, called_ns: int, now_ns: int, made_ns: int | None, *, timed: bool = True) -> None:
        """An update is about to be made.

        Args:
            by: The optimizer.
            called_ns: When it was asked for.
            now_ns: When it begins.
            made_ns: When the newest optimizer was made; None where that was not seen. There the training began.
            timed: As for `UpdateSpan.begin`.
        """
        found = self._found
        if found and found[0].by() is None:  # another training, which is over
            self.forget()
        if found and not found[-1].ended:
            if found[-1].by() is not by:
                return  # part of the other one
            found.pop()  # which has raised
        if not found:
            self._began_ns = made_ns
        if len(found) < MOST_PAST:
            found.append(Update(weakref.ref(by), get_ident(), called_ns, now_ns, timed=timed))
        else:
            self._is_full = True

    def end(self, by: object, now_ns: int) -> None:
        """An update was made."""
        if self._found and not self._found[-1].ended and self._found[-1].by() is by:
            self._found[-1].ended = now_ns

    def take(self) -> tuple[int | None, list[Update]]:
        """Return when the calling thread's training began and its updates, and forget them.

        Where nobody saw the beginning it began with the end of its first update.
        """
        found = [update for update in self._found if update.ended and update.thread == get_ident()]
        began_ns, is_full = self._began_ns, self._is_full
        self.forget()
        if is_full or not found:
            return None, []
        if began_ns is None or began_ns > found[0].called:
            began_ns, found = found[0].ended, found[1:]
        return began_ns, found

    def forget(self) -> None:
        """These were no steps of a loop that is to be measured."""
        self._found.clear()
        self._is_full = False


@dataclass(frozen=True, slots=True)
class Past:
    """Stands for a batch that was used long ago, or was never handed out."""

    samples: int | None


class NoLoader:
    """Stands for the loader of a loop that has none: it hands out nothing, at once."""

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        return None


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
        self._unclaimed: int | None = None
        """`count_claims` when nobody had claimed the loop."""

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
        self._clock, self._steps, self._unclaimed = clock, steps, None

    def open(self) -> None:
        """The first step has begun already."""
        if self._steps is not None:
            next(self._steps)

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
        if count_claims() != self._unclaimed and self._are_claimed(run):
            clock.worked = False  # what has begun since the last update is the framework's
            self.end()
            return
        first = self._optimizer()
        if first is not by:
            self._others += 1
            if first is not None and self._others < MOST_OTHERS:
                clock.worked = False  # if this was the last one, what follows is no step
                return
            self._optimizer = weakref.ref(by)
        self._others = 0
        next(steps)
        clock.worked = False

    def _are_claimed(self, run: Run | None) -> bool:
        now = count_claims()
        if are_loops_claimed(run):
            return True
        self._unclaimed = now
        return False
