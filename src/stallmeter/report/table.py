"""A table in plain words, from which every form of a report is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head; a row may end early."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: bool = True
    """Whether all columns but the first hold numbers."""
