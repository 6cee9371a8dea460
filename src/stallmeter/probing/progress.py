"""A line on the terminal that says what is being measured. Drawn by hand: a drawing thread would disturb it."""

from __future__ import annotations

import sys
from typing import TextIO

COLUMNS = 24
NAME_COLUMNS = 28


class Progress:
    """Shows phases on a terminal, and nothing where nobody looks.

    Args:
        wanted: False shows nothing.
        file: Where to; stderr by default.
    """

    def __init__(self, wanted: bool, file: TextIO | None = None) -> None:
        self._file = sys.stderr if file is None else file
        self._shown = wanted and self._file.isatty()

    def show(self, phase: str, part: float) -> None:
        """Draw the bar.

        Args:
            phase: What is being measured.
            part: How much of it is over, 0 to 1.
        """
        if self._shown:
            done = round(part * COLUMNS)
            bar = f"{'#' * done}{'.' * (COLUMNS - done)}"
            self._file.write(f"\r\x1b[K{phase:<{NAME_COLUMNS}} [{bar}]")
            self._file.flush()

    def clear(self) -> None:
        """Wipe the line."""
        if self._shown:
            self._file.write("\r\x1b[K")
            self._file.flush()
