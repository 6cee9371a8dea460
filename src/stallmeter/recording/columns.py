"""Reads a few columns of a rank's steps, and its newest lines of other kinds, without making records of all lines.

A job of hundreds of ranks has millions of steps: as records they would take minutes and gigabytes.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..records import Record
from ..records.diagnosis import Verdict
from ..records.stats import Reservoir
from .files import part_path, parts_of
from .format import Header, decode
from .reader import Reader

_INDEX = re.compile(rb'\["step",(\d+)')
_KIND = re.compile(rb'\["([a-z]+)"')

_BLOCK = 256
"""Lines of steps that are parsed at once: half the time of one by one."""

_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Columns:
    """What was read of one rank."""

    header: Header
    steps: Mapping[str, array[float]]
    """By name of the field; NaN where a step has no value. All are of one length, in the order of the recording."""
    last: Mapping[str, Record | Verdict]
    """The newest record of each kind that was asked for."""
    some: Mapping[str, Sequence[Record | Verdict]] = field(default_factory=dict)
    """Of other kinds that were asked for: records spread evenly over the run."""


def read_columns(
    folder: Path,
    rank: int,
    names: Sequence[str],
    *,
    wants: Callable[[int], bool] = lambda _: True,
    last: Sequence[str] = (),
    some: Sequence[str] = (),
    most: int = 64,
) -> Columns:
    """Read one rank.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        names: Fields of a step that hold numbers.
        wants: Whether to read the step of this index.
        last: Kinds of which the newest record is wanted.
        some: Kinds of which some are wanted.
        most: About how many of these at most.

    Raises:
        RecordingError: There is no recording of this rank.
        OSError: The files cannot be read.
    """
    reader = Reader(folder, rank)
    header = reader.header()
    found: dict[str, array[float]] = {name: array("d") for name in names}
    newest: dict[str, tuple[bytes, Mapping[str, list[str]]]] = {}
    spread: dict[bytes, Reservoir[tuple[bytes, Mapping[str, list[str]]]]]
    spread = {kind.encode(): Reservoir(most) for kind in some}
    beginnings = tuple(f'["{kind}"'.encode() for kind in (*last, *some))
    for part in parts_of(folder, rank):
        path = part_path(folder, rank, part)
        columns = reader.columns(part)
        if columns is None:
            continue
        fields = columns.get("step", [])
        places = [(fields.index(name) + 1 if name in fields else 0, found[name]) for name in names]
        block: list[bytes] = []
        with path.open("rb") as file:
            for line in file:
                if line.startswith(b'["step"'):
                    if (index := _INDEX.match(line)) and wants(int(index[1])):
                        block.append(line)
                        if len(block) == _BLOCK:
                            _add_steps(block, places)
                            block = []
                elif line.startswith(beginnings) and line.endswith(b"\n") and (kind := _KIND.match(line)):
                    if kind[1] in spread:
                        spread[kind[1]].add((line, columns))
                    elif kind[1].decode() in last:
                        newest[kind[1].decode()] = (line, columns)
        _add_steps(block, places)
    return Columns(
        header,
        found,
        {kind: record for kind, kept in newest.items() if (record := _decoded(*kept)) is not None},
        {
            kind.decode(): [record for kept in lines.items if (record := _decoded(*kept)) is not None]
            for kind, lines in spread.items()
        },
    )


def _add_steps(lines: Sequence[bytes], places: Sequence[tuple[int, array[float]]]) -> None:
    """Add the lines that are whole."""
    if not lines:
        return
    try:
        columns = list(zip(*json.loads(b"[%b]" % b",".join(lines)), strict=True))
        found = [_numbers(columns[at], len(lines)) if at else _numbers((), len(lines)) for at, _ in places]
    except (ValueError, LookupError, TypeError, OverflowError):
        if len(lines) > 1:  # one of them is torn, or no step
            for line in lines:
                _add_steps([line], places)
        return
    for (_, column), values in zip(places, found, strict=True):
        column.extend(values)


def _numbers(values: Sequence[float | None], count: int) -> array[float]:
    missing = values.count(None) if values else count
    if missing == count:
        return array("d", [_NAN]) * count
    return array("d", values if not missing else [_NAN if value is None else value for value in values])  # type: ignore[arg-type]


def _decoded(line: bytes, columns: Mapping[str, list[str]]) -> Record | Verdict | None:
    try:
        return decode(line.decode(), columns)
    except ValueError:
        return None
