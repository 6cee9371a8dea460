"""What a program that ``stallmeter run`` has started could not say itself, told when the program has ended.

That is: whether anything was measured in it, and where the recording lies of one that was killed before its report.

The command becomes the program: process, signals and exit status are the program's own. So somebody else has to be
there at the end: a process that belongs to nobody. It sleeps until the program is gone, says at most one line, ends.
Where the program gives up its stderr, a pipe that somebody may read to its end, so does it, and says nothing.
A monitor that starts in any process of the program leaves a mark, in a folder that an environment variable names, and
rank 0 another one until it has reported.
Where the system cannot tell a stranger that a process has ended (Windows), nothing is said; nor is it where the program
is the first process of its container, which takes all others with it.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..machine.ends import ask_wait_status, read_wait_status
from .environment import MEASURED, WITNESS, variable

RECORDING = "recording-"
"""Begins the names of files that hold the path of a recording without its report."""

WHY = "why"
"""File with what the program itself knows."""


LOOK_S = 1.0
"""Between two looks at whether the program still has the pipe that is its stderr at first."""

ENDING_S = 0.5
"""A program without its stderr that ends within so long was ending, and had not given it up."""

STDERR = 2


def nothing(why: str) -> str:
    """Return the line that is said when nothing was recorded."""
    # Not always a loader: a loop may iterate what a thread of its own fills from one.
    fix = "measure a training loop with: for batch in stallmeter.watch(what the loop iterates): ..."
    return f"stallmeter: nothing was recorded on this machine: {why}; {fix}\n"


def _briefly(wait_status: int) -> str:
    """Return what is said where the program failed: that comes first, and may be why."""
    return f"stallmeter: nothing was recorded: the program {_how(wait_status)}\n"


def _how(wait_status: int | None) -> str:
    if wait_status is None:
        return "ended"
    if os.WIFSIGNALED(wait_status):
        return f"was ended by signal {os.WTERMSIG(wait_status)}"
    return f"ended with status {os.WEXITSTATUS(wait_status)}"


def _without_report(wait_status: int | None, recordings: Sequence[str]) -> str:
    """Return what is said where a recording was begun and the process that made it could not report."""
    # The witness has left the program's folder.
    commands = ", ".join(f"stallmeter report {shlex.quote(path)}" for path in recordings)
    return f"stallmeter: the program {_how(wait_status)} before its report; what was recorded until then: {commands}\n"


NOTHING = nothing(
    "no DataLoader was iterated, gradients were computed and optimizers of torch made steps a few times at most, "
    "no Trainer was fitted"
)
_measured = False
"""Whether a monitor has started in this process, or in the one that it was forked from."""


_told = ""
"""Why nothing was, as it was said last."""


def mark_measured() -> None:
    """Leave word that a monitor has started; where nobody waits for it, in this process alone."""
    global _measured
    _measured = True
    mark = _mark(MEASURED)
    if mark is not None:
        with suppress(OSError):  # it is gone, or another machine's
            mark.touch()


def mark_recording(recording: Path) -> None:
    """Leave word that there is a recording, until `forget_recording`: its process may be killed before it reports."""
    mark = _mark(f"{RECORDING}{recording.name}")
    if mark is not None:
        with suppress(OSError):
            mark.write_bytes(os.fsencode(recording.absolute()))


def forget_recording(recording: Path) -> None:
    """Take that back: the report was made, or somebody else will make it."""
    mark = _mark(f"{RECORDING}{recording.name}")
    if mark is not None:
        with suppress(OSError):
            mark.unlink()


def _mark(name: str) -> Path | None:
    folder = variable(WITNESS)
    return Path(folder, name) if folder else None


def tell_unmeasured(why: str) -> None:
    """Say why nothing of a process of the program was or will be measured; to who waits for its end, else on stderr."""
    global _told
    mark = _mark(WHY)
    if _measured or why == _told:
        return
    _told = why
    if mark is None:
        with suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            sys.stderr.write(nothing(why))
        return
    with suppress(OSError):
        mark.write_text(why, encoding="utf-8")


def leave_witness(environment: MutableMapping[str, str], recordings: Path) -> Callable[[], None]:
    """Have somebody wait for the end of the program that this process is about to become, and say what it cannot.

    Args:
        environment: Of the program; the place for marks is added to it.
        recordings: Where recordings go: those that another machine puts there count, too.

    Returns:
        Calls it off, for when there is no program after all.
    """
    ended = _end_of_this_process()
    if ended is None:
        return lambda: None
    began_s = time.time()
    try:
        folder = Path(tempfile.mkdtemp(prefix="stallmeter-run-"))
    except OSError:  # nowhere to write: then nobody is there at the end, and the program runs all the same
        return lambda: None
    try:
        child = os.fork()
    except OSError:  # no more processes
        shutil.rmtree(folder, ignore_errors=True)
        return lambda: None
    environment[WITNESS] = str(folder)
    if not child:
        try:
            # Twice, so that the program has no child that it does not know.
            if not os.fork():
                _wait_and_tell(ended, folder, recordings.absolute(), began_s)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return (folder / MEASURED).touch


def _end_of_this_process() -> Callable[[], int | None] | None:
    """Return what waits for the end of this process in another one; None where that cannot be done.

    It returns how the process ended, as ``waitpid`` would; None where the system does not tell a stranger.
    """
    pid = os.getpid()
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            return lambda: _wait_for_descriptor(descriptor, pid)
    if hasattr(select, "kqueue"):
        return lambda: _wait_for_event(pid)
    return None


def _wait_for_descriptor(descriptor: int, pid: int) -> int | None:
    _close_others(0, 1, STDERR, descriptor)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not poll.poll(1000 * LOOK_S if _may_be_waited_for() else None):
        # Who ends has its descriptors closed before anybody is told of it, on a busy machine a while before.
        if not _has_our_stderr(pid) and not poll.poll(1000 * ENDING_S):
            _replace(STDERR)
    # The one knows until its parent has asked for it, the other one from then on.
    status = read_wait_status(pid)
    return ask_wait_status(descriptor) if status is None else status


def _may_be_waited_for() -> bool:
    """Whether stderr is something that another process may read to its end, which comes when nobody has it any more."""
    try:
        mode = os.fstat(STDERR).st_mode
    except OSError:  # closed by the caller
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _has_our_stderr(pid: int) -> bool:
    """Whether a program has the stderr that it was started with; also where the system does not say."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        # By name, "pipe:[71]": whatever the program has there by now, a file on a dead server say, is not touched.
        return (folder / f"{STDERR}").readlink() == Path(f"/proc/self/fd/{STDERR}").readlink()
    except FileNotFoundError:
        return not folder.exists()
    except OSError:
        return True


def _replace(*descriptors: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    if null not in descriptors:
        os.close(null)


def _close_others(*kept: int) -> None:
    """Close what the program was given besides: it may close that, and who reads a pipe then waits for its end."""
    with suppress(OSError, ValueError):
        for descriptor in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 - numbers are all
            if descriptor not in kept:
                with suppress(OSError):  # the one of the listing
                    os.close(descriptor)


def _wait_for_event(pid: int) -> None:
    system: Any = select  # of macOS and the BSDs
    exits = system.kevent(pid, system.KQ_FILTER_PROC, system.KQ_EV_ADD, system.KQ_NOTE_EXIT)
    with suppress(ProcessLookupError):
        system.kqueue().control([exits], 1)


def _wait_and_tell(ended: Callable[[], int | None], folder: Path, recordings: Path, began_s: float) -> None:
    os.setsid()  # signals to the program's group and terminal are not for us
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _replace(0, 1)
    os.chdir("/")
    status = ended()
    measured = (folder / MEASURED).exists() or _newest_s(recordings) >= began_s - 1.0
    said = NOTHING
    with suppress(OSError):
        said = nothing((folder / WHY).read_text(encoding="utf-8"))
    left = _left_behind(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if status:
        said = _briefly(status)
    if not measured or left:
        os.write(STDERR, (_without_report(status, left) if left else said).encode(errors="surrogateescape"))


def _left_behind(folder: Path) -> list[str]:
    """Return where recordings lie that nobody has reported on, the oldest first."""
    marks = sorted(folder.glob(f"{RECORDING}*"))  # their names begin with the time
    recordings = [os.fsdecode(mark.read_bytes()) for mark in marks]
    return [recording for recording in recordings if Path(recording).is_dir()]


def _newest_s(recordings: Path) -> float:
    """Return when something was last put into a folder; 0 without it."""
    with suppress(OSError):
        return recordings.stat().st_mtime
    return 0.0
