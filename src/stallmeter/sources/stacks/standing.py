"""A training thread that stands: no step ends any more, and it is found in the same place again and again.

A collective that waits for a rank that will never come, a lock, a server that does not answer, a worker that hangs:
nothing fails, and there is no step to judge. What can be said is where the thread stands, and for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...machine.frames import Place, stack_of
from ...records import BUCKETS, CodeLook, CodeSpot, Event
from ...records.code import STANDING, STOOD
from ...records.steps import STANDS
from ...timing.clock import StepClock
from ...timing.ledger import VALIDATION
from ..code.fold import Frame, Seen, fold
from ..code.lines import LineTables
from ..code.whose import Whose

LEAST_S = 30.0
"""Nothing is said of a step before it has taken so long."""

LONGER = 5.0
"""Nor before it has taken so many times the longest one until then: some steps hold a validation or a checkpoint."""

AGAIN = 2.0
"""It is said again when it has taken so many times as long."""


class Standing:
    """The source of events, and looks, that say where the training thread stands.

    Args:
        clock: Of the training thread.
        say: Told once in a run, the first time that it stands.
        whose: Names functions; by default those of this process.
        look: Returns where a thread is.
    """

    name = "standing"

    def __init__(
        self,
        clock: StepClock,
        say: Callable[[str], None],
        whose: Whose | None = None,
        look: Callable[[int], tuple[Place, ...]] = stack_of,
    ) -> None:
        self._clock = clock
        self._say = say
        self._said = False
        self._whose = whose
        self._look = look
        self._lines = LineTables()
        self._index = -1
        self._since_ns = clock.ledger.now()
        self._longest_s = 0.0
        self._due_s = LEAST_S
        self._stands = False
        self._before: tuple[Place, ...] = ()
        """Where it was at the look before this one."""

    def sample(self, now_s: float) -> Sequence[Event | CodeLook]:
        """Return that it stands, and where, at the second look that finds it in one place."""
        index, now_ns = self._clock.index, self._clock.ledger.now()
        stood_s = (now_ns - self._since_ns) / 1e9
        if index != self._index or not self._clock.open:
            self._longest_s = max(self._longest_s, stood_s) if self._index > 0 else 0.0
            self._index, self._since_ns, self._before = index, now_ns, ()
            self._due_s = max(LEAST_S, LONGER * self._longest_s)
            return self._go_on(now_s)
        bucket, _ = self._clock.ledger.slots[self._clock.ledger.stack[-1]]
        # The first step holds what is compiled and started. A validation takes its time, and is no part of a step.
        if index < 1 or stood_s < self._due_s or bucket == VALIDATION:
            return ()
        stack, before = self._look(self._clock.ledger.thread), self._before
        self._before = stack
        if not stack or stack != before:
            return ()
        self._due_s = AGAIN * stood_s
        spots = self._spots(stack)
        detail = f"for {stood_s:.0f} s in {BUCKETS[bucket]}{_place(spots)}"
        if not self._said:
            self._said = True
            self._say(detail)
        self._stands = True
        look = _look(now_s, stood_s, tuple(replace(spot, wall_s=stood_s) for spot in spots))
        return Event(time_s=now_s, name=STANDS, detail=detail), look

    def _go_on(self, now_s: float) -> Sequence[CodeLook]:
        """Take back what was said, where steps go on. A loop that was left may have been left for that."""
        if not self._stands or not self._clock.open:
            return ()
        self._stands = False
        return (_look(now_s, 0.0, ()),)

    def _spots(self, stack: tuple[Place, ...]) -> tuple[CodeSpot, ...]:
        if self._whose is None:
            self._whose = Whose.of_program()
        frames = tuple(Frame(self._whose.code(code), self._lines.line(code, at)) for code, at in stack)
        return fold([Seen(frames, 1.0)]).spots[:1]

    def close(self) -> None:
        """Nothing is held."""


def _look(now_s: float, stood_s: float, spots: tuple[CodeSpot, ...]) -> CodeLook:
    return CodeLook(
        time_s=now_s, place="loop", rule="", bucket=STANDING, method=STOOD, seen=2, wall_s=stood_s, spots=spots
    )


def _place(spots: Sequence[CodeSpot]) -> str:
    """Return the place in words; empty where it has no name."""
    if not spots:
        return ""
    [spot] = spots
    call = f" ({spot.calls[0]})" if spot.calls else ""
    return f": {spot.function}, {spot.file}:{spot.line}{call}" if spot.file else f": {spot.function}{call}"
