"""A run's page, pictures and table of steps, made by a child process from the recording.

They take a second after a short run and many after a day, and tens of megabytes for plotly and matplotlib: too much for
a process that trains. The child is given this process's module path, not its modules.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import StallmeterError
from ..recording import as_typed
from . import child
from .extras import PICTURE
from .files import DRAWN, report_files, write_drawn
from .job.folder import report_of_job
from .model import read_history

_log = logging.getLogger("stallmeter")

MOST_WAITING = 8
"""Each keeps its run's window in memory, some megabytes, until it has been drawn."""


class DrawingError(StallmeterError):
    """The child process has failed."""


class ChildDrawing:
    """A child process for a recording's folder and a rank; it starts when those of earlier runs have ended.

    Args:
        folder: The recording's folder.
        rank: Whose part of it.
        picture: Whether `PICTURE` is made, too.
    """

    def __init__(self, folder: Path, rank: int, picture: bool = True) -> None:
        self._folder = folder.absolute()
        self._rank = rank
        known = report_files(folder, rank)
        self.files: Mapping[str, Path] = {name: known[name] for name in DRAWN if picture or name != PICTURE}
        self._turn = _turn
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait for its turn and its end; returns whether it has ended.

        Raises:
            DrawingError: It has failed.
            OSError: No process can be started.
        """
        try:
            ended = self._wait(timeout_s)
        except BaseException:
            _waiting.discard(self)
            raise
        if ended:
            _waiting.discard(self)
        return ended

    def _wait(self, timeout_s: float) -> bool:
        if self._process is None:
            if self._stopped:
                return True
            if not self._turn.acquire(timeout=timeout_s):
                return False
            try:
                self._process = self._start()
            except BaseException:
                self._turn.release()
                raise
        try:
            _, said = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        except BaseException:
            self._turn.release()
            raise
        self._turn.release()
        if self._process.returncode and not self._stopped:
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            raise DrawingError(
                f"{last}. To make what is missing: stallmeter report {as_typed(self._folder)} --format html "
                "--output report.html"
            )
        return True

    def stop(self) -> None:
        """End it. What it has not made, `stallmeter sync` and `stallmeter report --format html` make."""
        self._stopped = True
        _waiting.discard(self)
        if self._process is not None:
            self._process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [str(self._folder), str(self._rank), *self.files]
        return child.start(__name__, arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, first=child.PATIENT)


_turn = threading.Semaphore()
"""One child at a time: a program of many short fits must not fill the machine with them."""


def _renew_turn() -> None:
    """A forked process has its own children; the parent's may have held the turn."""
    global _turn
    _turn = threading.Semaphore()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_turn)


_waiting: set[ChildDrawing] = set()
"""Those that have not ended."""


def draw(folder: Path, rank: int, picture: bool) -> ChildDrawing | None:
    """Have a run drawn, as `ChildDrawing` has it.

    Returns:
        None where so many runs have just ended that theirs would come much too late.
    """
    if len(_waiting) >= MOST_WAITING:
        _log.info(
            "stallmeter: no page yet; to have it: stallmeter report %s --format html --output report.html",
            as_typed(folder),
        )
        return None
    drawing = ChildDrawing(folder, rank, picture)
    _waiting.add(drawing)
    return drawing


def main(arguments: Sequence[str]) -> None:
    """What the child process does: draw the recording in the folder ``arguments[0]`` of the rank ``arguments[1]``.

    A file that fails leaves the others; the first error is raised once all were tried.

    Args:
        arguments: The others are the names of the files that are asked for.
    """
    folder, rank = Path(arguments[0]), int(arguments[1])
    errors: list[Exception] = []

    def attempt(_: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as exc:  # noqa: BLE001 - raised below
            errors.append(exc)
            return None

    history = read_history(folder, rank)
    whole = attempt("the other ranks", report_of_job, history) if rank == 0 else None
    write_drawn(folder, rank, history, attempt, whole, names=arguments[2:])
    if errors:
        raise errors[0]
