"""Whose turn it is: one thread of one process moves a ledger, and in it one iteration makes the steps."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Protocol

from ..machine.frames import running_threads
from .clock import StepClock

FORKED = (
    "this process was forked from the one that is recorded; call stallmeter.watch(loader), or make a Monitor, in the "
    "process that trains"
)
IN_WORKER = "this is a worker process of a DataLoader; watch the loader in the process that trains"
CLOSED = "its monitor has been closed; make a new one"
OTHER_THREAD = (
    "another thread is in the middle of an iteration, and one monitor times one thread at a time; give each thread "
    "that trains a Monitor of its own"
)
_all: weakref.WeakSet[Turns] = weakref.WeakSet()
_taking = threading.Lock()


class Iteration(Protocol):
    """One epoch of a watched loader."""

    @property
    def loader(self) -> object:
        """What is iterated over."""

    thread: int
    """Who may ask for batches; 0 when another thread has taken its turn since."""

    def follow(self) -> None:
        """Another iteration makes the steps from now on."""
        ...


class Turns:
    """Who may move a ledger: one thread at a time, in the process that made it, and which iteration makes the steps.

    A thread has it from the beginning of an iteration to its end, and afterwards until another one begins one.

    Args:
        clock: What is moved.
        tell: Called with the reason when something is passed through untimed; says it once.
        closed: Whether the monitor has ended.
        why_not: Why nothing may be timed at all.
    """

    def __init__(
        self,
        clock: StepClock,
        tell: Callable[[str], None],
        *,
        closed: Callable[[], bool] = lambda: False,
        why_not: str | None = None,
    ) -> None:
        self.clock = clock
        self._tell = tell
        self._closed = closed
        self._why_not = why_not
        self._thread = 0
        self._leader: Callable[[], Iteration | None] = _nobody
        self._running: weakref.WeakSet[Iteration] = weakref.WeakSet()
        self._owed: deque[Callable[[], None]] = deque()
        self.unused = -1
        """Step whose batch is not used: another loader, of a zip, had none to go with it."""
        self.single = 0
        """Iterations, one after the other, that made the steps and were left after one batch."""
        _all.add(self)

    @property
    def leader(self) -> Iteration | None:
        """The iteration that makes the steps; None while there is none."""
        return self._leader()

    def take(self) -> bool:
        """Let the calling thread move the ledger from now on; False, with a warning, when it must not."""
        why_not = self._why_not or (CLOSED if self._closed() else None)
        if why_not is None:
            with _taking:
                why_not = self._hand_over(get_ident())
        if why_not is not None:
            self._tell(why_not)
            return False
        while self._owed:
            self._owed.popleft()()
        return True

    def may_move(self) -> bool:
        """Whether the calling thread may move the ledger now, outside every iteration, too; if not, with a warning."""
        return (self._why_not is None and self._thread in (0, get_ident())) or self.take()

    def has(self) -> bool:
        """Whether it is the calling thread's turn."""
        return self._thread == get_ident()

    def owe(self, call: Callable[[], None]) -> None:
        """Have something done by the next thread that takes its turn, because this one must not move the ledger."""
        self._owed.append(call)

    def lead(self, iteration: Iteration) -> None:
        """Let an iteration make the steps from now on, and the one that made them until now add its waits."""
        before = self.leader
        if before is not None and before is not iteration:
            before.follow()
        self._leader = weakref.ref(iteration)

    def add(self, iteration: Iteration) -> None:
        """Know of an iteration."""
        self._running.add(iteration)

    def finished(self, iteration: Iteration) -> None:
        """An iteration has come to its end."""
        leader = self.leader
        if leader is iteration or leader is None:
            self._leader = _nobody

    def orphan(self) -> None:
        """In a process that was forked: nobody records what happens here."""
        self._why_not = FORKED
        self._revoke(-1)

    def _hand_over(self, to: int) -> str | None:
        if self._thread == to:
            return None
        if self._thread and (self.clock.open or len(self.clock.ledger.stack) > 1):
            if self._thread in running_threads():
                return OTHER_THREAD
            self.clock.pause()  # it died in the middle
            self.clock.ledger.unwind()
        self._revoke(to)
        return None

    def _revoke(self, thread: int) -> None:
        # Under `_taking`. An iteration of the thread before reads its own `thread` at the next batch, without the lock:
        # that thread was found between two iterations, or dead, so it is not in the middle of one.
        for iteration in list(self._running):
            iteration.thread = 0
        self._leader = _nobody
        self._thread = self.clock.ledger.thread = thread


def _nobody() -> None:
    return None


def _after_fork() -> None:
    global _taking
    _taking = threading.Lock()
    for turns in list(_all):
        turns.orphan()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
