"""Spans of the ledger as the Trainer needs them: steps of several batches, methods that evaluations call, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..timing.clock import DataSpan, StepClock
from ..timing.ledger import DATA_WAIT, VALIDATION, WorkSpan
from ..timing.tracebacks import let_out


class Fetch(DataSpan):
    """The span around one batch of a step; of several the first that was late tells of the queue."""

    __slots__ = ("_before",)

    def __init__(self, clock: StepClock) -> None:
        super().__init__(clock, DATA_WAIT)
        self._before: tuple[int | None, bool | None] | None = None

    def __enter__(self) -> str:
        clock = self.clock
        self._before = None if clock.worked or not clock.open else (clock.ready, clock.head_ready)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        if exc and exc[0] is not None:  # the end of the loader
            self.leave()
            return
        super().__exit__()
        if self._before is not None and self._before[1] is not True:
            self.clock.ready, self.clock.head_ready = self._before


class Batches:
    """The Trainer's iterator over an epoch, timed."""

    def __init__(self, iterator: Iterator[Any], fetch: Fetch) -> None:
        self.iterator = iterator
        self._fetch = fetch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            with self._fetch:
                return next(self.iterator)
        except BaseException as exc:
            let_out(exc)
            raise


class InTraining(WorkSpan):
    """The span of a method that evaluations call, too: there it is none."""

    __slots__ = ()

    def __enter__(self) -> str:
        return self.action if VALIDATION in self.ledger.stack else super().__enter__()

    def __exit__(self, *exc: object) -> None:
        if VALIDATION not in self.ledger.stack:
            super().__exit__(*exc)
