"""Which CPUs the process may use where its OpenMP runtime ties threads to CPUs.

With ``OMP_PROC_BIND`` the first parallel region leaves the main thread with one CPU, and its other threads with one
each. The main thread's affinity then says nothing of the process, but all that it forks inherits it. Standard library
only: it is imported at the start of each interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

PLACES = ("GOMP_CPU_AFFINITY", "OMP_PLACES")
"""Make GNU's runtime bind where nothing is said of ``OMP_PROC_BIND``."""

VARIABLES = ("OMP_PROC_BIND", *PLACES, "KMP_AFFINITY")

_at_start: frozenset[int] = frozenset()
"""CPUs of the main thread when the program began, before any parallel region."""


def keep() -> None:
    """Keep which CPUs the process may use now, at the start of the program."""
    global _at_start
    _at_start = affinity_of(os.getpid()) or frozenset()


def cpus_at_start() -> int | None:
    """Return how many CPUs the process might use as it began; None where nobody kept that."""
    return len(_at_start) or None


def binds(environ: Mapping[str, str]) -> str | None:
    """Return the variable that has an OpenMP runtime tie threads to CPUs; None without one.

    Args:
        environ: Environment of the program.
    """
    said = environ.get("OMP_PROC_BIND", "").strip().lower()
    if said:
        return "OMP_PROC_BIND" if said != "false" else None
    named = next((name for name in PLACES if environ.get(name)), None)
    # Its words are many; these leave threads alone.
    intels = environ.get("KMP_AFFINITY", "").lower()
    leaves = not intels or any(word in intels.split(",") for word in ("none", "disabled"))
    return named or (None if leaves else "KMP_AFFINITY")


def process_cpus(
    environ: Mapping[str, str] | None = None,
    *,
    affinity: Callable[[int], frozenset[int] | None] | None = None,
    threads: Callable[[], Collection[int]] | None = None,
) -> frozenset[int] | None:
    """Return the CPUs that any thread of this process may run on; None where the system has no affinity.

    Where threads are tied to CPUs, also those that the program began with: with one thread no other has any.

    Args:
        environ: Of the process by default.
        affinity: Asks for the CPUs of a thread; of the system by default.
        threads: Returns their numbers; of the system by default.
    """
    affinity, threads = affinity or affinity_of, threads or _threads
    known = [cpus for thread in {os.getpid(), *threads()} if (cpus := affinity(thread)) is not None]
    if not known:
        return None
    bound = binds(os.environ if environ is None else environ) is not None
    return frozenset().union(*known, _at_start if bound else ())


def shared_cpus(pids: Collection[int]) -> int | None:
    """Return how many CPUs some processes may run on, all together; None where that is not known of all.

    Args:
        pids: Of the processes.
    """
    known = [affinity_of(pid) for pid in pids]
    found = [cpus for cpus in known if cpus is not None]
    return len(frozenset().union(*found)) if found and len(found) == len(known) else None


def affinity_of(thread: int) -> frozenset[int] | None:
    """Return the CPUs that a thread may run on, by its number; None where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    try:
        # By number: 0 would mean the calling thread, and OpenMP may have bound one without the other.
        return frozenset(os.sched_getaffinity(thread))
    except OSError:  # it has ended
        return None


def _threads() -> Collection[int]:
    try:
        return [int(path.name) for path in Path("/proc/self/task").iterdir()]
    except OSError:
        return ()
