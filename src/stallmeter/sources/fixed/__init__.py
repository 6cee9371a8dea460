"""Modules that learn nothing, and make the same of the same item in each epoch.

A backbone that is frozen, a teacher, an encoder whose latents are learnt from: what it makes of an item could be kept.
In some steps of some epochs torch's hooks for all modules time the outermost calls through which nothing is trained.
Rows of what they are given are known again by some of their numbers, and what was made of them is compared. So whatever
changes an item at random, or the module itself, is noticed wherever it happens. Between these steps no hook is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...records import FixedFeatures
from ...timing.clock import Register, StepClock
from ...timing.ledger import BACKWARD, COMPUTE, FORWARD, LOOP, OPTIMIZER
from ...timing.module_hooks import hooked
from .items import LEAST_COMPARED, Items
from .look import FIXED, FixedLook

WORK = frozenset({FORWARD, BACKWARD, OPTIMIZER, LOOP, COMPUTE})
"""Buckets of what a step computes: making a batch, or a validation, calls modules as well."""

FIRST_STEP = 8
"""Steps before it may be warm-up."""

TRIES = 2
"""Steps after which it is over where no module is called through which nothing is trained, or too short a time."""

WORTH = 0.05
"""Part of such a step, from its first question for a batch on, that these calls must take."""

STEPS, ROWS = 64, 4096
"""Looked at in an epoch, at the most."""

EPOCHS = 6
"""Looked at, at the most."""

ENOUGH = 60.0
"""Rows that had to be met again, after which no further epoch is looked at: 60 tell three quarters of them from all."""

MOST_OWN_NS = 300_000_000
"""Of all looks together, at the most."""


class FixedSource:
    """The source of `FixedFeatures`.

    Args:
        register: How to be called between two steps.
        guard: Calls what is given it, and keeps errors away: a hook is called in the program's forward pass.
        ranks: Among which an epoch's items are shared out.
        modules: Where torch is looked for; it is never imported.
        now: Nanoseconds.
    """

    name = FIXED

    def __init__(
        self,
        register: Register,
        guard: Callable[..., Any],
        ranks: int = 1,
        *,
        modules: Mapping[str, Any] | None = None,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._guard, self._now = guard, now
        self._modules = sys.modules if modules is None else modules
        self._trained: dict[int, bool] = {}
        self._look: FixedLook | None = None
        self._look_ns = self._offset = self._own_ns = self._tries = 0
        self._worth = False
        self._items = Items(ranks, ROWS)
        self._tell_from = float(LEAST_COMPARED)
        """So many rows must have been expected again until it is told anew what is known."""
        self._epoch = -1
        self._epochs = self._steps_left = self._began = 0
        self._found: FixedFeatures | None = None  # set by the training thread, taken by the sampler's
        register(self.name, self.between_steps)

    def sample(self, time_s: float) -> Sequence[FixedFeatures]:  # noqa: ARG002 - a Source's signature
        """Return what was found since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        found, self._found = self._found, None
        return () if found is None else (found,)

    def close(self) -> None:
        """Take the hooks back where a step has not ended."""
        look, self._look = self._look, None
        if look is not None:
            look.remove()

    def between_steps(self, clock: StepClock) -> bool:
        """Begin or end to look; for the training thread. Returns whether it wants to be called again."""
        look, self._look = self._look, None
        goes_on = True
        if look is not None:
            look.remove()
            goes_on = self._take(look, self._now() - self._look_ns)
        if not clock.open and self._items.expected >= LEAST_COMPARED:  # the last epoch may be over
            self._found = self._items.told()
        if clock.open and clock.epochs != self._epoch:
            goes_on = self._begin_epoch(clock) and goes_on
        if not goes_on or self._own_ns > MOST_OWN_NS:
            self._items.forget()
            return False
        if clock.open and clock.index >= FIRST_STEP and self._steps_left > 0:
            return self._begin(clock)
        return True

    def _begin_epoch(self, clock: StepClock) -> bool:
        """Return whether this epoch is looked at, too."""
        began = max(0, clock.index - 1)
        if self._epoch >= 0:
            self._items.end_epoch(began - self._began)
        self._epoch, self._began, self._steps_left = clock.epochs, began, STEPS
        self._epochs += self._worth
        return self._epochs < EPOCHS and self._items.expected < ENOUGH

    def _begin(self, clock: StepClock) -> bool:
        found = hooked(self._modules)
        if found is None:
            return False
        self._steps_left -= 1
        self._offset = clock.index - self._began
        ledger = clock.ledger

        def in_steps() -> bool:
            return ledger.slots[ledger.stack[-1]][0] in WORK

        self._look = FixedLook(*found, self._guard, in_steps, self._trained, self._now)
        self._look_ns = self._now()
        return True

    def _take(self, look: FixedLook, step_ns: int) -> bool:
        """Return whether there is anything to look for."""
        self._own_ns += look.own_ns
        if not look.calls:  # an epoch was over
            return True
        if not self._worth:
            self._tries += 1
            self._worth = sum(call.ns for one in look.rounds for call in one.calls) >= WORTH * step_ns
            if not self._worth:
                if self._tries >= TRIES:
                    self._found = FixedFeatures(time_s=time.time())
                return self._tries < TRIES
        if look.rounds and not any(one.marks and any(call.results for call in one.calls) for one in look.rounds):
            return False  # on a device, or of types that cannot be read: nothing is known
        if not self._items.take(look.rounds, self._offset):
            self._steps_left = 0
        if self._items.expected >= self._tell_from:
            self._found, self._tell_from = self._items.told(), 2.0 * self._items.expected
        return True
