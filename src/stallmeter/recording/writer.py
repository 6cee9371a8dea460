"""Writes a recording, also onto a disk that is full for a while."""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path

from ..machine.opened import OPEN
from ..records import Record
from ..records.diagnosis import Verdict
from .files import part_path
from .format import Header, encode, encode_header

PART_BYTES = 16 * 2**20
"""Size at which a new part is begun."""

STEP_BYTES_LIMIT = 16 * 2**20
"""Size of a rank's recording from which full step detail is thinned out; see `Recorder.detail`. All that is kept is
read again when the run ends."""

KEPT_LINES = 100_000
"""Most lines kept while they cannot be written: 20 MB, and some minutes of the fastest run."""


class _PartFile:
    """A file that is appended to by its descriptor, and only as long as that is still the file's.

    Programs close descriptors that they do not know, as a daemon does when it begins, and open files of their own,
    which get the same numbers. What is no longer ours is neither written to nor closed.

    Raises:
        OSError: It cannot be opened, or is not there: one without a header would be read by nobody.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        found = os.fstat(self._fd)
        self._is = found.st_dev, found.st_ino

    @property
    def links(self) -> int | None:
        """How many names the file has; None where the descriptor is closed, or another file's."""
        try:
            found = os.fstat(self._fd)
        except OSError:
            return None
        return found.st_nlink if (found.st_dev, found.st_ino) == self._is else None

    def tell(self) -> int:
        """Return the size of the file."""
        return os.lseek(self._fd, 0, os.SEEK_END)

    def write(self, data: bytes | memoryview) -> int:
        """Append as much as can be, and return how many bytes that were."""
        return os.write(self._fd, data)

    def close(self) -> None:
        """Close it, if it is ours."""
        if self.links is not None:
            os.close(self._fd)


class Recorder:
    """Writes one rank's recording.

    Lines are collected by `write` and reach the file in `flush`, in one unbuffered write: a forked child holds no
    buffer that it could write a second time, and a crash tears at most one line.

    Args:
        folder: The recording's folder; made when missing.
        header: First line of every part.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path, header: Header, *, part_bytes: int = PART_BYTES) -> None:
        self.folder = folder
        self.header = header
        self._part_bytes = part_bytes
        self._lines: deque[str] = deque()
        self._torn = False
        """Whether the first of the lines is the rest of one that the file holds the beginning of."""
        self._failing = False
        self._losses: list[str] = []
        self._dropped = 0
        self.total_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._part, self._file = self._new_part(0)

    @property
    def path(self) -> Path:
        """The part that is being written."""
        return part_path(self.folder, self.header.rank, self._part)

    @property
    def detail(self) -> int:
        """Every how many steps one is kept: grows with the file, so that its size stays bounded in practice."""
        return 1 << min(10, int(self.total_bytes // STEP_BYTES_LIMIT))

    def write(self, record: Record | Verdict) -> None:
        """Add a record to what the next flush writes."""
        self._lines.append(encode(record))
        if self._failing:
            self._drop_oldest()

    def flush(self) -> None:
        """Write what was added since the last flush.

        Raises:
            OSError: The disk is full or gone. The lines are kept for the next try, up to `KEPT_LINES` of them; the
                oldest beyond that are dropped, see `take_losses`.
        """
        if not self._lines:
            return
        try:
            if self._is_gone():
                self._begin_anew()
            elif self._file.links is None:
                self._file = _PartFile(self.path)
            self._begin_part_when_due()
            self._append("\n".join(self._lines).encode() + b"\n")
        except OSError:
            self._failing = True
            self._drop_oldest()
            raise
        self._failing = False

    def take_losses(self) -> list[str]:
        """Return what was lost since this was last asked, a sentence for each cause."""
        losses, self._losses = self._losses, []
        if self._dropped:
            losses.append(f"{self._dropped:,} lines were dropped: it could not be written for too long to keep them")
            self._dropped = 0
        return losses

    def close(self) -> None:
        """Flush and close the file.

        Raises:
            OSError: The last lines could not be written, or a network file system says only now that earlier ones
                were not.
        """
        try:
            self.flush()
        except OSError as exc:
            raise OSError(exc.errno, f"the last {len(self._lines):,} lines are lost: {exc}") from exc
        finally:
            self._file.close()

    def _append(self, data: bytes) -> None:
        """Write lines and forget them; those that did not fit remain, the one that was torn with its rest."""
        # The file is unbuffered: what tell() says is what it holds, also after a write that raised. A reader in another
        # process, or after a crash, may see any number of these bytes; it ignores a line without its end.
        start = self._file.tell()
        try:
            written = 0
            while written < len(data):
                some = self._file.write(memoryview(data)[written:])
                if not some:
                    raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written to {self.path}")
                written += some
        finally:
            end = self._file.tell()
            self.total_bytes += end - start
            if end - start >= len(data):
                self._lines.clear()
                self._torn = False
            elif end > start:
                # The encoder writes ASCII: a cut never falls into a character.
                self._lines = deque(data[end - start : -1].decode().split("\n"))
                self._torn = data[end - start - 1 : end - start] != b"\n"

    def _drop_oldest(self) -> None:
        # The rest of a torn line must stay in front: the file would otherwise hold half a line and then another one.
        rest = self._lines.popleft() if self._torn else None
        while len(self._lines) > KEPT_LINES:
            self._lines.popleft()
            self._dropped += 1
        if rest is not None:
            self._lines.appendleft(rest)

    def _is_gone(self) -> bool:
        """Whether the file has been deleted: what is written to it then is written nowhere, and no write fails."""
        # Some file systems count no names at all.
        return not self._file.links and not self.path.exists()

    def _begin_anew(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # First of all: a new file may get the number of the deleted one, and its descriptor's too.
        self._file.close()
        self._part, self._file = self._new_part(self._part + 1)
        if self._torn:  # its beginning is gone
            self._lines.popleft()
            self._torn = False
        self._losses.append(f"what was written before {self.path.name} has been deleted from {self.folder}")

    def _begin_part_when_due(self) -> None:
        if self._torn or self._file.tell() <= self._part_bytes:
            return  # a line is never spread over two files
        try:
            part, file = self._new_part(self._part + 1)
        except OSError:
            return  # the part at hand may still take the lines; where it does not, that is said
        old, self._part, self._file = self._file, part, file
        try:
            old.close()
        except OSError as exc:  # a network file system says only now what it could not keep
            self._losses.append(f"lines before {self.path.name} may be missing: {exc}")

    def _new_part(self, part: int) -> tuple[int, _PartFile]:
        """Return the first free part from this number on, open behind its header.

        It gets its name when its header is in it: a full disk leaves no part that nobody can read.
        """
        temporary = self.folder / f"rank{self.header.rank}.{os.getpid()}.tmp"
        try:
            with OPEN(temporary, "wb") as file:
                file.write(encode_header(self.header).encode() + b"\n")
            while True:
                path = part_path(self.folder, self.header.rank, part)
                try:
                    _name(temporary, path)
                except FileExistsError:
                    part += 1
                else:
                    return part, _PartFile(path)
        finally:
            temporary.unlink(missing_ok=True)


def _name(temporary: Path, path: Path) -> None:
    """Give a file its name. Raises FileExistsError where another has it."""
    try:
        os.link(temporary, path)  # unlike a rename, it never replaces a file that another process has just made
    except FileExistsError:
        raise
    except (OSError, AttributeError):  # there are file systems without links, and machines
        if path.exists():
            raise FileExistsError(path) from None
        temporary.rename(path)
