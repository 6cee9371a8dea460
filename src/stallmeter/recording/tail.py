"""The newest records of a rank's recording, however long it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..records import Event, Record, StepRecord
from ..records.diagnosis import Verdict
from ..records.steps import END, STANDS
from .files import part_path
from .format import Header
from .reader import Position, Reader

TAIL_BYTES = 2**18
"""More than a thousand steps; read in some hundredths of a second."""


def stands_in(event: Event, step: StepRecord) -> bool:
    """Whether a step had begun before the training thread was said to stand."""
    return step.time_s - step.total_s <= event.time_s


_LINES = re.compile(rb'\["(?:step|ledger|host|gpu|arrivals|ddp|event|verdict)"')


@dataclass(frozen=True, slots=True)
class Tail:
    """What a recording ends with."""

    header: Header
    records: tuple[Record | Verdict, ...]
    """Steps, ledgers, samples of hardware, collectives, DDP's times, events and verdicts; the oldest first."""

    @property
    def ended(self) -> str | None:
        """Why the run ended; None where nothing says that it has."""
        return next((r.detail for r in reversed(self.records) if isinstance(r, Event) and r.name == END), None)

    @property
    def standing(self) -> str | None:
        """For how long the training thread stands, and where; None where a step began after that was said.

        The step in which it stands ends as well where an exception ends the run.
        """
        event = next((r for r in reversed(self.records) if isinstance(r, Event) and r.name == STANDS), None)
        step = next((r for r in reversed(self.records) if isinstance(r, StepRecord)), None)
        return event.detail if event is not None and (step is None or stands_in(event, step)) else None

    @property
    def settled(self) -> bool:
        """Whether the last verdict was made at the end: nothing of weight comes after it."""
        last = max((at for at, record in enumerate(self.records) if isinstance(record, Verdict)), default=-1)
        return any(isinstance(record, Event) and record.name == END for record in self.records[: last + 1])


def read_tail(folder: Path, rank: int, newest_bytes: int = TAIL_BYTES) -> Tail:
    """Read the newest records of a rank, also while it is written.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        newest_bytes: So much of its newest part, and of the one before where that one is shorter.

    Raises:
        RecordingError: There is no recording of this rank, or it is of a newer schema.
        OSError: It cannot be read.
    """
    path, header = Reader(folder, rank).newest()
    part = int(path.name.split(".")[1])
    room = newest_bytes - path.stat().st_size
    before = part_path(folder, rank, part - 1)
    if room > 0 and part and before.is_file():
        part -= 1
        room -= before.stat().st_size
    # In the middle of a line: what is left of it is no record.
    begin = Position(part, max(0, -room))
    return Tail(header, tuple(record for record, _ in Reader(folder, rank, begin, lines=_LINES)))
