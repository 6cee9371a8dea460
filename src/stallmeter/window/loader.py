"""How the training loader is set up, what its batches hold, and which numbers of workers were tried."""

from __future__ import annotations

from dataclasses import replace

from ..records import BatchContent, LoaderInfo, WorkerTrial
from .memo import Memo


class LoaderSignals:
    """Signals of the training loader."""

    def __init__(self) -> None:
        self.memo = Memo()
        self.trials: list[WorkerTrial] = []
        """Numbers of workers that were tried, each as it stands now."""
        self._info: LoaderInfo | None = None
        self._content: BatchContent | None = None

    def append(self, record: LoaderInfo | BatchContent | WorkerTrial) -> None:
        """Take what is newly known of the loader."""
        self.memo.changes += 1
        match record:
            case LoaderInfo():
                self._info = record
            case BatchContent():
                self._content = record
            case WorkerTrial():
                last = self.trials[-1] if self.trials else None
                if last is not None and (last.outcome, last.workers) == ("measuring", record.workers):
                    self.trials.pop()
                self.trials.append(record)

    def follow(self, other: LoaderSignals) -> None:
        """Begin with all that is known of the same loader; what is tried later is known to both."""
        self._info, self._content, self.trials = other.info, other.content, other.trials

    def set_workers(self, num_workers: int) -> None:
        """Know the number of workers before the loader's own record tells it, or after it told too early."""
        self.memo.changes += 1
        self._info = self._info and replace(self._info, num_workers=num_workers)

    @property
    def info(self) -> LoaderInfo | None:
        """The training loader's settings."""
        return self._info

    @property
    def content(self) -> BatchContent | None:
        """What a batch holds."""
        return self._content

    @property
    def num_workers(self) -> int | None:
        """Workers of the training loader."""
        return None if self._info is None else self._info.num_workers

    @property
    def batch_size(self) -> int | None:
        """Items in a batch of the training loader."""
        return None if self._info is None else self._info.batch_size

    @property
    def pin_memory(self) -> bool | None:
        """Whether the training loader puts its batches into pinned memory."""
        return None if self._info is None else self._info.pin_memory
