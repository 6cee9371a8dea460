"""Plain training loops: an iterable that times what it hands out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from .clock import DataSpan, StepClock
from .ledger import DATA_WAIT, VALIDATION, WORKER_STARTUP

T = TypeVar("T")


class Watched(Generic[T]):
    """A loader whose batches are timed while somebody iterates over it.

    Everything else is forwarded to the loader, so ``len``, ``.dataset`` or ``.sampler`` work as before. Iterating from
    another thread than the one that made the monitor is passed through untimed.

    Args:
        loader: Any iterable.
        clock: Of the monitor.
        stage: ``train``, or ``validation`` to book the whole iteration as validation.
        prepare: Called with the loader before each iteration; attaches the worker probe.
        size: Returns the number of items in a batch; must not raise.
    """

    def __init__(
        self,
        loader: Iterable[T],
        clock: StepClock,
        *,
        stage: str,
        prepare: Callable[[object], None],
        started: Callable[[object], None],
        size: Callable[[object], int | None],
    ) -> None:
        self._loader = loader
        self._clock = clock
        self._stage = stage
        self._prepare = prepare
        self._started = started
        self._size = size
        self._thread = threading.get_ident()

    def __iter__(self) -> Iterator[T]:
        if threading.get_ident() != self._thread:
            return iter(self._loader)
        if self._stage == "validation":
            return _Validation(self._loader, self._clock)
        clock = self._clock
        clock.pause()
        clock.ledger.base(WORKER_STARTUP)
        self._prepare(self._loader)
        clock.new_epoch(clock.epochs)
        iterator = iter(self._loader)
        self._started(iterator)
        return _Training(iterator, clock, self._size)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Training(Generic[T]):
    """One epoch of a watched loader. When the loop leaves it, early or not, the step in progress is closed."""

    def __init__(self, iterator: Iterator[T], clock: StepClock, size: Callable[[object], int | None]) -> None:
        self._iterator = iterator
        self._clock = clock
        self._size = size
        self._span = DataSpan(clock, DATA_WAIT)
        self._epoch = clock.epochs

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        clock = self._clock
        span = self._span
        span.__enter__()
        try:
            batch = next(self._iterator)
        except StopIteration:
            span.leave()
            self._leave()
            raise
        except BaseException:
            span.leave()
            raise
        if clock.after_fetch is None:
            span.leave()
        else:
            span.__exit__()
        clock.samples = self._size(batch)
        clock.tracker_step = clock.index
        clock.worked = True
        return batch

    def _leave(self) -> None:
        if self._epoch == self._clock.epochs and self._clock.open:
            self._clock.pause()

    def __del__(self) -> None:
        self._leave()


class _Validation(Generic[T]):
    """A watched validation loader: from its first batch to its last all time is validation."""

    def __init__(self, loader: Iterable[T], clock: StepClock) -> None:
        self._ledger = clock.ledger
        self._ledger.enter(VALIDATION)
        self._mark()
        self._open = True
        self._iterator = iter(loader)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return next(self._iterator)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._open:
            self._open = False
            self._ledger.exit(VALIDATION)
            self._mark()

    def _mark(self) -> None:
        ledger = self._ledger
        if ledger.device is not None:
            ledger.device.mark(ledger.stack[-1], ledger.last)

    def __del__(self) -> None:
        self._leave()
