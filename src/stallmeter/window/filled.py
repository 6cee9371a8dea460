"""How full of sequences the batches are, from those that were looked at."""

from __future__ import annotations

from ..records import BatchContent

MIN_BATCHES = 5
"""A batch or two may hold a sequence of unusual length."""

AGREE = 0.8
"""Part of the batches that were looked at that must tell of padding: elsewhere it may be something else; our choice."""

SIGNAL = "signal"
"""Numbers whose rows end in zeros may be columns of a table, too: then all batches have as many of them."""


class Filled:
    """Positions of the batches that hold something, up to the longest sequence of each."""

    def __init__(self) -> None:
        self._looked_at = self._found = 0
        self._positions = self._filled = 0.0
        self._lengths: tuple[int | None, int | None] = (None, None)
        """Shortest and longest batch."""
        self._sure = False
        """Whether a mask or ids told of one."""

    def add(self, content: BatchContent) -> None:
        """Take what one batch holds."""
        self._looked_at += 1
        length = content.used_positions or content.positions
        if content.filled is None or not length or length < 0:
            return
        self._found += 1
        self._positions += length
        self._filled += length * content.filled
        self._sure = self._sure or content.filled_by != SIGNAL
        shortest, longest = self._lengths
        self._lengths = min(length, shortest or length), max(length, longest or length)

    @property
    def share(self) -> float | None:
        """Part (0 to 1) of the positions that hold something; None where too few batches, or not all, tell of it."""
        if self._found < max(MIN_BATCHES, AGREE * self._looked_at):
            return None
        if not self._sure and self._lengths[0] == self._lengths[1]:
            return None
        return self._filled / self._positions
