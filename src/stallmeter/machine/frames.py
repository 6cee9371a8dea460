"""What other threads stand at, asked without the risk that the interpreter stops or crashes.

Two things may happen to who asks while the other threads run:

- Up to Python 3.11 a collection of garbage begins wherever something is allocated. Up to 3.12.0 `sys._current_frames`
  holds a lock of the interpreter's while it allocates: if a callback of the collector lets go of the GIL there, a
  thread that starts waits for that lock and holds the GIL, for ever
  (https://github.com/python/cpython/issues/106883).
- A frame of a thread that runs lies on that thread's stack, and ``f_back`` looks it up there. If the GIL is let go of
  in between, by such a collection or between two instructions of ours, the thread may have left that frame. And what a
  frame holds is freed by whoever drops it last, which must not be a thread that the program knows nothing of.

So the collector is off meanwhile, and the whole walk is one call of C code that calls nothing but C code: the GIL is
not let go of there. No frame leaves it.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, compress, repeat, takewhile
from operator import attrgetter, itemgetter, methodcaller, truth
from types import CodeType, FrameType
from typing import Any

CAN_LOOK = hasattr(sys, "_current_frames") and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether this interpreter tells of other threads, and has a GIL that holds them still meanwhile."""

DEEPEST = 200
"""Frames that `stack_of` tells of, the innermost: recursion goes deeper."""

Place = tuple[CodeType, int]
"""Code and place in its bytecode."""

Stack = tuple[Place, ...]
"""The outermost first."""

_call = methodcaller("__call__")
_place = attrgetter("f_code", "f_lasti")


def running_threads() -> frozenset[int]:
    """Return the identities of all threads that Python knows; empty where it does not tell."""
    if not CAN_LOOK:
        return frozenset()
    return frozenset(_at_once(chain.from_iterable(_frames())))


def codes_of_threads() -> dict[int, CodeType]:
    """Return for each thread that Python knows, by its identity, in what code it is; empty where Python does not tell.

    In one look at all of them: for a few threads it takes less than the stack of one.
    """
    if not CAN_LOOK:
        return {}
    # No thread begins or ends between the two questions: none runs in Python meanwhile.
    of_each = map(methodcaller("values"), _frames())
    threads, codes = chain.from_iterable(_frames()), map(attrgetter("f_code"), chain.from_iterable(of_each))
    found = list(_at_once(chain(threads, codes)))
    return dict(zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True))


def stack_of(thread: int) -> Stack:
    """Return where a thread stands, the outermost first; empty where there is no such thread.

    Args:
        thread: Its identity, as `threading.get_ident` gives it.
    """
    return _walk(thread, _place, DEEPEST)


def stack_after(
    wait: Callable[[], bool], thread: int, asked: Sequence[Callable[[], Any]] = ()
) -> tuple[bool, tuple[Any, ...], Stack]:
    """Wait, and return what that returned, what was asked for then, and where a thread stands at that moment.

    Who has waited has the GIL again, and the others ask for it back at once. Where Python code came before the look,
    it would be let go of there, and what is seen would be the next place at which the thread itself lets go of it.

    Args:
        wait: Lets the GIL go while it waits. C code, as all that is asked for: else other threads run in between.
        thread: As for `stack_of`.
        asked: What else is to be known of that moment.
    """
    told = _told(thread, _place, DEEPEST) if CAN_LOOK else ()
    found = _at_once(told, first=(wait, *asked))
    waited, *answers = (found.popleft() for _ in range(1 + len(asked)))
    found.reverse()
    return waited, tuple(answers), tuple(found)


def lines_of(thread: int) -> tuple[tuple[CodeType, int | None, dict[str, Any]], ...]:
    """Return code, line and global names of where a thread stands, as `stack_of`, however deep that is."""
    return _walk(thread, attrgetter("f_code", "f_lineno", "f_globals"), sys.maxsize)


def _walk(thread: int, told: Callable[[FrameType], Any], deepest: int) -> tuple[Any, ...]:
    if not CAN_LOOK:
        return ()
    found = _at_once(_told(thread, told, deepest))
    found.reverse()
    return tuple(found)


def _told(thread: int, told: Callable[[FrameType], Any], deepest: int) -> Iterable[Any]:
    newest = map(methodcaller("get", thread), _frames())
    frames = accumulate(chain(newest, repeat("f_back", deepest - 1)), getattr)
    return map(told, takewhile(truth, frames))


def _frames() -> Iterable[Mapping[int, FrameType]]:
    return map(_call, (sys._current_frames,))  # asked when it is iterated over


def _at_once(told: Iterable[Any], *, first: Sequence[Callable[[], Any]] = ()) -> deque[Any]:
    """Return all items of an iterator that is made of C code alone, after what is called first."""
    found: deque[Any] = deque()
    was_on: list[bool] = []
    note = map(was_on.append, map(_call, (gc.isenabled,)))  # after what is called first: that may take its time
    restore = map(_call, compress((gc.enable,), map(itemgetter(0), (was_on,))))
    try:
        # One instruction of the interpreter: no other thread runs in between, or finds the collector switched off.
        found.extend(chain(map(_call, first), note, map(_call, (gc.disable,)), told, restore))
    except BaseException:  # an audit hook's, or memory ran out
        if was_on and was_on[0]:
            gc.enable()
        raise
    del found[len(first)], found[len(first)]
    if was_on[0]:
        found.pop()
    return found
