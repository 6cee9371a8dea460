"""The queue between a loader's workers and the loop, looked at from outside without touching it.

Workers put batches on one queue in the order they finish them. The loop wants them in the order it asked: what it
takes off the queue before the one that is due, it parks. A worker's batch counts as queued from the moment the worker
hands it over, while it may still be on its way through a pipe.

What the loop iterates may be a wrapper around one loader or several. Their iterators are then looked for inside the
wrapper's, after its first batches, and are counted: how many batches the loop's one took from each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from .dataloader import is_iterable
from .indices import IndexTimes
from .worker import WorkerInit
from .wrappers import is_loader_iterator, iterators_in

_ODD = (AttributeError, LookupError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError)
"""What an iterator that is not as expected, is shut down or is somebody else's can raise."""

IN_THE_LOOP = -1
"""Number of a loader without workers, where the loop's batches are made."""

REGULAR = 3
"""So often in a row the loop took one batch from each loader: then what is ready for them is ready for the loop."""


def _gone() -> Any:
    return None


class _Source:
    """One iterator with workers that the loop's batches come from."""

    __slots__ = (
        "iterator",
        "number",
        "out_of_order",
        "pinned",
        "queued",
        "sole",
        "uncounted",
        "waited_with",
        "yielded",
    )

    def __init__(self, iterator: Any) -> None:
        # A weak reference: an iterator that was left early stops its workers when it is freed.
        self.iterator: Callable[[], Any] = weakref.ref(iterator)
        self.pinned = bool(iterator._pin_memory)
        # With one worker, or with no order to keep, whatever lies in the queue is what comes next.
        self.sole = iterator._num_workers == 1 or not getattr(iterator, "_in_order", True)
        # A worker that runs out of an iterable dataset leaves its tasks open, and torch's own count wrong.
        self.uncounted = is_iterable(iterator)
        self.number = _number_of(iterator)
        self.queued = self.waited_with = self.out_of_order = 0
        self.yielded = int(getattr(iterator, "_num_yielded", 0))

    def ask(self, iterator: Any) -> tuple[int, bool | None]:
        # qsize of a queue between processes is a semaphore's value, right at this instant only; macOS has none and
        # raises. A batch that comes between this and next() is counted as late, which it nearly was.
        queued = iterator._data_queue.qsize()
        if self.pinned:
            queued += iterator._worker_result_queue.qsize()
        parked = self._parked(iterator)
        due = iterator._task_info.get(iterator._rcvd_idx)
        if due is not None and len(due) == 2:
            head: bool | None = True
        elif not queued:
            head = False
        else:
            head = True if self.sole or queued >= iterator._tasks_outstanding else None
        self.queued, self.waited_with = queued, parked
        return queued + parked, head

    def answer(self, iterator: Any) -> bool:
        ahead = self._parked(iterator) - self.waited_with
        # One parked batch less: it was the one that was due.
        if ahead < 0:
            return True
        self.out_of_order += ahead
        # Those ahead of it stood before it in the queue: it was there as well if the queue was longer than that.
        return ahead < self.queued

    def _parked(self, iterator: Any) -> int:
        if self.uncounted:
            return sum(len(task) == 2 for task in iterator._task_info.values())
        return len(iterator._task_info) - int(iterator._tasks_outstanding)


class PrefetchQueue:
    """For the training thread only, but for `feeding`, `taken` and `fetches`, which another one may read."""

    __slots__ = (
        "_asked",
        "_direct",
        "_gone_out_of_order",
        "_look_at",
        "_looked",
        "_regular",
        "_sources",
        "_unknown",
        "feeding",
        "fetches",
        "indices",
        "iterator_of",
        "taken",
    )

    def __init__(self) -> None:
        self.indices = IndexTimes()
        """Of the iterators that the loop's batches come from."""
        self.iterator_of: Callable[[], object | None] = _gone
        """Returns the iterator in use."""
        self.taken: dict[int, int] = {}
        """Batches that the loop took from each loader inside a wrapper, by its number, in `fetches`."""
        self.fetches = 0
        """Batches that the loop had from a wrapper while it was counted what they took."""
        self.feeding: frozenset[int] = frozenset()
        """Loaders of which it was seen that the loop's batches come from them."""
        self._gone_out_of_order = 0
        self._sources: list[_Source] = []
        self.new_epoch()

    @property
    def out_of_order(self) -> int:
        """Batches that were taken off a queue before the one that was due."""
        return self._gone_out_of_order + sum(source.out_of_order for source in self._sources)

    def new_epoch(self) -> None:
        """Forget the iterators: they are looked for when the next batch is asked for."""
        self._gone_out_of_order = self.out_of_order
        self._sources = []
        self._direct = self._unknown = self._asked = False
        self._regular = self._looked = 0
        self._look_at = 1

    def asked(self) -> tuple[int | None, bool | None]:
        """Say what is ready, just before ``next()``; see `LoaderProbe.asked`."""
        self._asked = False
        if self._unknown:
            return None, None
        try:
            if self._direct and self._sources[0].iterator() is None:
                self._sources = []  # replaced within an epoch, as a loader that is cycled
            if not self._sources and not self._bind():
                return None, None
            if not self._direct and self._regular < REGULAR:
                return None, None
            ready, head = 1 << 30, True if self._sources else None
            for source in self._sources:
                iterator = source.iterator()
                if iterator is None:
                    return None, None
                lies_ready, comes = source.ask(iterator)
                ready = min(ready, lies_ready)
                head = head and comes if head is not False else False
        except _ODD:
            self._unknown = True
            return None, None
        self._asked = True
        return ready, head

    def answered(self) -> bool | None:
        """Say whether the batch that ``next()`` just returned had been ready; see `LoaderProbe.answered`."""
        if self._unknown:
            return None
        try:
            if not self._direct and not self._count():
                return None
            if not self._asked:
                return None
            answers = []
            for source in self._sources:
                iterator = source.iterator()
                # The end of a loader shuts its iterator down, which may free it.
                if iterator is None:
                    return None
                answers.append(source.answer(iterator))
            return all(answers)
        except _ODD:
            self._unknown = True
            return None

    def watch_loop(self) -> None:
        """Time the sampler of an iterator without workers, just before ``next()``; those inside a wrapper come late."""
        self._looked += 1
        if self._looked < self._look_at or self._unknown:
            return
        self._look_at = 2 * self._looked
        root: Any = self.iterator_of()
        found = [] if root is None else [root] if is_loader_iterator(root) else iterators_in(root)
        try:
            for iterator in found:
                self.indices.watch(iterator, IN_THE_LOOP)
        except _ODD:
            self._unknown = True

    def _bind(self) -> bool:
        """Find the iterator of a loader that the loop asks itself; those inside a wrapper come to light later."""
        iterator: Any = self.iterator_of()
        self._direct = False
        if iterator is None or not isinstance(getattr(iterator, "_task_info", None), dict):
            return False
        self._sources = [_Source(iterator)]
        self.indices.watch(iterator, self._sources[0].number)
        self._direct = True
        self.feeding |= {self._sources[0].number}
        return True

    def _count(self) -> bool:
        """Count what a batch of the wrapper took; True when it was one of each loader. Look for iterators at times."""
        self._looked += 1
        if self._sources and all(source.iterator() is not None for source in self._sources):
            took = [self._took(source) for source in self._sources]
            self.fetches += 1
            self._regular = self._regular + 1 if all(each == 1 for each in took) else 0
        elif self._sources:
            self._look_at = self._looked  # one has come to its end: there may be another in its place
        if self._looked >= self._look_at:
            self._look_at = 2 * self._looked
            self._search()
        return self._regular > 0

    def _took(self, source: _Source) -> int:
        before, source.yielded = source.yielded, source.iterator()._num_yielded
        took = max(0, source.yielded - before)
        if took:
            if source.number not in self.feeding:
                self.feeding |= {source.number}
            self.taken[source.number] = self.taken.get(source.number, 0) + took
        return took

    def _search(self) -> None:
        root = self.iterator_of()
        if root is None:
            return
        found = [iterator for iterator in iterators_in(root) if iterator._num_yielded]
        known = [source.iterator() for source in self._sources]
        if any("_task_info" not in vars(iterator) for iterator in found):
            self._unknown = True  # one makes its batches in the loop's thread: a wait may be for that
            self.feeding |= {_number_of(iterator) for iterator in found if "_task_info" in vars(iterator)}
            return
        if [*map(id, found)] != [*map(id, known)] and found:
            kept = {id(source.iterator()): source for source in self._sources}
            self._gone_out_of_order = self.out_of_order
            self._sources = [kept.get(id(iterator)) or _Source(iterator) for iterator in found]
            for iterator, source in zip(found, self._sources, strict=True):
                self.indices.watch(iterator, source.number)
            self._gone_out_of_order -= sum(source.out_of_order for source in self._sources)
            self._regular = 0


def _number_of(iterator: Any) -> int:
    """Which of the training's loaders an iterator is of; -1 for none of them."""
    init = getattr(iterator, "_worker_init_fn", None)
    if isinstance(init, partial):  # what torch puts around it for datapipes
        init = next((arg for arg in init.args if isinstance(arg, WorkerInit)), None)
    return init.number if isinstance(init, WorkerInit) else -1
