"""Names of a recording's files, and where recordings are."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from ..errors import RecordingError
from ..machine.opened import OPEN

_NAME = re.compile(r"rank(\d+)\.(\d+)\.jsonl$")


def part_path(folder: Path, rank: int, part: int) -> Path:
    """Return the file that holds a part of a rank's recording."""
    return folder / f"rank{rank}.{part:04d}.jsonl"


def is_recording(path: Path) -> bool:
    """Whether a path is a recording's folder or one of its files, not a folder of recordings."""
    if path.is_dir():
        return any(_NAME.search(f.name) for f in path.glob("rank*.jsonl"))
    return _NAME.search(path.name) is not None


def find_recording(path: Path) -> Path:
    """Return the folder of a recording: ``path`` itself, the folder of that file, or the newest recording below it.

    Raises:
        RecordingError: There is none.
    """
    if path.is_file() and is_recording(path):
        return path.parent
    if not path.exists():
        raise RecordingError(f"there is no file or folder {str(path)!r}; recordings are in ./stallmeter by default")
    found = [f for f in path.rglob("rank*.jsonl") if _NAME.search(f.name)] if path.is_dir() else []
    if not found:
        raise RecordingError(
            f"{str(path)!r} holds no recording (files named rank0.0000.jsonl); pass the folder that the run printed"
        )
    if any(f.parent == path for f in found):
        return path
    return max(found, key=lambda f: (f.stat().st_mtime, str(f))).parent


def ranks(folder: Path) -> tuple[int, ...]:
    """Return the ranks that have files in a recording's folder, in order."""
    return tuple(sorted({int(m[1]) for f in folder.iterdir() if (m := _NAME.search(f.name))}))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a small file so that a reader sees the old text or the new, never half of it."""
    # Beside it, for a rename is atomic within a file system only; with the pid, for ranks write into one folder.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with OPEN(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:  # there is none any more, unless the disk is full
        temporary.unlink(missing_ok=True)


def write_output(path: Path, text: str) -> None:
    """Write what the user wants in a place of his own: a file, replaced as a whole, or whatever else is there.

    A link stays one, and a pipe or a device is written into.

    Raises:
        OSError: It cannot be written; names the user's path.
    """
    target = path.resolve() if path.is_symlink() else path
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_text(text, encoding="utf-8")
        else:
            write_atomically(target, text)
    except OSError as exc:
        raise type(exc)(exc.errno, exc.strerror, str(path)) from exc


def parts_of(folder: Path, rank: int) -> list[int]:
    """Return the numbers of a rank's parts, in order.

    Raises:
        RecordingError: There is none.
    """
    parts = sorted(int(m[2]) for f in folder.iterdir() if (m := _NAME.search(f.name)) and int(m[1]) == rank)
    if not parts:
        raise RecordingError(f"{str(folder)!r} holds no recording of rank {rank}")
    return parts


def as_typed(path: Path | None) -> str:
    """Return a path as a shell takes it in the folder that the program is in: short where it lies below that.

    Nothing is said of what there is not.
    """
    if path is None:
        return ""
    try:
        here = Path.cwd()
    except OSError:  # it is gone
        return shlex.quote(str(path))
    # Who is in the root has left the program's folder.
    is_below = here != here.parent and path.is_relative_to(here)
    return shlex.quote(str(path.relative_to(here) if is_below else path))
