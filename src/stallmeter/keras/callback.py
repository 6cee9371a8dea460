"""From ``fit`` of Keras to the run, nothing else.

Keras tells its callbacks neither what list they are in nor what is iterated, so the callback looks for both among its
callers. Before it tells them anything it looks at a batch, which starts workers, and that it failed it tells nobody:
while there is a callback, a function stands around ``fit``.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from ..engine.adapter import Adapter
from ..engine.guard import Guard
from ..engine.run import Run
from ..engine.wiring import this_rank
from ..sources.torch_view import model_facts
from ..timing.tracebacks import let_out
from .fitting import leave_fit, watch_fit
from .training import Training

_guard = Guard(lambda _: None)
_log = logging.getLogger("stallmeter")

HIDDEN = (
    "Keras on {} takes its batches inside its compiled step, where no wait for one can be seen; train with "
    "KERAS_BACKEND=torch, or in a loop over stallmeter.watch(dataset) with model.train_on_batch"
)


PRECISION = {
    "float32": "32-true",
    "float16": "16-true",
    "bfloat16": "bf16-true",
    "mixed_float16": "16-mixed",
    "mixed_bfloat16": "bf16-mixed",
}
"""Keras' names of what a model computes in, and Lightning's."""


class StallCallback(Adapter, keras.callbacks.Callback):
    """Records where the time of ``model.fit`` goes and why the accelerator waits; on torch alone.

    Args:
        **options: The fields of `stallmeter.engine.options.Options`, which says what each is for.

    Raises:
        SettingError: An option makes no sense.
        TypeError: There is no such option.
    """

    def __new__(cls, *_: Any, **__: Any) -> StallCallback:
        """Make one; while it lives ``fit`` tells of itself before it begins."""
        made: StallCallback = super().__new__(cls)
        watch_fit(made, _with_callback)
        return made

    _training: Training | None
    _prepared: Run | None = None
    """Put together before `fit` begins, which looks at a batch before it calls anybody: workers are probed from their
    start or not at all."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Start a run; a second StallCallback of the same ``fit`` steps aside."""
        self._finish("a new training began")
        callbacks, iterated = _callers()
        known = [] if callbacks is None else callbacks.callbacks
        if self._is_second(known, StallCallback):
            return
        if why_hidden() is not None:
            _log.warning("stallmeter: nothing is recorded: %s", why_hidden())
            return
        run, self._prepared = self._prepared or self._assemble(), None
        run.guard("finding the model", lambda: run.window.facts.__setitem__("model", model_facts(self.model)))
        self._training = Training(run, iterated)
        if callbacks is None:
            run.guard.name_once("StallCallback", "records nothing", "no fit of Keras calls it")
        else:
            run.guard("listening to Keras", self._training.listen, callbacks, self.model, StallCallback)
        run.start()

    def on_train_end(self, logs: Any = None) -> None:
        """End the recording."""
        self._finish("end")

    def attach(
        self, fit: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a call of ``fit`` by name, this callback among them unless there is one.

        Args:
            fit: The method, unbound.
            model: Whose.
            args: Of the call.
            kwargs: Of the call.
        """
        arguments = dict(inspect.signature(fit).bind(model, *args, **kwargs).arguments)
        given = arguments.get("callbacks")
        if own_callback(given) is not None:
            return arguments
        if isinstance(given, keras.callbacks.CallbackList):
            given.callbacks.append(self)
        else:
            known = [given] if isinstance(given, keras.callbacks.Callback) else keras.tree.flatten(given or [])
            arguments["callbacks"] = [*known, self]
        self.prepare(model, arguments.get("x"))
        return arguments

    def prepare(self, model: Any, data: Any) -> None:
        """Before ``fit`` begins: put a run together, so that the workers of its loader can be probed."""
        self.set_model(model)
        if getattr(data, "num_workers", 0):
            self._prepared = self._assemble()
            self._prepared.loaders.probe_workers(data)

    @contextmanager
    def attached(self, arguments: dict[str, Any]) -> Iterator[None]:
        """Record what ``fit`` trains inside, called with these arguments, and leave them afterwards."""
        try:
            with self.recording():
                yield
        finally:
            listed = arguments["callbacks"]
            if isinstance(listed, keras.callbacks.CallbackList) and self in listed.callbacks:
                listed.callbacks.remove(self)
            leave_fit(self)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """See a call of ``fit`` end, however it does."""
        try:
            with self._ended_by_exception():
                yield
        finally:
            prepared, self._prepared = self._prepared, None
            if prepared is not None:
                prepared.discard()

    def _assemble(self) -> Run:
        model = self.model
        precision = {"precision": lambda: PRECISION.get(model.dtype_policy.name)}
        return self._assemble_run(f"keras {keras.__version__}", ranks=this_rank(), facts=precision)


def _with_callback(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fit`` as it is while there is a callback."""

    @functools.wraps(fit)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            arguments = _guard("looking at fit", lambda: inspect.signature(fit).bind(self, *args, **kwargs).arguments)
            mine = None if arguments is None else _guard("looking at fit", own_callback, arguments.get("callbacks"))
            if arguments is None or mine is None or why_hidden() is not None:
                return fit(self, *args, **kwargs)
            _guard("preparing for fit", mine.prepare, self, arguments.get("x"))
            with mine.recording():
                return fit(self, *args, **kwargs)
        except BaseException as exc:
            let_out(exc)
            raise

    return told


def own_callback(given: Any) -> StallCallback | None:
    """Return the StallCallback among what ``fit`` is given as callbacks."""
    listed = getattr(given, "callbacks", given)
    known = [listed] if isinstance(listed, keras.callbacks.Callback) else keras.tree.flatten(listed or [])
    return next((one for one in known if isinstance(one, StallCallback)), None)


def why_hidden() -> str | None:
    """Return why no wait for a batch can be seen; None where it can."""
    backend = keras.backend.backend()
    return None if backend == "torch" else HIDDEN.format(backend)


def _callers() -> tuple[Any, Any]:
    """Return the list of callbacks that calls, and what ``fit`` iterates; None for what is not there."""
    frame: Any = sys._getframe(1)
    callbacks = None
    while frame is not None:
        held = frame.f_locals
        if callbacks is None and issubclass(type(held.get("self")), keras.callbacks.CallbackList):
            callbacks = held["self"]
        iterated = held.get("epoch_iterator")
        if callbacks is not None and iterated is not None:
            return callbacks, iterated
        frame = frame.f_back
    return callbacks, None
