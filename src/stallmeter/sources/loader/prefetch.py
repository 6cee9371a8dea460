"""The queue between a loader's workers and the loop, looked at from outside without touching it.

Workers put batches on one queue in the order they finish them. The loop wants them in the order it asked: what it
takes off the queue before the one that is due, it parks. A worker's batch counts as queued from the moment the worker
hands it over, while it may still be on its way through a pipe.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .dataloader import is_iterable

_ODD = (AttributeError, LookupError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError)
"""What an iterator that is not as expected, is shut down or is somebody else's can raise."""


def _gone() -> Any:
    return None


class PrefetchQueue:
    """For the training thread only."""

    __slots__ = (
        "_iterator",
        "_pinned",
        "_queued",
        "_sole",
        "_uncounted",
        "_unknown",
        "_waited_with",
        "iterator_of",
        "out_of_order",
    )

    def __init__(self) -> None:
        self.iterator_of: Callable[[], object | None] = _gone
        """Returns the iterator in use."""
        self.out_of_order = 0
        """Batches that were taken off the queue before the one that was due."""
        self.new_epoch()

    def new_epoch(self) -> None:
        """Forget the iterator: the next one is asked for when it is needed."""
        # A weak reference: an iterator that was left early stops its workers when it is freed.
        self._iterator: Callable[[], Any] = _gone
        self._unknown = False
        self._queued: int | None = None

    def asked(self) -> tuple[int | None, bool | None]:
        """Say what is ready, just before ``next()``; see `LoaderProbe.asked`."""
        self._queued = None
        if self._unknown:
            return None, None
        try:
            iterator = self._iterator()
            if iterator is None:
                iterator = self._bind()
                if iterator is None:
                    return None, None
            # qsize of a queue between processes is a semaphore's value, right at this instant only; macOS has none and
            # raises. A batch that comes between this and next() is counted as late, which it nearly was.
            queued = iterator._data_queue.qsize()
            if self._pinned:
                queued += iterator._worker_result_queue.qsize()
            parked = self._parked(iterator)
            due = iterator._task_info.get(iterator._rcvd_idx)
            if due is not None and len(due) == 2:
                head: bool | None = True
            elif not queued:
                head = False
            else:
                head = True if self._sole or queued >= iterator._tasks_outstanding else None
        except _ODD:
            self._unknown = True
            return None, None
        self._queued, self._waited_with = queued, parked
        return queued + parked, head

    def answered(self) -> bool | None:
        """Say whether the batch that ``next()`` just returned had been ready; see `LoaderProbe.answered`."""
        if self._queued is None:
            return None
        try:
            iterator = self._iterator()
            # The end of a loader shuts its iterator down, which may free it.
            if iterator is None:
                return None
            ahead = self._parked(iterator) - self._waited_with
        except _ODD:
            self._unknown = True
            return None
        # One parked batch less: it was the one that was due.
        if ahead < 0:
            return True
        self.out_of_order += ahead
        # Those ahead of it stood before it in the queue: it was there as well if the queue was longer than that.
        return ahead < self._queued

    def _parked(self, iterator: Any) -> int:
        if self._uncounted:
            return sum(len(task) == 2 for task in iterator._task_info.values())
        return len(iterator._task_info) - int(iterator._tasks_outstanding)

    def _bind(self) -> Any:
        iterator: Any = self.iterator_of()
        if iterator is None:
            return None
        if not isinstance(getattr(iterator, "_task_info", None), dict):
            self._unknown = True
            return None
        self._pinned = bool(iterator._pin_memory)
        # With one worker, or with no order to keep, whatever lies in the queue is what comes next.
        self._sole = iterator._num_workers == 1 or not getattr(iterator, "_in_order", True)
        # A worker that runs out of an iterable dataset leaves its tasks open, and torch's own count wrong.
        self._uncounted = is_iterable(iterator)
        self._iterator = weakref.ref(iterator)
        return iterator
