"""Loaders of which a step takes one batch from an iterator of its own: ``next(iter(loader))``, again and again.

To each of these iterators a single batch is all there is. What they take together is a wait of the training: workers
start, make their first batches and end, and of what they have made ahead nothing is used.
"""

from __future__ import annotations

import weakref

from ..engine.run import Run
from ..timing.loop import LOOKS
from .hindsight import book_batches
from .iteration import Iteration
from .probed import has_workers


class Renewed:
    """Knows such loaders once there were more than a few looks at them. Holds none of them back."""

    def __init__(self) -> None:
        self._left: list[tuple[weakref.ref[object], int]] = []

    def begin(self, run: Run, loader: object, leading: object | None, *, by_updates: bool) -> None:
        """Have the workers probed that a loader is about to start, if it is known to do so for each batch.

        Args:
            run: Of the program.
            loader: The loader.
            leading: The loader that makes the steps.
            by_updates: Whether no loader does, but the updates of an optimizer.
        """
        if loader is leading or not has_workers(loader) or self._times(loader) <= LOOKS:
            return
        if by_updates:
            run.loaders.probe_within(loader)
        else:
            run.loaders.probe_beside(loader, sure=True)

    def left(self, run: Run, iteration: Iteration, *, by_updates: bool) -> None:
        """Book an iteration of the training's thread that was left after a batch or two, and be the one that ends it.

        Args:
            run: Of the program.
            iteration: Nobody has it any more, and nothing was booked since it began.
            by_updates: As in `begin`. What the loop makes itself is then told by looks.
        """
        workers = has_workers(iteration.loader)
        if self._count(iteration.loader) > LOOKS and (workers or not by_updates):
            book_batches(run.clock, iteration, workers=workers)

    def _times(self, loader: object) -> int:
        return next((times for known, times in self._left if known() is loader), 0)

    def _count(self, loader: object) -> int:
        times = self._times(loader) + 1
        try:
            counted = weakref.ref(loader), times
        except TypeError:
            return 0
        self._left = [*(entry for entry in self._left if entry[0]() not in (None, loader)), counted]
        return times
