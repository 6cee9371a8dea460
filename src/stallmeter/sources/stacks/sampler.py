"""A thread that looks at another thread's stack, while that one is in a bucket of the ledger that is in question.

The training thread pays nothing for being found: what it is in, and since when, is what it books its time by anyway.

A look needs the interpreter's lock. Where the training thread holds it in Python code, a thread that asks for it is
let in after the switch interval, by default 5 ms, or when some call gives the lock up before: it would then see that
call again and again, and hardly ever the code that holds the lock. So the interval is `SWITCH_S` while stacks are
taken. Where a function of C holds the lock, the look comes when that function has returned, and still sees the line
that called it. Where other threads of the program compute the interval stays what it is: with a short one they hold up
the training less, and what is looked at would be another program. A look stands for all points of an even grid, shaken
by chance, that have passed since the one before: a function that made it late counts for those points, and not for its
own length once more.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from ...machine.frames import CAN_LOOK, Stack, stack_after
from ...timing.clock import StepClock
from ...timing.ledger import (
    BACKWARD,
    CALLBACKS,
    CHECKPOINT,
    COMPUTE,
    FIRST_WAIT,
    FORWARD,
    H2D,
    LOGGING,
    LOOP,
    OPTIMIZER,
    OTHER,
    START,
    VALIDATION,
    WORKER_STARTUP,
)
from .others import at_work_beside, stand_in_line

SWITCH_S = 0.000053
"""Switch interval while stacks are taken: with 5 ms, Python code that took 18 % of the time was seen in 1 % of the
looks, with this in 21 % (our measurement, beside calls that give the lock up). Pieces of Python of 126 µs between
operators are seen for half of their time; with 23 µs and waits that end on time for nine tenths, but then the looker
wakes so often, while a call of C holds the lock, that threads which spin on the CPUs let it in too late: of a call of
3 ms 65 % became 45. An odd number, known by its value."""

FINE_S = 0.01
"""Time between two looks while something in question is open."""

DENSE_S = 0.02
"""Most time between two looks then: a place needs some dozens of them, and no more than a few hundred are taken."""

COARSE_S, COARSEST_S = 0.05, 0.25
"""Time between two glances at what is open, at first and later on: a checkpoint is found while it is written."""

THINNING = 1 / 400
"""Part of the time since the beginning that lies between two glances."""

START_THINNING = 1 / 500
"""The same of looks before the steps are steady: a start of an hour has as many as one of a minute, nearly."""

COST = 0.01
"""Share of the time that looks may take while something is in question, before they come less often."""

HANDOVER_S = 0.00006
"""What a look costs the training thread besides the looker's CPU time: giving the lock up and getting it back."""

LONG = 3.0
"""A step that has gone on for so many medians is a long one; as in `stallmeter.rules.step_outliers`."""

OPEN_S = 0.05
"""A callback or a logger that has been open for so long is worth a look, whatever came before."""

WORK = frozenset({H2D, FORWARD, BACKWARD, OPTIMIZER, LOOP, COMPUTE})
"""Buckets of the steps' own work."""

RARE = frozenset({CALLBACKS, LOGGING, CHECKPOINT, VALIDATION, WORKER_STARTUP, OTHER})
"""Buckets that may be open seldom, and for long."""

_before: list[float] = []
"""The interpreter's own switch interval while ours is set."""

STEADY, LONG_STEP = -1, -2
"""Phases that are no step's number."""


class Look(NamedTuple):
    """One stack, and the time that it stands for."""

    slot: int
    """Of the ledger."""
    phase: int
    """Number of the step while steps are not steady, `STEADY`, or `LONG_STEP`."""
    weight_ns: int
    stack: Stack
    helpers: tuple[tuple[int, Stack], ...] = ()
    """The other threads that had something to do."""
    in_line: bool = False
    """Whether some of these stood in line for a lock."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be looked into."""

    slots: frozenset[int] = frozenset()
    """Of the ledger: each time they are open."""
    first_steps: bool = True
    """Whether steps are not known to be steady: the start and all work is looked into."""
    enough: frozenset[int] = frozenset()
    """Slots of which there are looks enough: not even when they are open for long."""
    median_ns: int | None = None
    """Time of a step; None where it is not known yet."""
    long_ones: bool = True
    """Whether long steps are looked into; where there are looks enough of them, they are still none of the others."""
    crowded: bool = False
    """Whether other threads of the program compute: how fast they hand the lock over is then part of the program."""
    short_interval: bool = False
    """Whether the interpreter's switch interval is to be short, whatever is looked into."""
    often: bool = False
    """Whether long steps are too short to be met by a glance now and then."""

    @property
    def dense(self) -> bool:
        """Whether something is waited for that may be open for a few milliseconds only."""
        return bool(self.slots) or self.often


class StackSampler:
    """Looks; one thread of its own appends to `looks`, another takes them out.

    Args:
        clock: Of the thread that is looked at.
        own_slot: Of the ledger: stallmeter's own hooks, which are no finding.
        now: Monotonic nanoseconds, of the same clock as the ledger's.
        thread_s: CPU seconds of the calling thread.
    """

    def __init__(
        self,
        clock: StepClock,
        own_slot: int,
        *,
        now: Callable[[], int] = time.perf_counter_ns,
        thread_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._ledger = clock.ledger
        self._own_slot = own_slot
        self._now = now
        self._thread_s = thread_s
        # Replaced whole by the thread that decides, read once in each look.
        self.wanted = Wanted()
        # Appended by this thread, popped by the other: each is atomic. What nobody takes is dropped.
        self.looks: deque[Look] = deque(maxlen=20_000)
        self.glances = 0
        """How often it woke."""
        self._random = random.Random(0)  # noqa: S311 - its own: the program's numbers stay what they are
        self._interval_ns = int(COARSE_S * 1e9)
        self._due_ns = now()
        self._dense = False
        """Whether the last grid was fine, which is then that of the looks."""
        self._step = (-1, 0)
        """The step that was seen at work, and since when it was."""
        self._switch_s: float | None = None
        self._own_s: float | None = None
        """The interpreter's own switch interval before ours was set for the first time."""
        # Held until the end. An event's wait is Python code that makes a lock for each: most of what a glance takes.
        self._ended = threading.Lock()
        self._ended.acquire()
        self._stands = partial(getattr, clock.ledger, "last"), partial(itemgetter(-1), clock.ledger.stack)
        """Return since when the thread has been in what is open, and the slot of that."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look; nothing happens where the interpreter cannot tell stacks."""
        if self._thread is None and CAN_LOOK:
            self._due_ns = self._now()
            thread = threading.Thread(target=self._run, name="stallmeter-stacks", daemon=True)
            thread.start()
            self._thread = thread  # only what was started can be joined

    def end(self) -> None:
        """Look no more."""
        with contextlib.suppress(RuntimeError):  # it has ended before
            self._ended.release()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(COARSEST_S)
        self._switch(None)

    def _run(self) -> None:
        while self.look(max(0.0, (self._due_ns - self._now()) / 1e9)):
            pass
        self._switch(None)

    def look(self, wait_s: float = 0.0) -> bool:
        """Wait, glance at what is open, and take the stack where that is in question; returns whether to go on."""
        ledger, was_dense = self._ledger, self._dense
        wait = partial(self._ended.acquire, timeout=wait_s)
        ended, (last, slot, got), stack = stack_after(wait, ledger.thread, (*self._stands, self._now))
        if not ended:
            self._take(last, slot, got, stack, was_dense=was_dense)
        return not ended

    def _take(self, last: int, slot: int, got: int, stack: Stack, *, was_dense: bool) -> None:
        due, points, interval = self._due_ns, self._pass_points(got), self._interval_ns
        self.glances += 1
        ledger, wanted = self._ledger, self.wanted
        phase = self._phase(wanted, slot, got, last)
        self._pace(wanted, got, dense=phase is not None or wanted.dense)
        if phase is None or not stack:
            return
        if not was_dense:
            weight = min(interval, got - last)  # of what was open before the first look nothing else is known
        elif points == 1:
            weight = interval if due >= last else 0
        else:
            weight = min(points * interval, got - last)
        if weight > 0:
            helpers = () if ledger.slots[slot][0] == START else at_work_beside(ledger.thread)
            self.looks.append(Look(slot, phase, weight, stack, helpers, stand_in_line(helpers)))

    def _pass_points(self, got: int) -> int:
        """Return how many points of the grid have passed, and set the next one."""
        behind = got - self._due_ns
        whole = max(0, behind) // self._interval_ns
        self._due_ns += whole * self._interval_ns
        points = whole
        while self._due_ns <= got:
            self._due_ns += int(self._interval_ns * (0.5 + self._random.random()))
            points += 1
        return points

    def _pace(self, wanted: Wanted, got: int, *, dense: bool) -> None:
        elapsed_s = (got - self._ledger.origin) / 1e9
        if dense:
            cost_s = self._thread_s() / self.glances + HANDOVER_S
            pause_s = max(FINE_S, min(DENSE_S, cost_s / COST))
            if wanted.first_steps:
                pause_s = max(pause_s, elapsed_s * START_THINNING)
        else:
            # The interval is set in glances: while it is tried they stay frequent.
            pause_s = COARSE_S if wanted.crowded else min(COARSEST_S, max(COARSE_S, elapsed_s * THINNING))
        interval = int(pause_s * 1e9)
        if interval < self._interval_ns:  # no point of the coarse grid must be waited for
            self._due_ns = min(self._due_ns, got + int(interval * (0.5 + self._random.random())))
        self._interval_ns, self._dense = interval, dense
        self._switch(SWITCH_S if wanted.short_interval or (dense and not wanted.crowded) else None)

    def _phase(self, wanted: Wanted, slot: int, got: int, last: int) -> int | None:
        """Return the phase that a look would belong to; None where none is wanted."""
        clock, ledger = self._clock, self._ledger
        index = clock.index
        bucket = ledger.slots[slot][0]
        if bucket not in WORK:
            self._step = (-1, 0)
            if slot == self._own_slot or slot in wanted.enough:
                return None
            if bucket == START and wanted.first_steps:
                return index
            is_long = got - last >= OPEN_S * 1e9 or bucket in (VALIDATION, CHECKPOINT)
            rare = bucket in RARE or slot == FIRST_WAIT
            return STEADY if slot in wanted.slots or (rare and is_long) else None
        if wanted.first_steps and clock.open:
            return index
        if wanted.median_ns is not None and self._age(index, got, last) > LONG * wanted.median_ns:
            return LONG_STEP if wanted.long_ones else None
        return STEADY if slot in wanted.slots else None

    def _age(self, index: int, got: int, last: int) -> int:
        """Return for how long the step's own work has gone on: at least, where it has spans."""
        if self._step[0] != index:
            self._step = index, max(last, got - self._interval_ns)
        return got - self._step[1] if self._clock.open else 0

    def _switch(self, to_s: float | None) -> None:
        """Set the interpreter's switch interval, or give it back its own."""
        now_s = sys.getswitchinterval()
        if self._switch_s is None and self._own_s is not None and _is_ours(now_s):
            # The program has read ours, set another one, and given ours back as its own.
            sys.setswitchinterval(self._own_s)
            now_s = self._own_s
        if to_s is not None:
            if self._switch_s is None and now_s > to_s:
                self._own_s = self._own_s or now_s
                self._switch_s = now_s
                _before.append(now_s)
                sys.setswitchinterval(to_s)
        elif self._switch_s is not None:
            before_s, self._switch_s = self._switch_s, None
            _before.clear()
            if _is_ours(now_s):  # else the program has set another one
                sys.setswitchinterval(before_s)


def _is_ours(interval_s: float) -> bool:
    return abs(interval_s - SWITCH_S) < 1.5e-6  # it is kept in whole microseconds


def _after_fork() -> None:
    """In a worker that was forked meanwhile: nobody looks there, and nobody gives the interval back."""
    if _before:
        sys.setswitchinterval(_before.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
