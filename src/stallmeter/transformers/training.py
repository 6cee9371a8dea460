"""One call of ``Trainer.train``: from the Trainer's methods to spans of the ledger.

A step is an update of the weights, however many batches go into it. Since 4.46 the Trainer fetches all of them first,
in ``get_batch_samples``; before, each when the one before it was used, and what is seen of that is the time between.
Names were read in transformers 4.40 to 5.23; one that is not there costs its detail, never time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine import adapter
from ..engine.run import Run
from ..timing.clock import ValidationWait
from ..timing.ledger import (
    BACKWARD,
    CALLBACKS,
    CHECKPOINT,
    FORWARD,
    LOGGING,
    OPTIMIZER,
    VALIDATION,
    WORKER_STARTUP,
    Span,
    WorkSpan,
)
from ..timing.tracebacks import let_out
from .spans import Batches, Fetch, InTraining

_CHECKPOINT = ("_save_checkpoint", "_load_best_model")
_VALIDATION = ("evaluate", "predict")
_REPORTS = "transformers.integrations"
_SILENT = ("DefaultFlowCallback",)
"""Callbacks that decide what comes next and do nothing themselves."""


class Training(adapter.Training):
    """What the callback drives.

    Args:
        run: Of this training.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.optimizer = WorkSpan(run.clock.ledger, OPTIMIZER)
        self._fetch = Fetch(run.clock)
        self._batches: Batches | None = None
        self._between = False
        """Whether waiting for a batch is what happens between two events: the Trainer has no method that fetches."""
        self._in_epoch = self._asking = False
        self._samples: int | None = 0
        self._evaluation_wait = ValidationWait(self._clock)
        self._unasked = 0

    def listen(self, trainer: Any, but: type) -> None:
        """Turn the Trainer's methods, and the events of callbacks of other kinds than ``but``, into spans."""
        ledger, around = self._ledger, self._patches.around
        around(trainer, "log", Span(ledger, ledger.slot(LOGGING, "Trainer.log")))
        around(trainer, "compute_loss", InTraining(ledger, FORWARD))
        around(trainer.accelerator, "backward", InTraining(ledger, BACKWARD))
        spans = {name: Span(ledger, CHECKPOINT) for name in _CHECKPOINT}
        spans |= {name: WorkSpan(ledger, VALIDATION) for name in _VALIDATION}
        for name, span in spans.items():
            if hasattr(trainer, name):
                around(trainer, name, span)
        self._put(trainer, "training_step", self._training_step)
        self._put(trainer, "evaluation_loop", self._evaluation_loop)
        self._put(trainer, "prediction_loop", self._evaluation_loop)
        self._put(trainer, "prediction_step", self._prediction_step)
        self._between = not self._put(trainer, "get_batch_samples", self._get_batch_samples)
        if self._between:
            self._put(trainer, "_maybe_log_save_evaluate", self._maybe_log_save_evaluate)
        for callback in trainer.callback_handler.callbacks:
            if not isinstance(callback, but) and type(callback).__name__ not in _SILENT:
                reports = any(kind.__module__.startswith(_REPORTS) for kind in type(callback).__mro__)
                self._listen_to_hooks(callback, "TrainerCallback", LOGGING if reports else CALLBACKS)

    # -- batches and steps --------------------------------------------------------------------------------------------

    def begin_epoch(self, loader: Any, epoch: int, accumulate: int) -> None:
        """An epoch begins: what is not waiting for a batch until the first one comes is the start of the workers."""
        self._ledger.base(WORKER_STARTUP)
        self._run.loaders.fetches_per_step = accumulate
        if loader is not None:
            self._run.loaders.prepare(loader)
        self._clock.new_epoch(epoch)
        self._in_epoch, self._samples = True, 0
        self.ask_for_batch()

    def ask_for_batch(self) -> None:
        """The Trainer asks for a batch from now on, where no method of its own does."""
        if self._between and self._in_epoch and not self._asking:
            self._asking = True
            self._fetch.__enter__()

    def got_batch(self) -> None:
        """It has got it."""
        if self._asking:
            self._asking = False
            self._fetch.__exit__()

    def end_step(self, updates: int) -> None:
        """The weights were updated for the ``updates``-th time."""
        clock = self._clock
        clock.samples, self._samples = self._samples, 0
        clock.optimizer_step = clock.tracker_step = updates
        clock.worked = True

    def end_epoch(self) -> None:
        """What follows belongs to no step."""
        self._in_epoch, self._batches = False, None
        if self._asking:  # for one more than there are
            self._asking = False
            self._fetch.leave()
        self._clock.pause()

    def _get_batch_samples(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if self._batches is None or self._batches.iterator is not epoch_iterator:
                    self._batches = Batches(epoch_iterator, self._fetch)
                    self._run.loaders.iterator_made(epoch_iterator)
                return original(self._batches, *args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise

        return get_batch_samples

    def _maybe_log_save_evaluate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def maybe_log_save_evaluate(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
                self.ask_for_batch()
                return result
            except BaseException as exc:
                let_out(exc)
                raise

        return maybe_log_save_evaluate

    def _training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def training_step(*args: Any, **kwargs: Any) -> Any:
            try:
                self.got_batch()
                size = self._run.loaders.size(args[1] if len(args) > 1 else kwargs.get("inputs"))
                self._samples = None if size is None or self._samples is None else self._samples + size
                return original(*args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise

        return training_step

    # -- evaluations --------------------------------------------------------------------------------------------------

    def _evaluation_loop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluation_loop(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
            self._evaluation_wait.begin(dataloader, workers=bool(getattr(dataloader, "num_workers", 0)))
            self._unasked = _batches_of(dataloader)
            self.ask_for_evaluation()
            try:
                return original(dataloader, *args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise
            finally:
                self._got_for_evaluation()
                self._evaluation_wait.end()

        return evaluation_loop

    def _prediction_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def prediction_step(*args: Any, **kwargs: Any) -> Any:
            try:
                self._got_for_evaluation()
                return original(*args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise

        return prediction_step

    def ask_for_evaluation(self) -> None:
        """A batch to evaluate is asked for now, unless there is none left."""
        if self._unasked > 0:
            self._unasked -= 1
            self._evaluation_wait.__enter__()

    def _got_for_evaluation(self) -> None:
        self._evaluation_wait.__exit__()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, reason: str, exception: BaseException | None = None) -> None:
        """Undo every patch, then end the run."""
        self._in_epoch, self._batches = False, None
        super().close(reason, exception)


def _batches_of(loader: Any) -> int:
    """Return how many batches a loader says it has; 1 where it does not: when another is asked for is then not seen."""
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 - a length is somebody else's code, and only worth something if there is one
        return 1
