"""Where in the program's code time was spent."""

from __future__ import annotations

from ..records import CodeLook
from .memo import Memo


class CodeSignals:
    """The newest look at each place. Looks are few: one a place, once more after another number of workers."""

    def __init__(self) -> None:
        self.memo = Memo()
        self._looks: dict[tuple[str, str, str, int], CodeLook] = {}

    def append(self, look: CodeLook) -> None:
        """Take what a look saw; it replaces an earlier one at the same place."""
        self.memo.changes += 1
        self._looks[look.place, look.bucket, look.part, look.loader] = look

    @property
    def looks(self) -> tuple[CodeLook, ...]:
        """All of them, in the order of their places."""
        return tuple(self._looks.values())

    def at(self, place: str, bucket: str = "", part: str = "") -> CodeLook | None:
        """Return the look at a place; None where nobody looked.

        Args:
            place: ``workers``, ``loop`` or ``startup``.
            bucket: Bucket of the ledger; empty for workers.
            part: Its named part; empty for the one look into the bucket that saw the most.
        """
        found = [
            look
            for look in self._looks.values()
            if look.place == place and look.bucket == bucket and part in ("", look.part)
        ]
        return max(found, key=lambda look: look.wall_s, default=None)
