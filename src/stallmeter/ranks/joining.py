"""Joins recordings of ranks that recorded apart, each on a disk of its own, into one recording of their job."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import RecordingError
from ..recording import Header, Reader, find_recording, ranks
from ..recording.tail import read_tail

MOST_APART_S = 600.0
"""Ranks of one job begin within seconds; the clocks of their hosts may differ by minutes."""

_UNFINISHED = ".part"


@dataclass(frozen=True, slots=True)
class _Part:
    """One rank's recording."""

    folder: Path
    header: Header

    @property
    def rank(self) -> int:
        return self.header.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What was joined."""

    folder: Path
    """The new recording."""
    ranks: tuple[int, ...]
    world_size: int
    not_ended: tuple[int, ...]
    """Ranks whose recordings have no end: killed, or going on."""
    passed_over: tuple[str, ...]
    """Files without a header, which a crash can leave."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job that are in none of the folders."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)


def join(paths: Sequence[Path], target: Path | None = None) -> Joined:
    """Join recordings into a new folder, which is there as a whole or not at all.

    Args:
        paths: Recordings, or folders: the newest below each.
        target: The new folder; by default beside the recording of the lowest rank, with ``-merged`` at its name's end.

    Raises:
        RecordingError: There is no recording, they are not of one job, or the target exists.
        OSError: They cannot be read or written.
    """
    folders = [find_recording(path).resolve() for path in paths]
    if len(folders) < 2:
        raise RecordingError(f"only {str(folders[0])!r} was given; merge takes two recordings or more")
    if len(set(folders)) < len(folders):
        twice = next(folder for folder in folders if folders.count(folder) > 1)
        raise RecordingError(f"{str(twice)!r} was given twice")
    passed_over: list[str] = []
    parts = sorted((part for folder in folders for part in _parts(folder, passed_over)), key=lambda part: part.rank)
    _check(parts)
    lowest = parts[0].folder
    target = lowest.with_name(f"{lowest.name}-merged") if target is None else target.absolute()
    _copy(parts, target)
    return Joined(
        folder=target,
        ranks=tuple(part.rank for part in parts),
        world_size=parts[0].header.world_size,
        not_ended=tuple(part.rank for part in parts if read_tail(target, part.rank).ended is None),
        passed_over=tuple(passed_over),
    )


def _parts(folder: Path, passed_over: list[str]) -> list[_Part]:
    found = []
    for rank in ranks(folder):
        reader = Reader(folder, rank)
        with suppress(RecordingError):
            found.append(_Part(folder, reader.header()))
        passed_over += [str(folder / name) for name in reader.skipped_parts]
    if not found:
        raise RecordingError(f"{str(folder)!r} holds no rank with a readable recording")
    return found


def _check(parts: Sequence[_Part]) -> None:
    """Raise `RecordingError` unless these are ranks of one job."""
    first, begun_s = parts[0], min(part.header.started_s for part in parts)
    for before, part in itertools.pairwise(parts):
        if before.rank == part.rank:
            raise RecordingError(
                f"rank {part.rank} is in {str(before.folder)!r} and in {str(part.folder)!r}: two jobs?"
            )
    for part in parts:
        if part.header.world_size < 2:
            raise RecordingError(f"{str(part.folder)!r} is of a job of one rank, which has nothing to be merged with")
        for what, ours, theirs in (
            ("number of ranks", first.header.world_size, part.header.world_size),
            ("framework", first.header.framework, part.header.framework),
        ):
            if ours != theirs:
                raise RecordingError(
                    f"these are of two jobs: {what} is {ours!r} in {str(first.folder)!r} and {theirs!r} "
                    f"in {str(part.folder)!r}"
                )
        apart_s = part.header.started_s - begun_s
        if apart_s > MOST_APART_S:
            raise RecordingError(
                f"{str(part.folder)!r} begins {apart_s / 60:.0f} minutes after another one: ranks of one job begin "
                f"within {MOST_APART_S / 60:.0f}"
            )


def _copy(parts: Sequence[_Part], target: Path) -> None:
    if target.exists():
        raise RecordingError(f"{str(target)!r} exists; nothing is overwritten: give another --output")
    # Beside the target, for a rename is atomic within a file system only. Until all is there no file has the name of a
    # recording's: whoever looks for the newest recording meanwhile does not find half of one.
    making = target.with_name(f".{target.name}.{os.getpid()}")
    making.mkdir(parents=True)
    try:
        for part in parts:
            for file in sorted(part.folder.glob(f"rank{part.rank}.*.jsonl")):
                shutil.copyfile(file, making / f"{file.name}{_UNFINISHED}")
        for file in list(making.iterdir()):
            file.rename(file.with_suffix(""))
        making.rename(target)
    finally:  # there is none any more, unless something failed
        shutil.rmtree(making, ignore_errors=True)
