"""How the processes of a recording's ranks ended, as somebody saw it who outlived them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .files import write_atomically

ENDS = "ends.json"
"""Beside the recording's parts. Only there where the process of rank 0 ended before its reports were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """The end of one rank's process."""

    time_s: float
    """Unix time, by the clock of the host that the ranks share."""
    signal: int | None = None
    """Number of the signal that ended it; None where none did, or nobody can tell."""
    status: int | None = None
    """What it returned; None where a signal ended it, or nobody can tell."""


def write_ends(folder: Path, ends: Mapping[int, ProcessEnd]) -> None:
    """Keep how the processes of some ranks ended.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(folder / ENDS, json.dumps({str(rank): asdict(end) for rank, end in sorted(ends.items())}))


def read_ends(folder: Path) -> dict[int, ProcessEnd]:
    """Return how the processes of ranks ended; empty where nobody saw it, or it cannot be read: reports do without."""
    try:
        document = json.loads((folder / ENDS).read_text(encoding="utf-8"))
        return {int(rank): ProcessEnd(**end) for rank, end in document.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
