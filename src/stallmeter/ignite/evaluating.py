"""An engine of Ignite that a handler of another runs: an evaluation, what its loader is waited for, and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ignite.engine import Events

from ..timing.clock import StepClock, ValidationWait
from .handlers import evaluation


@contextmanager
def evaluating(evaluator: Any, clock: StepClock, wait: ValidationWait | None = None) -> Iterator[None]:
    """Book what an engine does inside as validation: no event of the trainer tells of it.

    Args:
        evaluator: The engine, which is about to run.
        clock: Of the training.
        wait: Of the training's evaluations; by default one of its own.
    """
    wait = ValidationWait(clock) if wait is None else wait
    with evaluation(clock.ledger):
        wait.begin(workers=False)
        asked = evaluator.add_event_handler(Events.GET_BATCH_STARTED, lambda: wait.__enter__())
        got = evaluator.add_event_handler(Events.GET_BATCH_COMPLETED, lambda: wait.__exit__())
        try:
            yield
        finally:
            asked.remove()
            got.remove()
            wait.end(evaluator.state.dataloader)
