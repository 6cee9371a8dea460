"""One ``fit`` of Keras: from the calls of its list of callbacks to spans of the ledger.

On torch Keras takes a batch between the end of one and the beginning of the next: what lies between the two events is
the wait. The list is listened to, not a callback in it: a callback with a method for each batch would have Keras call
all of them on its own thread, one after the other, where it may have others do that. Read in Keras 3.0 to 3.15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine import adapter
from ..engine.run import Run
from ..timing.clock import DataSpan, ValidationWait
from ..timing.ledger import (
    CALLBACKS,
    CHECKPOINT,
    DATA_WAIT,
    LOGGING,
    OPTIMIZER,
    VALIDATION,
    WORKER_STARTUP,
    WorkSpan,
)
from ..timing.tracebacks import let_out

_REPORTS = ("TensorBoard", "CSVLogger", "RemoteMonitor", "SwanLabLogger")
_REPORT_PACKAGES = ("mlflow", "wandb", "neptune", "comet_ml", "clearml", "aim", "tensorboard")
_CHECKPOINT = ("ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint")
_MAKERS = ("py_dataset", "generator")
"""Where Keras keeps what makes the batches, other than a DataLoader of torch and arrays."""
_SILENT = ("History",)
"""Callbacks that note what Keras itself wants to know."""


class Training(adapter.Training):
    """What the callback drives.

    Args:
        run: Of this training.
        iterated: Keras' iterator over epochs; None where that was not found.
    """

    def __init__(self, run: Run, iterated: Any) -> None:
        super().__init__(run)
        self._iterated = iterated
        source = getattr(iterated, "data_adapter", None)
        self._loader = getattr(source, "_dataloader", None)
        """What ``fit`` was given, if that was a DataLoader."""
        self._maker = next((found for name in _MAKERS if (found := getattr(source, name, None)) is not None), None)
        """The same of something else that makes batches, in threads or processes of Keras' or in this thread."""
        self._has_workers = bool(getattr(self._loader, "num_workers", 0))
        self._wait = DataSpan(run.clock, DATA_WAIT)
        self._evaluation_wait = ValidationWait(self._clock)
        self._asking = False
        self._batches = 0
        """Trained on so far."""
        self._per_update = 1
        self._per_epoch: int | None = None

    def listen(self, callbacks: Any, model: Any, but: type) -> None:
        """Turn the events, and the callbacks of other kinds than ``but``, into spans."""
        self._per_epoch = (callbacks.params or {}).get("steps")
        optimizer = getattr(model, "optimizer", None)
        self._per_update = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        self._put(callbacks, "on_epoch_begin", self._epoch_begin)
        self._put(callbacks, "on_epoch_end", self._then(self._leave))
        self._put(callbacks, "on_train_batch_begin", self._batch_begin)
        self._put(callbacks, "on_train_batch_end", self._batch_end)
        self._put(callbacks, "on_test_begin", self._before(self._ask_for_evaluation))
        self._put(callbacks, "on_test_batch_begin", self._then(self._evaluation_wait.__exit__))
        self._put(callbacks, "on_test_batch_end", self._before(self._evaluation_wait.__enter__))
        self._put(callbacks, "on_test_end", self._then(self._evaluation_wait.__exit__))
        self._put(model, "train_function", self._train_function)
        self._put(model, "evaluate", self._then(self._leave))
        self._patches.around(model, "evaluate", WorkSpan(self._ledger, VALIDATION))
        if optimizer is not None and not getattr(model, "jit_compile", False):  # what is compiled stays in one piece
            self._patches.around(optimizer, "apply", WorkSpan(self._ledger, OPTIMIZER))
        for callback in callbacks.callbacks:
            if not isinstance(callback, but) and type(callback).__name__ not in _SILENT:
                self._listen_to_hooks(callback, "Callback", _bucket_of(callback))

    def _then(self, first: Callable[[], object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Have something done, then what was there."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    first()
                    return original(*args, **kwargs)
                except BaseException as exc:
                    let_out(exc)
                    raise

            return call

        return make

    def _before(self, afterwards: Callable[[], object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Have done what was there, then something."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    result = original(*args, **kwargs)
                    afterwards()
                    return result
                except BaseException as exc:
                    let_out(exc)
                    raise

            return call

        return make

    # -- batches and epochs -------------------------------------------------------------------------------------------

    def _epoch_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def on_epoch_begin(epoch: int, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(epoch, *args, **kwargs)
                self._ledger.base(WORKER_STARTUP)
                if self._loader is not None:
                    self._run.loaders.prepare(self._loader)
                    self._run.loaders.find_iterator_by(self._iterator)
                elif self._maker is not None:
                    self._run.loaders.prepare(self._maker)
                self._clock.new_epoch(int(epoch))
                self._ask()
                return result
            except BaseException as exc:
                let_out(exc)
                raise

        return on_epoch_begin

    def _iterator(self) -> object | None:
        return getattr(self._iterated, "_current_iterator", None)

    def _ask(self) -> None:
        self._asking = True
        self._wait.__enter__()

    # The next three are called for each batch: what they need is at hand, and they call nothing that they need not.

    def _batch_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        wait = self._wait

        def on_train_batch_begin(*args: Any, **kwargs: Any) -> Any:
            try:
                if self._asking:
                    self._asking = False
                    wait.__exit__()
                return original(*args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise

        return on_train_batch_begin

    def _batch_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        clock, wait, per_update, per_epoch = self._clock, self._wait, self._per_update, self._per_epoch

        def on_train_batch_end(batch: int, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(batch, *args, **kwargs)
                self._batches = trained = self._batches + 1
                clock.tracker_step = trained
                clock.optimizer_step = trained // per_update
                clock.worked = True
                if per_epoch is None or batch + 1 < per_epoch:
                    self._asking = True
                    wait.__enter__()
                else:
                    clock.pause()
                    if self._has_workers:  # Keras makes an iterator once more than it needs one
                        self._ledger.base(WORKER_STARTUP)
                return result
            except BaseException as exc:
                let_out(exc)
                raise

        return on_train_batch_end

    def _train_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        clock, size = self._clock, self._run.loaders.size

        def train_function(data: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                clock.samples = size(data[0] if type(data) is list and len(data) == 1 else data)
                return original(data, *args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise

        return train_function

    def _leave(self) -> None:
        """What follows belongs to no step."""
        if self._asking:  # for one more than there are
            self._asking = False
            self._wait.leave()
        self._clock.pause()

    def _ask_for_evaluation(self) -> None:
        self._evaluation_wait.begin(workers=False)
        self._evaluation_wait.__enter__()

    def close(self, reason: str, exception: BaseException | None = None) -> None:
        """Undo every patch, then end the run."""
        self._asking = False
        super().close(reason, exception)


def _bucket_of(callback: Any) -> int:
    names = {kind.__name__ for kind in type(callback).__mro__}
    packages = {kind.__module__.partition(".")[0] for kind in type(callback).__mro__}
    if names.intersection(_CHECKPOINT):
        return CHECKPOINT
    return LOGGING if names.intersection(_REPORTS) or packages.intersection(_REPORT_PACKAGES) else CALLBACKS
