"""Recordings whose tracker has not got everything: the run was killed, or the tracker was down at its end."""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import socket
import time
from pathlib import Path

from ..errors import RecordingError
from ..machine.procfs import process_space
from . import Header, Reader
from .cursor import Cursor, cursors

NEWEST = 50
"""Most recordings that are looked at when a run starts."""

SENDABLE = ("mlflow", "neptune")
"""Trackers that `stallmeter sync` can send to; the others are served by the program that made the recording."""

SILENT_S = 60.0
"""A recording of another host that has not grown for so long is no longer written."""

TAIL_BYTES = 256 * 1024

_END = re.compile(rb'^\["event",\{[^\n]*"name":"end"[,}]', re.MULTILINE)
_MADE_BY_SYNC = re.compile(r"-(?:to|new)-[0-9a-f]+$")


def pending_deliveries(directory: Path, *, but: Path | None = None) -> list[Path]:
    """Return the newest recordings of a directory that their tracker has not got completely, the newest first.

    Looks at no more than `NEWEST` folders, by their names, which begin with the time. Those of this process are left
    out: it may still be sending them.

    Args:
        directory: Where recordings are.
        but: The recording to leave out.
    """
    names = heapq.nlargest(NEWEST, (f.name for f in os.scandir(directory) if f.is_dir()))
    return [f for name in names if (f := directory / name) != but and has_pending_delivery(f) and not _is_ours(f)]


def has_pending_delivery(folder: Path) -> bool:
    """Whether a recording has something for its tracker, and nobody is about to send it."""
    return bool(unfinished_cursors(folder)) and not is_written(folder)


def _is_ours(folder: Path) -> bool:
    with contextlib.suppress(RecordingError, OSError):
        header = Reader(folder).header()
        return (header.host, header.pid) == (socket.gethostname(), os.getpid())
    return False


def unfinished_cursors(folder: Path, rank: int | None = None) -> dict[str, Cursor]:
    """Return the cursors of trackers that have not got everything, by label; none once it was all sent elsewhere."""
    found = cursors(folder, rank)
    if any(cursor.complete for label, cursor in found.items() if _MADE_BY_SYNC.search(label)):
        return {}
    return {label: cursor for label, cursor in sendable(found).items() if not cursor.complete}


def sendable(found: dict[str, Cursor]) -> dict[str, Cursor]:
    """Return the cursors of the run's own trackers to which `stallmeter sync` can send."""
    return {
        label: cursor
        for label, cursor in found.items()
        if is_sendable(label, cursor.destination) and not _MADE_BY_SYNC.search(label)
    }


def is_sendable(label: str, destination: str) -> bool:
    """Whether `stallmeter sync` can send to a tracker of this label."""
    # A run of Neptune's that the program has opened itself is out of reach.
    return label.startswith(SENDABLE) and ("neptune" not in label or "://" in destination)


def is_written(folder: Path, rank: int = 0) -> bool:
    """Whether a program still writes a recording, as far as can be told from here: its process lives, or it grows."""
    try:
        path, header = Reader(folder, rank).newest()
        if _has_ended(path):
            return False
        lives = process_lives(header)
        return time.time() - path.stat().st_mtime < SILENT_S if lives is None else lives
    except (RecordingError, OSError):
        return False


def process_lives(header: Header) -> bool | None:
    """Whether the process that makes a recording still runs; None where that cannot be told from here."""
    here = process_space()
    if header.host != socket.gethostname() or (header.process_space and here and header.process_space != here):
        return None
    # psutil takes 26 ms to import, and few runs leave anything behind
    from ..machine.processes import is_running

    return is_running(header.pid, header.started_s)


def _has_ended(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return _END.search(file.read()) is not None


def pending_deliveries_below(path: Path) -> list[Path]:
    """Return all recordings below a folder that their tracker has not got completely, the oldest first."""
    folders = sorted({cursor.parent for cursor in path.rglob("cursor-*.json")})
    return [folder for folder in folders if has_pending_delivery(folder)]
