"""A recording whose folder is not known yet: rank 0 names it, and the other ranks do not wait for that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from ..recording import Header, Recorder
from ..records import Record
from ..records.diagnosis import Verdict
from .run_folder import RunFolder

HELD_RECORDS = 100_000
"""Most records that are kept until the folder is known; the oldest go first."""


class DeferredRecorder:
    """Keeps records in memory until the run's folder is known; from then on it is the recorder there.

    Args:
        run_folder: Knows the folder's name, in time.
        open_at: Opens the recording in a folder of this name.
    """

    def __init__(self, run_folder: RunFolder, open_at: Callable[[str], Recorder]) -> None:
        self._run_folder = run_folder
        self._open_at = open_at
        self._held: deque[Record | Verdict] = deque(maxlen=HELD_RECORDS)
        self._recorder: Recorder | None = None

    @property
    def folder(self) -> Path | None:
        """The recording's folder; None until it is known."""
        return None if self._recorder is None else self._recorder.folder

    @property
    def header(self) -> Header | None:
        """First line of the recording; None until the folder is known."""
        return None if self._recorder is None else self._recorder.header

    def take_losses(self) -> list[str]:
        """Return what could not be kept since the last call; see `Recorder.take_losses`."""
        return [] if self._recorder is None else self._recorder.take_losses()

    @property
    def detail(self) -> int:
        """Every how many steps one is kept; see `Recorder.detail`."""
        return 1 if self._recorder is None else self._recorder.detail

    def write(self, record: Record | Verdict) -> None:
        """Add a record to what the next flush writes."""
        if self._recorder is None:
            self._held.append(record)
        else:
            self._recorder.write(record)

    def flush(self) -> None:
        """Write what was added, when the folder is known.

        Raises:
            OSError: As for `Recorder`, also when the folder cannot be made. The next flush tries again.
        """
        if self._recorder is None:
            name = self._run_folder.name()
            if name is None:
                return
            # Only the sampler thread writes and flushes: nothing is added between the last of these and the next one.
            self._recorder = self._open_at(name)
            while self._held:
                self._recorder.write(self._held.popleft())
        self._recorder.flush()

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            if self._recorder is not None:
                self._recorder.close()
