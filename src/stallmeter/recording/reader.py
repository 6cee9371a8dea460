"""Reads a recording, finished or not, from any position on."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import RecordingError
from ..records import Record
from ..records.diagnosis import Verdict
from .files import part_path, parts_of
from .format import SCHEMA, Header, decode, decode_header

_STEP_INDEX = re.compile(rb'\["(?:step|device)",(\d+)')


@dataclass(frozen=True, slots=True)
class Position:
    """Where a reader of one rank's files stands."""

    part: int = 0
    offset: int = 0


class _NoHeaderError(RecordingError):
    """A part that is none."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is no recording of stallmeter: its first line is not a header")


def has_recording(folder: Path, rank: int) -> bool:
    """Whether a folder holds a recording of this rank; a part that could not even be begun is none."""
    try:
        Reader(folder, rank).header()
    except (RecordingError, OSError):
        return False
    return True


class Reader:
    """Reads one rank's recording from a position on; safe while it is written.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        position: Where to go on.
        lines: Matches the beginning of the lines to read; the others are skipped undecoded, which is ten times faster.
        every: Of the steps, and their parts on the device, those are read whose index this divides.
    """

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        position: Position | None = None,
        *,
        lines: re.Pattern[bytes] | None = None,
        every: int = 1,
    ) -> None:
        self.folder = folder
        self.rank = rank
        self.position = position or Position()
        self._lines = lines
        self._every = every
        self.skipped = 0
        """Lines in the middle of a file that were no records."""
        self.skipped_parts: list[str] = []
        """Names of the files passed over because they have no header: a crash or a full disk can leave such."""

    def header(self) -> Header:
        """Return the header of the first part that has one.

        Raises:
            RecordingError: There is none, or it is of a newer schema.
        """
        for _, header, _ in self._readable():
            return header
        raise _NoHeaderError(part_path(self.folder, self.rank, parts_of(self.folder, self.rank)[0]))

    def newest(self) -> tuple[Path, Header]:
        """Return the newest part that has a header, and that. Raises as `header` does."""
        parts = parts_of(self.folder, self.rank)
        for part in reversed(parts):
            with contextlib.suppress(_NoHeaderError):
                return part_path(self.folder, self.rank, part), self._read_header(part)[0]
        raise _NoHeaderError(part_path(self.folder, self.rank, parts[0]))

    def columns(self, part: int) -> Mapping[str, list[str]] | None:
        """Return the columns of the kinds that a part writes without names; None where it has no header."""
        try:
            return self._read_header(part)[1]
        except _NoHeaderError:
            return None

    def __iter__(self) -> Iterator[tuple[Record | Verdict, Position]]:
        """Yield each complete record with the position behind it, up to the end of what is written."""
        for part, _, columns in self._readable(self.position.part):
            offset = self.position.offset if part == self.position.part else 0
            with part_path(self.folder, self.rank, part).open("rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    self.position = Position(part, offset)
                    record = self._decode(line, columns)
                    if record is not None:
                        yield record, self.position

    def every_for(self, most: int) -> int:
        """Return the smallest power of two that divides the index of at most so many recorded steps."""
        powers: Counter[int] = Counter()
        for part, _, _ in self._readable():
            with part_path(self.folder, self.rank, part).open("rb") as file:
                for line in file:
                    if line.startswith(b'["step",') and (step := _STEP_INDEX.match(line)):
                        powers[int(step[1]) & -int(step[1])] += 1  # the largest power of two in it; 0 has them all
        left, every = powers.total(), 1
        while left > most and every <= max(powers):
            left -= powers[every]
            every *= 2
        return every

    def _readable(self, first: int = 0) -> Iterator[tuple[int, Header, Mapping[str, list[str]]]]:
        """Yield the parts from this number on with what their headers say, and name those that have none."""
        for part in parts_of(self.folder, self.rank):
            if part < first:
                continue
            try:
                header, columns = self._read_header(part)
            except _NoHeaderError:
                name = part_path(self.folder, self.rank, part).name
                if name not in self.skipped_parts:
                    self.skipped_parts.append(name)
            else:
                yield part, header, columns

    def _wants(self, line: bytes) -> bool:
        return not line.startswith(b'["header"') and (self._lines is None or self._lines.match(line) is not None)

    def _decode(self, line: bytes, columns: Mapping[str, list[str]]) -> Record | Verdict | None:
        if not self._wants(line):
            return None
        if self._every > 1 and (step := _STEP_INDEX.match(line)) and int(step[1]) % self._every:
            return None
        try:
            return decode(line.decode(), columns)
        except ValueError:
            self.skipped += 1
            return None

    def _read_header(self, part: int) -> tuple[Header, Mapping[str, list[str]]]:
        path = part_path(self.folder, self.rank, part)
        with path.open("rb") as file:
            line = file.readline()
        try:
            header, columns = decode_header(line)
        except ValueError as exc:
            raise _NoHeaderError(path) from exc
        if header.schema > SCHEMA:
            raise RecordingError(
                f"{path} has schema {header.schema}, this stallmeter reads up to {SCHEMA}: upgrade stallmeter"
            )
        return header, columns
