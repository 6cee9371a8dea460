"""Batches that are smaller than those before them: the last of an epoch, where the items are no multiple of a batch."""

from __future__ import annotations

ALIKE = 8
"""Batches of one size in a row after which a smaller one is told: sizes that change all the time tell of their items,
not of their number."""


class Sizes:
    """Follows the sizes of batches, in their order."""

    __slots__ = ("_alike", "_size")

    def __init__(self) -> None:
        self._size: int | None = None
        self._alike = 0

    def falls(self, size: int | None) -> bool:
        """Take the next batch; return whether it is smaller than many before it, which had one size.

        Args:
            size: Items in it; None where that is not known.
        """
        if size == self._size:
            self._alike += 1
            return False
        falls = size is not None and self._size is not None and self._alike >= ALIKE and size < self._size
        self._size, self._alike = size, 1
        return falls
