"""How long Python's garbage collector holds the training up, from the callbacks that it makes before and after a pass.

A pass holds the interpreter's lock and walks every object that could be part of a cycle: a fifth of a second for a
million of them. The callbacks take 4 to 6 µs a pass, most of which are short ones over the youngest objects. A program
that makes objects all the time has such a pass every 70 µs: there passes are noted for a few milliseconds now and then,
which stand for the others, that Python counts. They are taken out of a forked process, where nobody asks for what they
note.

No callback of ours is written in Python. A signal that comes during a pass is noted by the interpreter, and its handler
is run with the next instruction of Python. If that is one of a callback, what the handler raises is raised there, and
the collector drops what its callbacks raise: Ctrl-C, or a limit set by SIGALRM, would be lost. So a callback is put
together of functions of C alone, which note when, where and what in an array; the thread that asks for records
reckons with it. See `_Marks`.

Nothing that a callback makes may live on, not even until the next one. Passes come while the program makes objects. One
of ours among them is in the way when they are freed, and its place in the list of free ones is another afterwards: in
time the program's own come to lie in any order, no longer one behind the other. A loop that sorts 12,000 tuples a step
took 1.27 times as long beside two small tuples for each pass that were kept for a second, and went on to when they were
no longer made.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, count, islice, repeat, takewhile
from operator import add, attrgetter, is_, is_not, itemgetter, le, mod, not_, or_, setitem, sub, truth
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
"""Two for each pass since the last poll, which comes each second; so many take 3 MB, and the oldest are dropped."""
MOST_A_SECOND = 1000
"""So many passes are all noted, which takes 0.6 % of the time at the most."""
GLANCE_S = 0.02
"""Where there are more they are noted for so long at each poll; our choice."""
_NUMBERS = 4
"""Of a mark: nanoseconds, thread, slot of the ledger, generation."""
_BEGINS = -1
"""In place of the generation: a pass begins."""

_Stack = tuple[tuple[CodeType, int], ...]
"""Code and line, the innermost first."""

_live: weakref.WeakSet[GarbageSource] = weakref.WeakSet()
_registered: list[int] = []


class _Mark(NamedTuple):
    """A pass begins, or has ended."""

    caller: _Stack
    """Who has asked for it, at its beginning; empty where it begins by itself."""
    at_ns: int
    thread: int
    slot: int
    """Of the ledger."""
    generation: int
    """`_BEGINS` at its beginning."""


class _Spent(NamedTuple):
    """What passes took."""

    passes: int = 0
    whole: int = 0
    """Of them those over all objects."""
    pause_ns: int = 0
    training_ns: int = 0
    waiting_ns: int = 0
    validation_ns: int = 0
    called_ns: int = 0

    def plus(self, other: _Spent) -> _Spent:
        """Return both together."""
        return _Spent(*map(add, self, other))

    def less(self, other: _Spent) -> _Spent:
        """Return what is more than the other."""
        return _Spent(*map(sub, self, other))

    def of(self, passes: int) -> _Spent:
        """Return what so many passes like these take."""
        return _Spent(*(round(each * passes / self.passes) for each in self))


class _Pulls(map):  # type: ignore[type-arg]
    """An iterator that is moved on by looking at an attribute of it."""

    pulled = property(next)


class _Noting:
    """``noting[phase] = info`` is what the collector does in a callback: it calls with these two.

    Where it looks for the function to call with them something is noted. That they are called with does nothing. (With
    the name of the phase as an attribute's, each new name of one takes the place of the last in a cache of the
    interpreter's, and lives on.)
    """

    __slots__ = ("noted",)

    def __init__(self, noted: Iterator[object]) -> None:
        self.noted = _Pulls(itemgetter(-1), zip(noted, repeat(is_), strict=True))

    __setitem__ = property(attrgetter("noted.pulled"))


def _each(call: Callable[[], Any]) -> Iterator[Any]:
    """Return an iterator over what a function returns, without end."""
    return iter(call, None)


def _either(unless: Iterator[Any], when: Iterator[Any], is_so: Callable[[], bool]) -> Iterator[Any]:
    """Return an iterator that moves on one of two others: the second one when something is so."""
    return map(next, map((unless, when).__getitem__, _each(is_so)))


class _Marks:
    """What the callbacks have noted of passes: the last so many marks, a column of numbers for each part of them.

    Args:
        most: Marks that are kept.
        stack: Of the ledger.
        now: Monotonic nanoseconds.
        is_called: Says at the beginning of a pass whether the program has asked for it. Of C, as is ``now``.
    """

    def __init__(self, most: int, stack: list[int], now: Callable[[], int], is_called: Callable[[], bool]) -> None:
        self._most = most
        self._callers: list[_Stack] = [()] * most
        self._columns: tuple[Any, ...] = (self._callers, *(array("q", [0]) * most for _ in range(_NUMBERS)))
        # Each column counts the rows by itself: all are written to in each mark.
        self._rows = [map(mod, count(), repeat(most)) for _ in self._columns]
        self._noted = array("q", [0])
        """Marks so far, also those that are no longer kept. Written last: what is counted is there."""
        self._counts = map(setitem, repeat(self._noted), repeat(0), count(1))
        self._taken = 0
        infos: dict[str, Any] = {"start": None, "stop": None}
        # One object each: a bound method is a new one each time it is asked for.
        self.callbacks: tuple[Any, ...] = (
            infos.__setitem__,  # what the collector says of a pass, until that is noted
            self._noting(stack, infos, now, is_called),
        )

    def take(self) -> list[_Mark]:
        """Return the marks since the last call, without those that were overwritten, in the order of time."""
        noted = self._noted[0]
        first = max(self._taken, noted - self._most)
        rows = [at % self._most for at in range(first, noted)]
        marks = [_Mark(*(column[row] for column in self._columns)) for row in rows]
        self._taken = noted
        # Passes of other threads go on meanwhile. What they have overwritten is no mark any more.
        return marks[max(0, self._noted[0] - self._most - first) :]

    def _noting(
        self, stack: list[int], infos: dict[str, Any], now: Callable[[], int], is_called: Callable[[], bool]
    ) -> Callable[[str, dict[str, Any]], object]:
        """Return a callback that notes a mark, in which no instruction of Python is run: see the module.

        Everything is an iterator over functions of C, the last of which `_Noting` moves on. That moves on those that it
        is made of, each of which calls its function. Of who has called the collector it is, in Python:

            frames = takewhile(truth, accumulate([frame, "f_back", "f_back", …], getattr))
            caller = tuple((f.f_code, f.f_lineno) for f in islice(frames, OUTERMOST)) if is_called() else ()

        Nothing may keep a frame after that, for it would keep the program's objects, nor anything else that was made
        meanwhile: `zip` and `chain` would, which keep their last.
        """
        frames = _each(partial(sys._getframe, 0))
        backwards = map(chain, map(repeat, frames, repeat(1)), repeat(repeat("f_back")))
        outwards = map(accumulate, backwards, repeat(getattr))
        nearest = map(islice, map(takewhile, repeat(truth), outwards), repeat(OUTERMOST))
        callers = map(tuple, map(map, repeat(attrgetter("f_code", "f_lineno")), nearest))
        nobody: Iterator[_Stack] = repeat(())
        asked = _either(nobody, _either(callers, nobody, sys.is_finalizing), is_called)  # at the end there is no frame
        generations = map(itemgetter("generation"), map(infos.__getitem__, repeat("stop")))
        slots = map(itemgetter(-1), repeat(stack))
        nothing = repeat(0)
        begun = self._writing(infos, "start", (asked, _each(now), nothing, nothing, repeat(_BEGINS)))
        ended = self._writing(infos, "stop", (nobody, _each(now), _each(threading.get_ident), slots, generations))
        is_stop = map(is_not, map(infos.__getitem__, repeat("stop")), repeat(None))
        return partial(setitem, _Noting(map(next, map((begun, ended).__getitem__, is_stop))))

    def _writing(self, infos: dict[str, Any], phase: str, values: Sequence[Iterator[Any]]) -> Iterator[object]:
        """Return an iterator that writes a mark. There is one pass at a time, so one writer."""
        columns = zip(self._columns, self._rows, values, strict=True)
        written = [map(setitem, repeat(column), rows, value) for column, rows, value in columns]
        forgotten = map(setitem, repeat(infos), repeat(phase), repeat(None))
        return zip(*written, self._counts, forgotten, strict=True)


def _passes_by_generation() -> Sequence[int]:
    return [generation["collections"] for generation in gc.get_stats()]


class GarbageSource:
    """The source of `GarbagePauses`. Begins to count when it is made, on the thread that trains.

    Args:
        ledger: Of the thread that makes this: tells what it was doing when a pass began.
        now: Monotonic nanoseconds.
        callbacks: Where the collector looks whom to call.
        is_called: Says at the beginning of a pass whether the program has asked for it. Of C, as is ``now``.
        counts: Returns how many passes there were of each generation.
        wait: Waits for so many seconds.
    """

    name = "garbage collector"

    def __init__(
        self,
        ledger: Ledger,
        *,
        now: Callable[[], int] = time.perf_counter_ns,
        callbacks: list[Any] = gc.callbacks,
        is_called: Callable[[], bool] | None = None,
        counts: Callable[[], Sequence[int]] = _passes_by_generation,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._ledger = ledger
        self._now = now
        self._counts = counts
        self._wait = wait
        self._list = callbacks
        self._thread = threading.get_ident()
        self._closed = False
        # Written inside a pass, of which there is one at a time. The rest is the sampler's alone.
        self._marks = _Marks(MOST_MARKS, ledger.stack, now, is_called or _is_called)
        self._begun: _Mark | None = None
        """The pass that goes on."""
        self._spent = _Spent()
        self._seen: dict[int, _Spent] = {}
        """Of each generation, what was noted of it since the training began."""
        self._missed: Counter[int] = Counter()
        """Passes of each generation that were not noted, and are not reckoned with."""
        self._counted = list(counts())
        self._polled_ns = now()
        self._longest_ns = 0
        self._callers: dict[_Stack, int] = {}
        """Nanoseconds by who asked."""
        self._whose: Whose | None = None
        self._told = _Spent()
        self._due_s = float("-inf")
        self._be_called()
        _live.add(self)
        _clear_in_children()

    def sample(self, time_s: float) -> Sequence[GarbagePauses]:
        """Return the passes since the last record, once they are worth one.

        Args:
            time_s: Unix time of this poll.
        """
        counted = list(self._counts())  # before: what is noted meanwhile is no pass that was missed
        self._reckon()
        if not self._closed:
            self._note_the_next(counted)
        new = self._spent.less(self._told)
        if time_s < self._due_s and new.pause_ns < max(WORTH_A_RECORD_S * 1e9, WORTH_A_SHARE * self._told.pause_ns):
            return ()
        self._due_s = time_s + RECORD_EVERY_S
        longest_ns, self._longest_ns = self._longest_ns, 0
        self._told = self._spent
        return (
            GarbagePauses(
                time_s=time_s,
                passes=new.whole,
                pause_s=new.pause_ns / 1e9,
                training_s=new.training_ns / 1e9,
                waiting_s=new.waiting_ns / 1e9,
                validation_s=new.validation_ns / 1e9,
                longest_s=longest_ns / 1e9,
                blocks=sys.getallocatedblocks() if longest_ns >= LONG_PASS_S * 1e9 else None,
                automatic=gc.isenabled(),
                called_s=new.called_ns / 1e9,
                **self._called_at(),
            ),
        )

    def close(self) -> None:
        """Be called no more."""
        self._closed = True
        self.forget()

    def forget(self) -> None:
        """Take the callbacks out, wherever the program has moved them in the list."""
        for ours in self._marks.callbacks:
            at = next((at for at, known in enumerate(self._list) if known is ours), None)
            if at is not None:
                del self._list[at]

    def _be_called(self) -> None:
        for ours in self._marks.callbacks:
            if not any(known is ours for known in self._list):
                self._list.append(ours)

    def _note_the_next(self, counted: list[int]) -> None:
        """Note passes where they are rare, else some of them, and reckon with the others.

        Args:
            counted: Passes of each generation until now.
        """
        now_ns = self._now()
        passed = [new - old for new, old in zip(counted, self._counted, strict=True)]
        passed_s = (now_ns - self._polled_ns) / 1e9
        self._counted, self._polled_ns = counted, now_ns
        for generation, passes in enumerate(passed):
            self._missed[generation] += passes
            seen = self._seen.get(generation)
            if seen is not None and self._missed[generation] > 0:
                self._spent = self._spent.plus(seen.of(self._missed.pop(generation)))
        if self._ledger.slots[self._ledger.stack[-1]][0] == START:
            self._missed.clear()  # those before the training are no loss of it
        self._be_called()  # the program may have cleared the list
        if sum(passed) > MOST_A_SECOND * max(1.0, passed_s):
            self._wait(GLANCE_S)
            self.forget()
            self._begun = None

    def _reckon(self) -> None:
        for mark in self._marks.take():
            if mark.generation == _BEGINS:
                self._begun = mark
            else:
                begun, self._begun = self._begun, None
                self._book(begun, mark)

    def _book(self, begun: _Mark | None, ended: _Mark) -> None:
        took_ns = ended.at_ns - begun.at_ns if begun is not None else 0  # None: the callbacks came inside this pass
        bucket = self._ledger.slots[ended.slot][0]
        spent = self._one(begun, ended, took_ns, bucket)
        self._spent = self._spent.plus(spent)
        self._missed[ended.generation] -= 1
        if bucket != START:
            self._seen[ended.generation] = self._seen.get(ended.generation, _Spent()).plus(spent)

    def _one(self, begun: _Mark | None, ended: _Mark, took_ns: int, bucket: int) -> _Spent:
        spent = _Spent(passes=1, whole=int(ended.generation == WHOLE), pause_ns=took_ns)
        if ended.thread != self._thread or bucket == START:
            return spent
        self._longest_ns = max(self._longest_ns, took_ns)
        called = begun is not None and bool(begun.caller) and ended.generation == WHOLE
        if begun is not None and called and (begun.caller in self._callers or len(self._callers) < MOST_PLACES):
            self._callers[begun.caller] = self._callers.get(begun.caller, 0) + took_ns
        return spent._replace(
            training_ns=took_ns,
            waiting_ns=took_ns if bucket == DATA_WAIT else 0,
            validation_ns=took_ns if bucket == VALIDATION else 0,
            called_ns=took_ns if called else 0,
        )

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
