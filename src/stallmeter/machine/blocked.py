"""What a thread of another process waits in, as Linux tells in ``/proc``. None where it does not.

The number of the system call and its arguments say it. A futex is the only one that needs a second look: glibc marks
those that no other process can see (FUTEX_PRIVATE_FLAG). The interpreter's own lock, the locks of ``threading`` and
thread pools are marked. A semaphore of ``multiprocessing`` is not: whoever waits in one waits for another process.

Reading it is allowed to the owner of the process where it is a descendant (Yama's default), and to root; where a
container or a hardened kernel forbids it, nothing is known.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PROC = "/proc"

RUNNING, LOCK, THREADS, SLEEP, SOCKET, FILE, OTHER = "running", "lock", "threads", "sleep", "socket", "file", "other"
INTERPRETER = "interpreter"
"""Python's own lock: told only of this process, whose memory is known (`interpreter_memory`)."""

NOWHERE = range(0)

MOST_THREADS = 64
"""Of one process, that are looked at."""

_FUTEX, _FLOCK, _FCNTL, _SEMAPHORE, _SELECT, _READ, _LISTEN = (
    "futex", "flock", "fcntl", "semaphore", "select", "read", "listen"
)  # fmt: skip
_PRIVATE = 128
_FUTEX_WAITS = frozenset((0, 6, 9, 11, 13))
"""Operations of a futex that wait: WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2."""
_LOCKING = frozenset((7, 38))
"""What fcntl is asked when it waits for a lock: F_SETLKW, F_OFD_SETLKW."""

_NEW_FILE = (332, 333, 426, 437, 439)
_CALLS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "x86_64": {
        _FUTEX: (202,),
        _FLOCK: (73,),
        _FCNTL: (72,),
        _SEMAPHORE: (65, 220),
        SLEEP: (35, 230),
        _SELECT: (23, 270),
        SOCKET: (7, 42, 44, 45, 46, 47, 232, 271, 281, 299, 307, 441),
        _LISTEN: (43, 288),
        _READ: (0, 1, 17, 18, 19, 20, 40, 275, 295, 296, 326, 327),
        # open and stat and their kin, close, fsync, getdents, memory maps, readahead, asynchronous reads
        FILE: (2, 3, 4, 5, 6, 8, 9, 11, 21, 26, 28, 74, 75, 78, 89, 187, 208, 217, 221, 257, 262, 267, 269, *_NEW_FILE),
    },
    "aarch64": {
        _FUTEX: (98,),
        _FLOCK: (32,),
        _FCNTL: (25,),
        _SEMAPHORE: (192, 193),
        SLEEP: (101, 115),
        _SELECT: (72,),
        _LISTEN: (202, 242),
        SOCKET: (22, 73, 203, 206, 207, 211, 212, 243, 269, 441),
        _READ: (63, 64, 65, 66, 67, 68, 69, 70, 71, 76, 285, 286),
        FILE: (4, 48, 56, 57, 61, 62, 78, 79, 80, 82, 83, 213, 215, 222, 223, 227, 233, 291, 292, *_NEW_FILE),
    },
}
"""Numbers of system calls; the same in all kernels of an architecture."""


class Wait(NamedTuple):
    """What a thread does at this moment."""

    kind: str
    """running, lock, threads (another thread of its process), sleep, socket, file, other or interpreter."""
    what: str = ""
    """Which lock: equal for two processes that wait for the same one, if one was forked by the other."""


_LISTENS = Wait(OTHER, "to be called")
"""A thread that serves others: multiprocessing has one in each worker, which hands out file descriptors."""


def is_known_here() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return sys.platform == "linux" and os.uname().machine in _CALLS and struct.calcsize("P") == 8


def waits_in(pid: int, *, proc: str = PROC, machine: str = "") -> Wait | None:
    """Say what the main thread of a process waits in; None when that cannot be read.

    A main thread that waits for its own threads waits for what these wait for, if that is one thing.

    Args:
        pid: Of the process.
        proc: Where the kernel shows processes.
        machine: Its architecture; by default this one.

    Raises:
        PermissionError: It may not be looked at.
    """
    machine = machine or os.uname().machine
    main = thread_waits_in(pid, pid, proc=proc, machine=machine)
    if main is None or main.kind != THREADS:
        return main
    looked = (thread_waits_in(pid, tid, proc=proc, machine=machine) for tid in threads_of(pid, proc) if tid != pid)
    found = {wait for wait in looked if wait is not None} - {Wait(THREADS), _LISTENS}
    kinds = {wait.kind for wait in found}
    if RUNNING in kinds:
        return Wait(RUNNING)
    return next(iter(found)) if len(kinds) == 1 else main


def thread_waits_in(
    pid: int, tid: int, *, proc: str = PROC, machine: str = "", interpreter: range = NOWHERE
) -> Wait | None:
    """Say what one thread waits in; None when that cannot be read.

    Args:
        pid: Of its process.
        tid: Of the thread.
        proc: Where the kernel shows processes.
        machine: Its architecture; by default this one.
        interpreter: Where the interpreter's own lock lies in that process.

    Raises:
        PermissionError: It may not be looked at.
    """
    try:
        fd = os.open(f"{proc}/{pid}/task/{tid}/syscall", os.O_RDONLY)
        try:
            text = os.read(fd, 256).decode("ascii", errors="replace")
        finally:
            os.close(fd)
    except PermissionError:
        raise
    except OSError:
        return None
    wait = parse(text, machine or os.uname().machine, interpreter)
    if wait is None or not wait.what.startswith("fd:"):
        return wait
    try:
        name = str(Path(f"{proc}/{pid}/fd/{wait.what[3:]}").readlink())
    except OSError:
        name = ""
    if wait.kind == LOCK:
        return Wait(LOCK, f"file {name}")
    if name.startswith("/"):
        return Wait(FILE)
    return Wait(SOCKET if name.startswith("socket:") else OTHER)


def threads_of(pid: int, proc: str = PROC) -> list[int]:
    """Return the threads of a process, `MOST_THREADS` of them at most; none where they are not shown."""
    try:
        names = [path.name for path in Path(f"{proc}/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()][:MOST_THREADS]


def interpreter_memory() -> range:
    """Return where this process keeps the state of the interpreter, its lock among it; empty where that is unknown.

    The lock (``_PyRuntime.ceval.gil`` up to 3.11, ``_PyRuntime._main_interpreter._gil`` since) is a variable of the
    program or of libpython, so that its futexes lie in that file's memory, where no other thread's wait does.
    """
    import ctypes

    try:
        at = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        maps = Path(f"{PROC}/self/maps").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, AttributeError):
        return NOWHERE
    found = NOWHERE
    for line in maps.splitlines():
        span, _, rest = line.partition(" ")
        first, last = (int(address, 16) for address in span.split("-"))
        # What the file does not hold, because it begins as zeros, follows right behind it.
        if first <= at < last or (found and first == found.stop and "[heap]" not in rest):
            found = range(found.start if found else first, last)
        elif found:
            break
    return found


def parse(text: str, machine: str, interpreter: range = NOWHERE) -> Wait | None:
    """Read a ``syscall`` file; None when it is none. What depends on a file descriptor names it: ``read:3``.

    Args:
        text: ``running``, or the number of the call with its arguments, or -1 outside of any.
        machine: The architecture.
        interpreter: Where the interpreter's own lock lies in that process.
    """
    words = text.split()
    if words[:1] == ["running"]:
        return Wait(RUNNING)
    try:
        number, given = int(words[0]), [int(word, 16) for word in words[1:7]]
    except (IndexError, ValueError):
        return None
    if number < 0:  # in no call: a page of a mapped file has to be read, or the process has ended
        return Wait(FILE) if any(given) else None
    if len(given) < 6:
        return None
    call = next((name for name, numbers in _CALLS.get(machine, {}).items() if number in numbers), OTHER)
    return _meaning(call, given, interpreter)


def _meaning(call: str, given: list[int], interpreter: range) -> Wait:
    first, second = given[:2]
    match call:
        case "futex":
            if second & 127 not in _FUTEX_WAITS:
                return Wait(OTHER)
            if first in interpreter:
                return Wait(INTERPRETER)
            return Wait(THREADS) if second & _PRIVATE else Wait(LOCK, f"futex {first:#x}")
        case "flock":
            return Wait(LOCK, f"fd:{first}")
        case "fcntl":
            return Wait(LOCK, f"fd:{first}") if second in _LOCKING else Wait(FILE)
        case "semaphore":
            return Wait(LOCK, f"semaphore {first}")
        case "select":  # of no file: what time.sleep was before Python 3.11
            return Wait(SOCKET if first else SLEEP)
        case "read":
            return Wait(call, f"fd:{first}")
        case "listen":
            return _LISTENS
        case _:
            return Wait(call)
