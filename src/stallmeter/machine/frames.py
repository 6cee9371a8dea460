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
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, chain, repeat, takewhile
from operator import attrgetter, methodcaller, truth
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
    return _walk(thread, attrgetter("f_code", "f_lasti"), DEEPEST)


def lines_of(thread: int) -> tuple[tuple[CodeType, int | None, dict[str, Any]], ...]:
    """Return code, line and global names of where a thread stands, as `stack_of`, however deep that is."""
    return _walk(thread, attrgetter("f_code", "f_lineno", "f_globals"), sys.maxsize)


def _walk(thread: int, told: Callable[[FrameType], Any], deepest: int) -> tuple[Any, ...]:
    if not CAN_LOOK:
        return ()
    newest = map(methodcaller("get", thread), _frames())
    frames = accumulate(chain(newest, repeat("f_back", deepest - 1)), getattr)
    found = _at_once(map(told, takewhile(truth, frames)))
    found.reverse()
    return tuple(found)


def _frames() -> Iterable[Mapping[int, FrameType]]:
    return map(_call, (sys._current_frames,))  # asked when it is iterated over


def _at_once(told: Iterable[Any]) -> deque[Any]:
    """Return all items of an iterator that is made of C code alone."""
    found: deque[Any] = deque()
    if not gc.isenabled():
        found.extend(told)
        return found
    try:
        # One instruction of the interpreter: no other thread runs in between, or finds the collector switched off.
        found.extend(chain(map(_call, (gc.disable,)), told, map(_call, (gc.enable,))))
    except BaseException:  # an audit hook's, or memory ran out
        gc.enable()
        raise
    found.popleft()
    found.pop()
    return found
