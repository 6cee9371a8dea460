"""How long Python's garbage collector holds the training up, from the callbacks that it makes before and after a pass.

A pass holds the interpreter's lock and walks every object that could be part of a cycle: a fifth of a second for a
million of them. The callbacks take 1 µs a pass, most of which are short ones over the youngest objects. They do nothing
in a forked process, where nobody asks for what they count.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ..records import GarbagePauses
from ..timing.ledger import DATA_WAIT, START, VALIDATION, Ledger

if TYPE_CHECKING:
    from .code.whose import Whose

WORTH_A_RECORD_S = 0.001
"""Less than this is kept until there is more: a pass over the youngest objects takes 10 µs."""
WORTH_A_SHARE = 0.002
"""So is less than this part of all so far. A long run has a few thousand such records."""
RECORD_EVERY_S = 60.0
"""There is a record at least so often: that nothing was collected is worth knowing, too."""
WHOLE = 2
"""Generation of a pass over all objects."""
LONG_PASS_S = 0.01
"""After a pass this long the blocks on the heap are counted, which takes a hundredth of it."""

OUTERMOST = 12
"""So many calls are looked through for the user's own function, from the one that asks for a pass outwards."""
MOST_PLACES = 16
"""Of so many places it is counted what they ask for; what others do is counted without a place."""

_Stack = tuple[tuple[CodeType, int], ...]
"""Code and line, the innermost first."""

_live: weakref.WeakSet[GarbageSource] = weakref.WeakSet()
_registered: list[int] = []


class GarbageSource:
    """The source of `GarbagePauses`. Begins to count when it is made, on the thread that trains.

    Args:
        ledger: Of the thread that makes this: tells what it was doing when a pass began.
        now: Monotonic nanoseconds.
        callbacks: Where the collector looks whom to call.
        is_called: Says at the beginning of a whole pass whether the program has asked for it.
    """

    name = "garbage collector"

    def __init__(
        self,
        ledger: Ledger,
        *,
        now: Callable[[], int] = time.perf_counter_ns,
        callbacks: list[Any] = gc.callbacks,
        is_called: Callable[[], bool] | None = None,
    ) -> None:
        self._ledger = ledger
        self._now = now
        self._callbacks = callbacks
        self._is_called = is_called or _is_called
        self._thread = threading.get_ident()
        self._closed = False
        # Written inside a pass, of which there is one at a time, and read by the sampler's thread: each is one number
        # that only grows, so that a difference of two readings loses nothing. The longest pass is set back between
        # two passes; one that ends in that moment is missing there, and nowhere else.
        self._began_ns = 0
        self._passes = self._pause_ns = self._training_ns = self._waiting_ns = self._validation_ns = 0
        self._longest_ns = self._called_ns = 0
        self._caller: _Stack | None = None
        """Who asked for the pass that goes on."""
        self._callers: dict[_Stack, int] = {}
        """Nanoseconds by who asked."""
        self._whose: Whose | None = None
        self._told = (0, 0, 0, 0, 0, 0)
        self._due_s = float("-inf")
        self._callback = self._on_pass  # one object: a bound method is a new one each time it is asked for
        callbacks.append(self._callback)
        _live.add(self)
        _clear_in_children()

    def sample(self, time_s: float) -> Sequence[GarbagePauses]:
        """Return the passes since the last record, once they are worth one.

        Args:
            time_s: Unix time of this poll.
        """
        if not self._closed and not any(known is self._callback for known in self._callbacks):
            self._callbacks.append(self._callback)  # the program has cleared the list
        read = (
            self._passes,
            self._pause_ns,
            self._training_ns,
            self._waiting_ns,
            self._validation_ns,
            self._called_ns,
        )
        passes, pause_ns, training_ns, waiting_ns, validation_ns, called_ns = (
            new - old for new, old in zip(read, self._told, strict=True)
        )
        if time_s < self._due_s and pause_ns < max(WORTH_A_RECORD_S * 1e9, WORTH_A_SHARE * self._told[1]):
            return ()
        self._due_s = time_s + RECORD_EVERY_S
        longest_ns, self._longest_ns = self._longest_ns, 0
        self._told = read
        return (
            GarbagePauses(
                time_s=time_s,
                passes=passes,
                pause_s=pause_ns / 1e9,
                training_s=training_ns / 1e9,
                waiting_s=waiting_ns / 1e9,
                validation_s=validation_ns / 1e9,
                longest_s=longest_ns / 1e9,
                blocks=sys.getallocatedblocks() if longest_ns >= LONG_PASS_S * 1e9 else None,
                automatic=gc.isenabled(),
                called_s=called_ns / 1e9,
                **self._called_at(),
            ),
        )

    def close(self) -> None:
        """Be called no more."""
        self._closed = True
        self.forget()

    def forget(self) -> None:
        """Take the callback out, wherever the program has moved it in the list."""
        for at, known in enumerate(self._callbacks):
            if known is self._callback:
                del self._callbacks[at]
                return

    def _on_pass(self, phase: str, info: dict[str, Any]) -> None:
        now = self._now()
        if phase == "start":
            self._began_ns = now
            if info["generation"] == WHOLE and threading.get_ident() == self._thread and self._is_called():
                self._caller = _stack()
            return
        caller, self._caller = self._caller, None
        took_ns = now - self._began_ns if self._began_ns else 0  # 0: the callback came into the list inside this pass
        self._began_ns = 0
        self._pause_ns += took_ns
        self._passes += info["generation"] == WHOLE
        if threading.get_ident() != self._thread:
            return
        ledger = self._ledger
        bucket = ledger.slots[ledger.stack[-1]][0]
        if bucket == START:
            return
        self._training_ns += took_ns
        if caller is not None:
            self._called_ns += took_ns
            if caller in self._callers or len(self._callers) < MOST_PLACES:
                self._callers[caller] = self._callers.get(caller, 0) + took_ns
        if bucket == DATA_WAIT:
            self._waiting_ns += took_ns
        elif bucket == VALIDATION:
            self._validation_ns += took_ns
        if took_ns > self._longest_ns:
            self._longest_ns = took_ns

    def _called_at(self) -> dict[str, Any]:
        callers = list(self._callers.items())  # in one go: the training thread may add one meanwhile
        if not callers:
            return {}
        if self._whose is None:
            from .code.whose import Whose  # few programs call the collector

            self._whose = Whose.of_program()
        stack, _ = max(callers, key=lambda caller: caller[1])
        named = [(self._whose.code(code), line) for code, line in stack]
        function, line = next(((f, line) for f, line in named if f.own), named[0])
        return {"called_file": function.file, "called_line": line, "called_function": function.name}


def _is_called() -> bool:
    """Whether the pass that begins is one that nothing but a call can have begun.

    By itself a pass begins when more objects were made than its threshold, and their count is set back after this.
    """
    return not gc.isenabled() or gc.get_count()[0] <= gc.get_threshold()[0]


def _stack() -> _Stack:
    """Return who has called the collector: it is the caller of its callback."""
    found: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(found) < OUTERMOST:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _clear_in_children() -> None:
    """Have the callbacks taken out of forked processes. Handlers stay for the life of the process: there is one."""
    if not _registered and hasattr(os, "register_at_fork"):
        _registered.append(os.getpid())
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for source in list(_live):
        source.forget()
