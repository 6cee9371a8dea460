"""The reports of a job whose launcher ends every rank at once, made by a process that outlives them.

Where one rank is killed, its launcher ends the others within a tenth of a second: rank 0 has no time to say which it
was. A process that rank 0 starts sleeps until that is gone. Where the recording then lacks its reports, it writes them,
with the order in which the ranks ended and what ended each. Where another rank has died and rank 0 lives on, in an
exchange that never ends, its short reports say so meanwhile: some launchers look every few seconds only.

It belongs to a session of its own, so that the launcher's signals do not reach it, and is nobody's child: a program
that counts its children, or waits for all, has none more. It needs 10 MB and no time of a CPU while it waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import StallmeterError
from ..machine.ends import Watched, can_watch
from ..machine.procfs import process_space
from ..recording import Header, Reader, as_typed, ranks
from ..recording.ends import ProcessEnd, write_ends
from . import child

LAST_S = 1.0
"""Most seconds that the other ranks are waited for once rank 0 is gone: their launcher ends them all."""

MEANWHILE_S = 1.0
"""So long after another rank has died rank 0 may end by itself, or be ended, and tell it then."""

MOST_S = 120
"""Most seconds that the reports may take: who reads the program's stderr to its end waits for it."""

FIRST_LOOK_S = 0.25
LOOK_S = 30.0
"""Ranks whose recording is not there yet are looked for so soon, then ever more rarely."""

SPOKEN, DONE = b"s", b"d"
"""What rank 0 says of its own end."""

_ORPHAN = "import os; os.fork() and os._exit(0); "


class Survivor:
    """The process that outlives rank 0; this one starts it.

    Args:
        folder: The recording's folder.
        speaks: Whether it tells the verdict on stderr, as the program's end does.

    Raises:
        OSError: No process can be started.
    """

    def __init__(self, folder: Path, *, speaks: bool) -> None:
        arguments = [str(folder.absolute()), str(os.getpid()), *(["speak"] if speaks else [])]
        self._process = child.start(__name__, arguments, stdin=subprocess.PIPE, first=_ORPHAN)
        self._process.wait()  # it has left a child behind, an orphan

    def spoken(self) -> None:
        """The verdict was told, and the short reports are written."""
        self._tell(SPOKEN)

    def stop(self) -> None:
        """End it: the reports are made."""
        self._tell(DONE)

    def _tell(self, word: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # somebody has killed it
            self._process.stdin.write(word)
            self._process.stdin.flush()


def can_survive() -> bool:
    """Whether such a process can be started, and can see others end."""
    return can_watch() and child.can_start()


def main(arguments: Sequence[str]) -> None:
    """What it does.

    Args:
        arguments: The recording's folder, the process number of rank 0, and ``speak`` where it is to tell the verdict.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    folder, pid = Path(arguments[0]), int(arguments[1])
    os.chdir("/")  # whatever the program works in is not held
    watched: Watched[int] = Watched(control=0)  # stdin
    watched.add(0, pid)
    ends = wait_for_ends(folder, watched, lambda ends: tell_meanwhile(folder, ends))
    if DONE in watched.heard:
        return
    signal.alarm(MOST_S)
    try:
        complete(folder, ends, spoken=SPOKEN in watched.heard, speaks="speak" in arguments[2:])
    except Exception as exc:  # noqa: BLE001 - nobody but the program's user is left to be told
        sys.stderr.write(
            f"stallmeter: the job's reports could not be made: {exc}; "
            f"to try again: stallmeter report {as_typed(folder)}\n"
        )


def wait_for_ends(
    folder: Path, watched: Watched[int], meanwhile: Callable[[dict[int, ProcessEnd]], None] = lambda _: None
) -> dict[int, ProcessEnd]:
    """Sleep until rank 0 is gone, and a moment more for the others of this machine, or until it has done all itself.

    Args:
        folder: The recording's folder, in which ranks are found that begin later.
        watched: The process of rank 0, and how it is heard.
        meanwhile: Called with the ends of others that rank 0 has outlived by a moment.

    Returns:
        How those ended that have.
    """
    look_s, size, told = FIRST_LOOK_S, 2, 0
    while _goes_on(watched):
        size = _add_others(folder, watched, size)
        ended = len(watched.ended)
        if ended > told:
            _wait(watched, MEANWHILE_S, lambda: _goes_on(watched))
            if _goes_on(watched):
                meanwhile(_ends(watched))
            told = ended
            continue
        watched.wait(None if len(watched.names) >= size else look_s)
        look_s = min(LOOK_S, 1.5 * look_s)
    _add_others(folder, watched, size)
    _wait(watched, LAST_S, lambda: len(watched.ended) < len(watched.names) and DONE not in watched.heard)
    return _ends(watched)


def _wait(watched: Watched[int], seconds: float, goes_on: Callable[[], bool]) -> None:
    """Wait so long for what ends or is heard, or until something does not go on."""
    until_s = time.monotonic() + seconds
    while goes_on() and (left_s := until_s - time.monotonic()) > 0:
        watched.wait(left_s)


def _goes_on(watched: Watched[int]) -> bool:
    return 0 not in watched.ended and DONE not in watched.heard


def _ends(watched: Watched[int]) -> dict[int, ProcessEnd]:
    return {rank: _end(seen.time_s, seen.wait_status) for rank, seen in watched.ended.items()}


def _add_others(folder: Path, watched: Watched[int], size: int) -> int:
    """Watch those ranks of this machine whose recording has begun; return how many ranks the job has."""
    space = process_space()
    for rank in set(ranks(folder)) - watched.names if folder.is_dir() else ():
        header = _header(folder, rank)
        if header is not None and header.process_space == space:
            watched.add(rank, header.pid)
            size = header.world_size
    return size


def _header(folder: Path, rank: int) -> Header | None:
    try:
        return Reader(folder, rank).newest()[1]
    except (StallmeterError, OSError):  # it is just being made
        return None


def _end(time_s: float, wait_status: int | None) -> ProcessEnd:
    if wait_status is None:
        return ProcessEnd(time_s=time_s)
    if os.WIFSIGNALED(wait_status):
        return ProcessEnd(time_s=time_s, signal=os.WTERMSIG(wait_status))
    return ProcessEnd(time_s=time_s, status=os.WEXITSTATUS(wait_status))


def tell_meanwhile(folder: Path, ends: dict[int, ProcessEnd]) -> None:
    """Write the short reports of a job of which a rank has died, while rank 0 still runs; none where none has.

    A rank that has done its part has said so in its recording. What cannot be made now is made at the end.

    Args:
        folder: The recording's folder.
        ends: How the ranks' processes ended, rank 0 not among them.
    """
    from .files import write_summaries
    from .job.folder import report_of_job
    from .model import read_history

    signal.alarm(MOST_S)
    with suppress(Exception):  # of a job that is still being written; at the end it is said what cannot be made
        report = report_of_job(read_history(folder, 0))
        if report is not None and report.job is not None and report.job.broken:
            write_ends(folder, ends)
            write_summaries(folder, 0, report)
    signal.alarm(0)


def complete(folder: Path, ends: dict[int, ProcessEnd], *, spoken: bool, speaks: bool) -> None:
    """Make the reports that a job lacks; none where its recording is gone.

    Args:
        folder: The recording's folder.
        ends: How the ranks' processes ended.
        spoken: Whether the program has written its short reports and told its verdict: then only the rest is made.
        speaks: Whether to tell the verdict on stderr.

    Raises:
        RecordingError: The recording cannot be read.
        OSError: A file cannot be written.
    """
    # Here, not above: they take a third of a second and 40 MB, which most jobs never need.
    from .files import complete_reports, write_summaries
    from .job.folder import report_of_job
    from .model import read_history
    from .wording import console_lines

    if not folder.is_dir():
        return
    if not spoken:
        write_ends(folder, ends)
    history = read_history(folder, 0)
    report = report_of_job(history)
    if report is None or report.job is None:
        return
    if not spoken:
        write_summaries(folder, 0, report)  # anew: what may be there does not know how the ranks ended
    if not spoken and speaks:
        lines = [
            *report.job.silent,
            *console_lines(report.verdict),
            f"details: stallmeter report {as_typed(folder)}",
        ]
        sys.stderr.write("".join(f"stallmeter: {line}\n" for line in lines))
        sys.stderr.flush()
    complete_reports(folder, 0, history, report)
