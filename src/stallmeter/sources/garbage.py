"""How long Python's garbage collector holds the training up, from the callbacks that it makes before and after a pass.

A pass holds the interpreter's lock and walks every object that could be part of a cycle: a fifth of a second for a
million of them. The callbacks take 1 µs a pass, most of which are short ones over the youngest objects. They are taken
out of a forked process, where nobody asks for what they note.

No callback of ours is written in Python. A signal that comes during a pass is noted by the interpreter, and its handler
is run with the next instruction of Python. If that is one of a callback, what the handler raises is raised there, and
the collector drops what its callbacks raise: Ctrl-C, or a limit set by SIGALRM, would be lost. So a callback is put
together of functions of C alone, which note when, where and what in a `deque`; the thread that asks for records
reckons with it. See `_noting`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import attrgetter, itemgetter, le, not_, or_, truth
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

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

MOST_MARKS = 2**16
"""Two for each pass since the last poll, which comes each second; so many take 10 MB, and the oldest are dropped."""

_Stack = tuple[tuple[CodeType, int], ...]
"""Code and line, the innermost first."""

_live: weakref.WeakSet[GarbageSource] = weakref.WeakSet()
_registered: list[int] = []


class _Begun(NamedTuple):
    """A pass begins."""

    at_ns: int
    caller: _Stack
    """Who has asked for it; empty where it begins by itself."""


class _Ended(NamedTuple):
    """A pass has ended."""

    at_ns: int
    thread: int
    slot: int
    """Of the ledger."""
    generation: int


class _Pulls(map):  # type: ignore[type-arg]
    """An iterator that is moved on by looking at an attribute of it."""

    pulled = property(next)


class _Noting:
    """``getattr(noting, phase, info)`` is what the collector calls: it calls with these two."""

    __slots__ = ("begun", "ended")

    def __init__(self, begun: _Pulls, ended: _Pulls) -> None:
        self.begun = begun
        self.ended = ended

    start = property(attrgetter("begun.pulled"))
    stop = property(attrgetter("ended.pulled"))


def _each(call: Callable[[], Any]) -> Iterator[Any]:
    """Return an iterator over what a function returns, without end."""
    return iter(call, None)


def _either(unless: Iterator[Any], when: Iterator[Any], is_so: Callable[[], bool]) -> Iterator[Any]:
    """Return an iterator that moves on one of two others: the second one when something is so."""
    return map(next, map((unless, when).__getitem__, _each(is_so)))


def _noting(
    marks: deque[_Begun | _Ended],
    stack: list[int],
    infos: dict[str, Any],
    now: Callable[[], int],
    is_called: Callable[[], bool],
) -> Callable[[str, dict[str, Any]], object]:
    """Return a callback that adds to ``marks``, in which no instruction of Python is run: see the module.

    Everything is an iterator over functions of C, the last of which `_Noting` moves on. That moves on those that it is
    made of, each of which calls its function. Of who has called the collector it is, in Python:

        frames = takewhile(truth, accumulate([frame, "f_back", "f_back", …], getattr))
        caller = tuple((f.f_code, f.f_lineno) for f in islice(frames, OUTERMOST)) if is_called() else ()

    Nothing may keep a frame after that, for it would keep the program's objects: `zip` would, which keeps its last.
    """
    frames = _each(partial(sys._getframe, 0))
    outwards = map(accumulate, map(chain, map(repeat, frames, repeat(1)), repeat(repeat("f_back"))), repeat(getattr))
    nearest = map(islice, map(takewhile, repeat(truth), outwards), repeat(OUTERMOST))
    callers = map(tuple, map(map, repeat(attrgetter("f_code", "f_lineno")), nearest))
    nobody: Iterator[_Stack] = repeat(())
    asked = _either(nobody, _either(callers, nobody, sys.is_finalizing), is_called)  # at the end there is no frame
    generations = map(itemgetter("generation"), map(infos.__getitem__, repeat("start")))
    slots = map(itemgetter(-1), repeat(stack))
    begun = zip(_each(now), asked, strict=True)
    ended = zip(_each(now), _each(threading.get_ident), slots, generations, strict=True)
    new = tuple.__new__
    return partial(
        getattr,
        _Noting(
            _Pulls(marks.append, map(partial(new, _Begun), begun)),
            _Pulls(marks.append, map(partial(new, _Ended), ended)),
        ),
    )


class GarbageSource:
    """The source of `GarbagePauses`. Begins to count when it is made, on the thread that trains.

    Args:
        ledger: Of the thread that makes this: tells what it was doing when a pass began.
        now: Monotonic nanoseconds.
        callbacks: Where the collector looks whom to call.
        is_called: Says at the beginning of a pass whether the program has asked for it. Of C, as is ``now``.
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
        self._list = callbacks
        self._thread = threading.get_ident()
        self._closed = False
        # Appended inside a pass, of which there is one at a time, and taken out by the sampler's thread: both ends of a
        # deque are atomic. The rest is the sampler's alone.
        self._marks: deque[_Begun | _Ended] = deque(maxlen=MOST_MARKS)
        infos: dict[str, Any] = {"start": {"generation": 0}}
        # One object each: a bound method is a new one each time it is asked for.
        self._callbacks: tuple[Any, ...] = (
            infos.__setitem__,  # what the collector says of a pass, which `getattr` has no use for
            _noting(self._marks, ledger.stack, infos, now, is_called or _is_called),
        )
        self._begun: _Begun | None = None
        """The pass that goes on."""
        self._passes = self._pause_ns = self._training_ns = self._waiting_ns = self._validation_ns = 0
        self._longest_ns = self._called_ns = 0
        self._callers: dict[_Stack, int] = {}
        """Nanoseconds by who asked."""
        self._whose: Whose | None = None
        self._told = (0, 0, 0, 0, 0, 0)
        self._due_s = float("-inf")
        self._be_called()
        _live.add(self)
        _clear_in_children()

    def sample(self, time_s: float) -> Sequence[GarbagePauses]:
        """Return the passes since the last record, once they are worth one.

        Args:
            time_s: Unix time of this poll.
        """
        if not self._closed:
            self._be_called()  # the program may have cleared the list
        self._reckon()
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
        """Take the callbacks out, wherever the program has moved them in the list."""
        for ours in self._callbacks:
            at = next((at for at, known in enumerate(self._list) if known is ours), None)
            if at is not None:
                del self._list[at]

    def _be_called(self) -> None:
        for ours in self._callbacks:
            if not any(known is ours for known in self._list):
                self._list.append(ours)

    def _reckon(self) -> None:
        for _ in range(len(self._marks)):
            mark = self._marks.popleft()
            if isinstance(mark, _Begun):
                self._begun = mark
            else:
                begun, self._begun = self._begun, None
                self._book(begun, mark)

    def _book(self, begun: _Begun | None, ended: _Ended) -> None:
        took_ns = ended.at_ns - begun.at_ns if begun is not None else 0  # None: the callbacks came inside this pass
        self._pause_ns += took_ns
        self._passes += ended.generation == WHOLE
        if ended.thread != self._thread:
            return
        bucket = self._ledger.slots[ended.slot][0]
        if bucket == START:
            return
        self._training_ns += took_ns
        if bucket == DATA_WAIT:
            self._waiting_ns += took_ns
        elif bucket == VALIDATION:
            self._validation_ns += took_ns
        self._longest_ns = max(self._longest_ns, took_ns)
        if begun is not None and begun.caller and ended.generation == WHOLE:
            self._book_called(begun.caller, took_ns)

    def _book_called(self, caller: _Stack, took_ns: int) -> None:
        self._called_ns += took_ns
        if caller in self._callers or len(self._callers) < MOST_PLACES:
            self._callers[caller] = self._callers.get(caller, 0) + took_ns

    def _called_at(self) -> dict[str, Any]:
        if not self._callers:
            return {}
        if self._whose is None:
            from .code.whose import Whose  # few programs call the collector

            self._whose = Whose.of_program()
        stack = max(self._callers, key=self._callers.__getitem__)
        named = [(self._whose.code(code), line) for code, line in stack]
        function, line = next(((f, line) for f, line in named if f.own), named[0])
        return {"called_file": function.file, "called_line": line, "called_function": function.name}


_first = itemgetter(0)
_is_called: Callable[[], bool] = partial(
    next,
    map(
        or_,
        map(not_, _each(gc.isenabled)),
        map(le, map(_first, _each(gc.get_count)), map(_first, _each(gc.get_threshold))),
    ),
)
"""Whether the pass that begins is one that nothing but a call can have begun.

By itself a pass begins when more objects were made than its threshold, and their count is set back after this.
"""


def _clear_in_children() -> None:
    """Have the callbacks taken out of forked processes. Handlers stay for the life of the process: there is one."""
    if not _registered and hasattr(os, "register_at_fork"):
        _registered.append(os.getpid())
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for source in list(_live):
        source.forget()
