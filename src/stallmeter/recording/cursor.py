"""How far a tracker is in a recording: one small file beside the recording for each tracker."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from . import Position, write_atomically

_NAME = re.compile(r"cursor-(?P<label>.+?)(?:-rank(?P<rank>\d+))?\.json")
_NOT_IN_FILE_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a tracker has got of one rank's recording."""

    destination: str
    """Where it goes, without secrets."""
    rank: int = 0
    position: Position = field(default_factory=Position)
    points: int = 0
    """Points delivered so far."""
    complete: bool = False
    """Whether it has got everything, the final page included."""
    ours: bool = False
    """Whether stallmeter started the run there and has not ended it."""


def cursor_path(folder: Path, label: str, rank: int) -> Path:
    """Return the file of a tracker's cursor."""
    suffix = f"-rank{rank}" if rank else ""
    return folder / f"cursor-{_NOT_IN_FILE_NAME.sub('_', label)}{suffix}.json"


def read_cursor(path: Path) -> Cursor | None:
    """Return a cursor; None when it is missing or unreadable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Cursor(
            destination=str(content["destination"]),
            rank=int(content["rank"]),
            position=Position(int(content["part"]), int(content["offset"])),
            points=int(content["points"]),
            complete=content.get("complete") is True,
            ours=content.get("ours") is True,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_cursor(path: Path, cursor: Cursor) -> None:
    """Keep a cursor for another process. One that cannot be written costs a second sending, no data."""
    content = {
        "destination": cursor.destination,
        "rank": cursor.rank,
        "part": cursor.position.part,
        "offset": cursor.position.offset,
        "points": cursor.points,
        "complete": cursor.complete,
        "ours": cursor.ours,
    }
    with contextlib.suppress(OSError):
        write_atomically(path, json.dumps(content) + "\n")


def cursors(folder: Path, rank: int | None = None) -> dict[str, Cursor]:
    """Return the readable cursors of a recording by their label, in order.

    Args:
        folder: The recording's folder.
        rank: Whose; None for the cursors of all ranks, with the lowest rank's where labels are equal.
    """
    found: dict[str, Cursor] = {}
    for path in sorted(folder.glob("cursor-*.json")):
        name = _NAME.fullmatch(path.name)
        cursor = read_cursor(path)
        if name is not None and cursor is not None and rank in (None, cursor.rank):
            found.setdefault(name["label"], cursor)
    return found
