"""Forks of the program wait while a thread of ours imports something.

The thread that imports a module holds that module's lock. A process that is forked meanwhile inherits the lock and not
the thread: where it imports the same module, it waits for ever, and a training whose DataLoader started it waits with
it. Python frees other locks in a fork, but not these (3.10 to 3.14). Our threads import what a program may have put
off until its workers run: a tracker's client alone brings a thousand modules.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .frames import stack_of
from .own_threads import OWN

LONGEST_S = 10.0
"""For which a fork is held: an import that hangs, on a file system that does, is not waited for any longer."""

PAUSE_S = 0.001
"""Between two looks at what our threads do."""

_MACHINERY = "<frozen importlib._bootstrap>"
_WAITS = "acquire"
"""Where a thread stands that needs a module another thread is importing: it may be the one that forks."""


def let_imports_end(
    longest_s: float = LONGEST_S,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once no thread of ours imports anything; called by the thread that forks, before it does.

    One that begins to import between that look and the fork is not seen. Both follow each other without letting other
    threads run, unless what other packages do before a fork has to wait.

    Args:
        longest_s: Return after so long in any case.
        clock: Monotonic seconds.
        sleep: Lets other threads run.
    """
    end_s = clock() + longest_s
    while any(map(_imports, _others())) and clock() < end_s:
        sleep(PAUSE_S)


def _others() -> list[int]:
    here = threading.get_ident()
    named = [thread.ident for thread in threading.enumerate() if thread.name.startswith(OWN)]
    return [thread for thread in named if thread is not None and thread != here]


def _imports(thread: int) -> bool:
    codes = [code for code, _ in stack_of(thread)]
    if not any(code.co_filename == _MACHINERY for code in codes):
        return False
    newest = codes[-1]
    return not (newest.co_filename == _MACHINERY and newest.co_name == _WAITS)
