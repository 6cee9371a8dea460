"""The full per-step series as CSV, for the tracker's artifact preview and for spreadsheets."""

from __future__ import annotations

import csv
import os
import re
from collections import OrderedDict
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..recording import Reader
from ..records import DeviceStep, StepRecord

_FIELDS = tuple(f.name for f in fields(StepRecord))
_DEVICE_FIELDS = tuple(f.name for f in fields(DeviceStep) if f.name not in ("index", "epoch_start"))
_COLUMNS = ("step", *_FIELDS[1:], *(n if n.startswith(("exposed", "host")) else f"device_{n}" for n in _DEVICE_FIELDS))

_STEPS_AND_DEVICE = re.compile(rb'\["(?:step|device)",')

MAX_ROWS = 100_000
"""About 15 MB: what a tracker's preview and a spreadsheet still open."""

HELD_ROWS = 4096
"""Rows kept back until the device's part of the step has come: more than a device can be behind in recorded steps."""


def write_steps_csv(folder: Path, rank: int, path: Path) -> int:
    """Write the recorded steps of one rank, one row each, and return how many rows there are.

    Of more than `MAX_ROWS` steps those are written whose index is divisible by 2, or by 4 and so on: the same ones on
    each rank. The recording has them all.

    The column names carry the units: ``_s`` is seconds, ``time_s`` unix seconds, everything else a count or a flag.
    ``device_`` columns, ``exposed_wait_s`` and ``host_…`` are the step on the device's timeline, where it was timed. An
    empty cell was not measured.

    Args:
        folder: The recording's folder.
        rank: Whose steps.
        path: The file, replaced as a whole when complete.

    Raises:
        RecordingError: There is no such recording.
        OSError: A file cannot be read or written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    rows = 0
    try:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS)
            held: OrderedDict[int, list[Any]] = OrderedDict()
            every = Reader(folder, rank).every_for(MAX_ROWS)
            for record, _ in Reader(folder, rank, lines=_STEPS_AND_DEVICE, every=every):
                if isinstance(record, StepRecord):
                    held[record.index] = [_cell(getattr(record, name)) for name in _FIELDS]
                    rows += 1
                elif isinstance(record, DeviceStep) and record.index in held:
                    held[record.index] += [_cell(getattr(record, name)) for name in _DEVICE_FIELDS]
                if len(held) > HELD_ROWS:
                    writer.writerow(_full(held.popitem(last=False)[1]))
            writer.writerows(_full(row) for row in held.values())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def _full(row: list[Any]) -> list[Any]:
    return row + [""] * (len(_COLUMNS) - len(row))


def _cell(value: float | None) -> float | str:
    return "" if value is None else int(value) if isinstance(value, bool) else value
