"""One run of a trainer of Ignite: from its events to spans of the ledger. Read in Ignite 0.4.11 to 0.5.5."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from ignite.engine import Events

from ..engine import adapter
from ..engine.optimizer_watch import OptimizerWatch
from ..engine.run import Run
from ..timing.clock import DataSpan, ValidationWait
from ..timing.ledger import DATA_WAIT, WORKER_STARTUP, Ledger
from .evaluating import evaluating
from .handlers import in_handler, time_handlers
from .running import watch_runs


class Training(adapter.Training):
    """One run of a trainer.

    Args:
        run: Of this training.
        trainer: The engine.
    """

    def __init__(self, run: Run, trainer: Any) -> None:
        super().__init__(run)
        self._trainer = weakref.ref(trainer)
        self._thread = get_ident()
        self._wait = DataSpan(run.clock, DATA_WAIT)
        self._waiting = False
        self._size = run.loaders.size
        self._evaluation_wait = ValidationWait(self._clock)
        self._optimizers = OptimizerWatch(run, self._is_here)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn events into spans inside, and leave nothing afterwards."""
        trainer: Any = self._trainer()
        events = {
            Events.EPOCH_STARTED: self._epoch_started,
            Events.GET_BATCH_STARTED: self._ask,
            Events.GET_BATCH_COMPLETED: self._got_batch,
            Events.DATALOADER_STOP_ITERATION: self._stopped,
            Events.EPOCH_COMPLETED: self._epoch_completed,
        }
        with ExitStack() as stack:
            stack.callback(time_handlers(trainer, self._ledger_here, self._run.guard))
            for event, call in events.items():
                stack.callback(trainer.add_event_handler(event, call).remove)
            stack.enter_context(watch_runs(self))
            self._optimizers.listen()
            stack.callback(self._optimizers.close)
            yield

    def _ledger_here(self) -> Ledger | None:
        return self._ledger if get_ident() == self._thread else None

    def _is_here(self) -> bool:
        return get_ident() == self._thread

    @contextmanager
    def evaluating(self, evaluator: Any) -> Iterator[None]:
        """Book what an engine does that one of the handlers runs: no event of the trainer tells of it."""
        if not self._is_here() or not in_handler(self._ledger):
            yield
            return
        with evaluating(evaluator, self._clock, self._evaluation_wait):
            yield

    # -- the trainer's events -----------------------------------------------------------------------------------------

    def _epoch_started(self, engine: Any) -> None:
        if engine.state.dataloader is None:
            why = "its engine is given no data; stallmeter run sees the loader that a process function asks itself"
            self._run.guard.name_once("StallHandler", "times no batch", why)
        self._ledger.base(WORKER_STARTUP)
        if getattr(engine, "_dataloader_iter", None) is None:
            self._expect_iterator(engine)
        self._clock.new_epoch(engine.state.epoch - 1)

    def _expect_iterator(self, engine: Any) -> None:
        """Ignite is about to make an iterator of its loader."""
        if engine.state.dataloader is not None:
            self._run.loaders.prepare(engine.state.dataloader)
            found: Callable[[], object] = lambda: getattr(self._trainer(), "_dataloader_iter", None)  # noqa: E731
            self._run.loaders.find_iterator_by(found)

    # These two are called for each batch. Ignite has less to do for a handler that takes no engine, and a handler at
    # ITERATION_COMPLETED would cost as much as both.

    def _ask(self) -> None:
        self._waiting = True
        self._wait.__enter__()

    def _stopped(self, engine: Any) -> None:
        """The loader has no more: another iterator of it is made before a batch comes, and the wait goes on."""
        self._expect_iterator(engine)

    def _got_batch(self, engine: Any) -> None:
        if self._waiting:
            self._waiting = False
            self._wait.__exit__()
        clock, state = self._clock, engine.state
        clock.samples = self._size(state.batch)
        clock.tracker_step = state.iteration + 1
        clock.worked = True

    def _epoch_completed(self, engine: Any) -> None:
        """What follows belongs to no step."""
        if self._waiting:
            self._waiting = False
            self._wait.leave()
        self._clock.pause()
