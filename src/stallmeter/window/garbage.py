"""What Python's garbage collector took."""

from __future__ import annotations

from ..records import GarbagePauses
from ..records.diagnosis import Location
from .memo import Memo


class GarbageSignals:
    """Signals of garbage collections, sums over the run."""

    def __init__(self) -> None:
        self.memo = Memo()
        self._known = False
        self._pause_s = self._training_s = self._waiting_s = self._validation_s = self._longest_s = 0.0
        self._passes = 0
        self._blocks: int | None = None
        self._automatic = True
        self._called_s = 0.0
        self._called_at = ("", 0, "")

    def append(self, record: GarbagePauses) -> None:
        """Take what came since the record before."""
        self.memo.changes += 1
        self._known = True
        self._passes += record.passes
        self._pause_s += record.pause_s
        self._training_s += record.training_s
        self._waiting_s += record.waiting_s
        self._validation_s += record.validation_s
        self._longest_s = max(self._longest_s, record.longest_s)
        self._blocks = record.blocks if record.blocks is not None else self._blocks
        self._automatic = record.automatic
        self._called_s += record.called_s
        if record.called_file and record.called_function:
            self._called_at = record.called_file, record.called_line, record.called_function

    @property
    def training_s(self) -> float | None:
        """Seconds of collections on the training thread since its first step."""
        return self._training_s if self._known else None

    @property
    def waiting_s(self) -> float | None:
        """Of these the seconds inside data waits."""
        return self._waiting_s if self._known else None

    @property
    def step_s(self) -> float | None:
        """Of these the seconds in neither a data wait nor validation: steps are longer by them."""
        return max(0.0, self._training_s - self._waiting_s - self._validation_s) if self._known else None

    @property
    def other_threads_s(self) -> float | None:
        """Seconds of collections on other threads, and before the first step."""
        return max(0.0, self._pause_s - self._training_s) if self._known else None

    @property
    def longest_s(self) -> float | None:
        """The longest collection on the training thread."""
        return self._longest_s if self._known else None

    @property
    def passes(self) -> int | None:
        """Collections of the oldest generation."""
        return self._passes if self._known else None

    @property
    def blocks(self) -> int | None:
        """Blocks of memory on Python's heap, as last counted; None without a long collection."""
        return self._blocks

    @property
    def automatic(self) -> bool | None:
        """Whether the collector runs by itself, as last seen."""
        return self._automatic if self._known else None

    @property
    def called_s(self) -> float | None:
        """Of the seconds on the training thread those in collections that the program asked for: ``gc.collect()``."""
        return self._called_s if self._known else None

    @property
    def called_at(self) -> Location | None:
        """Where it asks for most of them, with their share of the collections; None where it does not."""
        if not self._called_at[0] or not self._training_s:
            return None
        return Location(*self._called_at, 100.0 * self._called_s / self._training_s, "gc.collect")
