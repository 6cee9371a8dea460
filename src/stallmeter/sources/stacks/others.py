"""Where the other threads are that have something to do, and whether the training thread waits for one of them."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from ...machine import blocked
from ...machine.frames import Place, codes_of_threads, stack_of
from ...machine.own_threads import OWN

AT_ONCE = 16
"""Threads that are looked at in one look, drawn anew each time."""

_DRAWS = random.Random()  # noqa: S311 - our own: the program's numbers stay what they are
_LIBRARY = os.path.dirname(threading.__file__)  # noqa: PTH120 - as the files of code are spelled
_AWAITS = threading.Condition.wait.__code__.co_filename
IDLE = frozenset(
    (
        _AWAITS,
        *(
            os.path.join(_LIBRARY, *name.split("/"))  # noqa: PTH118
            for name in (
                "concurrent/futures/thread.py",
                "multiprocessing/connection.py",
                "multiprocessing/queues.py",
                "queue.py",
                "selectors.py",
                "socketserver.py",
            )
        ),
    )
)
"""Files in which a thread waits for another thread, for a process, or to be called."""


def awaits_thread(stack: tuple[Place, ...]) -> bool:
    """Whether who is there waits for another thread."""
    return bool(stack) and stack[-1][0].co_filename == _AWAITS


def at_work_beside(thread: int) -> tuple[tuple[int, tuple[Place, ...]], ...]:
    """Return which other threads of the program have something to do, and where they are.

    Args:
        thread: Identity of the one beside which they work.
    """
    left_out = (thread, threading.get_ident())
    codes = codes_of_threads()
    others = [other for other, code in codes.items() if other not in left_out and code.co_filename not in IDLE]
    if not others:
        return ()
    own = {other.ident for other in threading.enumerate() if other.name.startswith(OWN)}
    others = sorted(other for other in others if other not in own)
    drawn = _DRAWS.sample(others, min(AT_ONCE, len(others)))
    looked = ((other, stack_of(other)) for other in drawn)
    return tuple((other, one) for other, one in looked if one and one[-1][0].co_filename not in IDLE)


def stand_in_line(found: Sequence[tuple[int, tuple[Place, ...]]], kind: Callable[[int], str] | None = None) -> bool:
    """Whether two threads or more wait in one place for another thread of the program: for a lock, say.

    Who waits in one place for a connection, in a sleep or for Python's own lock does not stand in line there.

    Args:
        found: Threads that have something to do, and where they are; `at_work_beside`.
        kind: Returns what a thread, by its number of the system, waits in; by default as the kernel tells.
    """
    places = Counter(stack[-1] for _, stack in found)
    waiting = {thread for thread, stack in found if places[stack[-1]] > 1}
    if not waiting or (kind is None and not _interpreter()):
        return False
    kind = kind or _kind
    known = (t.native_id for t in threading.enumerate() if t.ident in waiting and t.native_id is not None)
    return sum(kind(thread) == blocked.THREADS for thread in known) > 1


@cache
def _interpreter() -> range:
    return blocked.interpreter_memory() if blocked.is_known_here() else blocked.NOWHERE


def _kind(thread: int) -> str:
    try:
        wait = blocked.thread_waits_in(os.getpid(), thread, interpreter=_interpreter())
    except PermissionError:  # a hardened kernel
        return ""
    return "" if wait is None else wait.kind
