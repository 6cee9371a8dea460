"""Frameworks whose own callback is attached to whatever trains: what it measures, no loader has to tell.

Each entry of `METHODS` makes what stands in the place of one method of a class of theirs. A callback that the program
has given itself wins. Where ours cannot be made, the program trains as without, and its loop is measured as any is.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import Any

from ..engine.guard import Guard
from ..engine.options import unasked
from ..engine.run import claim_loops
from ..engine.run_check import tell_unmeasured
from ..errors import StallmeterError
from ..timing.tracebacks import let_out
from .harmless import harmless
from .patches import loop_of_this_process

_log = logging.getLogger("stallmeter")
_guard = Guard(lambda _: None)

Method = Callable[..., Any]


def _made(kind: type[Any], framework: str) -> Any:
    try:
        return kind(**unasked().given())
    except (OSError, StallmeterError) as exc:
        _log.warning("stallmeter: the callback for %s cannot be made: %s", framework, exc)
        return None


def _transformers(train: Method) -> Method:
    @functools.wraps(train)
    def attached(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            ours = harmless(partial(import_module, "stallmeter.transformers.callback"))
            if ours is None:
                return train(self, *args, **kwargs)
            callbacks = getattr(getattr(self, "callback_handler", None), "callbacks", None)
            if callbacks is None or any(isinstance(one, ours.StallCallback) for one in callbacks):
                return train(self, *args, **kwargs)
            callback = _made(ours.StallCallback, "transformers")
            if callback is None or _guard("attaching to transformers", callback.attach, self) is None:
                return train(self, *args, **kwargs)
            with callback.attached(self):
                return train(self, *args, **kwargs)
        except BaseException as exc:
            let_out(exc)
            raise

    return attached


def _keras(fit: Method) -> Method:
    @functools.wraps(fit)
    def attached(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            ours = harmless(partial(import_module, "stallmeter.keras.callback"))
            if ours is None:
                return fit(self, *args, **kwargs)
            hidden = ours.why_hidden()
            if hidden is not None:
                tell_unmeasured(hidden)
                return fit(self, *args, **kwargs)
            callback = _made(ours.StallCallback, "Keras")
            given = None if callback is None else _guard("attaching to Keras", callback.attach, fit, self, args, kwargs)
            if given is None:
                return fit(self, *args, **kwargs)
            with claim_loops(), callback.attached(given):
                return fit(**given)
        except BaseException as exc:
            let_out(exc)
            raise

    return attached


def _ignite(run: Method) -> Method:
    """Which engine trains the optimizers' steps tell, as in any loop; the engine says what its handlers take."""

    @functools.wraps(run)
    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            ours, loop = harmless(partial(import_module, "stallmeter.ignite.handlers")), harmless(loop_of_this_process)
            if ours is None or loop is None:
                return run(self, *args, **kwargs)
            clock = loop.clock_here()
            if clock is not None and ours.in_handler(clock.ledger):
                module = harmless(partial(import_module, "stallmeter.ignite.evaluating"))
                booked = nullcontext() if module is None else module.evaluating(self, clock)
                with claim_loops(), booked:
                    return run(self, *args, **kwargs)
            loop.framework = f"ignite {getattr(sys.modules.get('ignite'), '__version__', '')}"
            undo = _guard("listening to Ignite", ours.time_handlers, self, loop.ledger_here, _guard)
            try:
                return run(self, *args, **kwargs)
            finally:
                _guard("leaving Ignite", undo or (lambda: None))
        except BaseException as exc:
            let_out(exc)
            raise

    return measured


METHODS: dict[str, tuple[tuple[str, str, Callable[[Method], Method]], ...]] = {
    "transformers.trainer": (("Trainer", "train", _transformers),),
    "keras.src.backend.torch.trainer": (("TorchTrainer", "fit", _keras),),
    "keras.src.backend.tensorflow.trainer": (("TensorFlowTrainer", "fit", _keras),),
    "keras.src.backend.jax.trainer": (("JAXTrainer", "fit", _keras),),
    "ignite.engine.engine": (("Engine", "run", _ignite),),
}
"""Class, method and what takes its place, by the module that defines them."""
