"""The end of processes that are not our children: when it came, and how. Linux tells; elsewhere nobody knows."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .procfs import FIRST_FIELD, process_fields

Name = TypeVar("Name", bound=Hashable)

_EXIT_CODE = 52
"""Field of ``/proc/PID/stat``, counted from 1 (proc_pid_stat(5)); others than its owner read a 0."""

_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = "=QQ11Ii"
"""``struct pidfd_info`` in its first size, from <linux/pidfd.h>: mask, control group, eleven numbers, wait status.
That of a process that is gone is there from Linux 6.15 on."""

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


def ask_wait_status(descriptor: int) -> int | None:
    """Return how a process ended that its parent has taken away; None where the system does not tell strangers.

    Args:
        descriptor: Of ``pidfd_open``, from before its end.
    """
    try:
        import fcntl

        asked = struct.pack(_PIDFD_INFO, _PIDFD_INFO_EXIT, *([0] * 13))
        mask, *known = struct.unpack(_PIDFD_INFO, fcntl.ioctl(descriptor, _PIDFD_GET_INFO, asked))
    except (ImportError, OSError):
        return None
    return int(known[-1]) if mask & _PIDFD_INFO_EXIT else None


def read_wait_status(pid: int, root: Path = Path("/")) -> int | None:
    """Return how a process ended whose parent has not asked yet, as ``waitpid`` would; None where nobody can tell."""
    fields = process_fields(root, pid)
    if len(fields) <= _EXIT_CODE - FIRST_FIELD or fields[0] not in _ZOMBIE:
        return None
    return int(fields[_EXIT_CODE - FIRST_FIELD])
