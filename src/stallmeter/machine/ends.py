"""The end of processes that are not our children: when it came, and how. Linux tells; elsewhere nobody knows."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

_EXIT_CODE = 52
"""Field of ``/proc/PID/stat``, counted from 1 (proc_pid_stat(5)); others than its owner read a 0."""

_ZOMBIE = ("Z", "X")


@dataclass(frozen=True, slots=True)
class Seen:
    """The end of a process."""

    time_s: float
    """Unix time."""
    wait_status: int | None
    """As ``waitpid`` returns it; None where its parent had taken it away already."""


def can_watch() -> bool:
    """Whether the end of a stranger's process can be waited for here: on Linux, 5.3 or later."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class Watched(Generic[Name]):
    """Processes whose end is waited for.

    Args:
        control: Descriptor of a pipe through which words may come. Its other end may go without any.
    """

    def __init__(self, control: int | None = None) -> None:
        self._poll = select.poll()
        self._control = control
        if control is not None:
            self._poll.register(control, select.POLLIN)
        self.heard = b""
        """What has come through the pipe."""
        self._open: dict[int, tuple[Name, int]] = {}
        self.ended: dict[Name, Seen] = {}
        """Those that have ended, in their order."""

    @property
    def names(self) -> set[Name]:
        """Of all that were ever added."""
        return {name for name, _ in self._open.values()} | set(self.ended)

    def add(self, name: Name, pid: int) -> None:
        """Wait for one more process, which is running or has just ended.

        Raises:
            OSError: The system does not let us.
        """
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.ended[name] = Seen(time.time(), None)
            return
        self._open[descriptor] = name, pid
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until one more has ended, or something is heard, or so long; returns whether there is news."""
        found = self._poll.poll(None if timeout_s is None else 1000 * timeout_s)
        now_s = time.time()
        for descriptor, _ in found:
            if descriptor == self._control:
                self._hear(descriptor)
                continue
            name, pid = self._open.pop(descriptor)
            # At once: it can be read until its parent has asked for it.
            self.ended[name] = Seen(now_s, read_wait_status(pid))
            self._poll.unregister(descriptor)
            os.close(descriptor)
        return bool(found)

    def _hear(self, control: int) -> None:
        words = os.read(control, 64)
        self.heard += words
        if not words:
            self._poll.unregister(control)


def read_wait_status(pid: int, root: Path = Path("/")) -> int | None:
    """Return how a process ended whose parent has not asked yet, as ``waitpid`` would; None where nobody can tell."""
    try:
        text = (root / f"proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    if state not in _ZOMBIE or len(fields) < _EXIT_CODE - 3:
        return None
    return int(fields[_EXIT_CODE - 4])
