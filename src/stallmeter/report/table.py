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
    words: frozenset[int] = frozenset()
    """Columns of a table of numbers that hold words all the same."""
    title: str = ""

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers, which stand on the right."""
        return self.numeric and column > 0 and column not in self.words
