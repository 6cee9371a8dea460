"""The end of a fit, also where Lightning calls no hook of ours.

Lightning calls neither ``teardown`` nor ``on_exception`` of a callback

- when the list of callbacks was exchanged: the learning rate finder leaves its own there when it fails, and a program
  may change the list, too;
- when a hook has run ``trainer.validate``: the teardown is then told that stage;
- when ``on_exception`` of a callback before it raises;
- after an exception in a process of ``ddp_spawn`` or ``ddp_fork``.

Read in Lightning 2.2 to 2.6.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..engine.patch import Patches
from ..timing.tracebacks import let_out

_UNDER_WAY: list[FitEnd] = []
"""Of this process. Threads that train at the same time each look at their own only."""


class FitEnd:
    """Calls ``finish(reason)`` when the fit is over and the callback has not been told.

    Args:
        trainer: Whose fit.
        callback: What Lightning should tell; asked for in ``trainer.callbacks``.
        finish: Ends the recording and calls `forget`; it may be called twice.
    """

    def __init__(self, trainer: Any, callback: object, finish: Callable[[str], None]) -> None:
        self._trainer = trainer
        self._callback = callback
        self._finish = finish
        self._patches, self._loop_patches = Patches(), Patches()
        self._thread = threading.get_ident()
        self._inner_runs = 0
        self.over = False
        """Whether the loop is done: the next teardown is the fit's, whatever stage it is told."""

    def watch(self) -> None:
        """Begin, in ``setup``: the fit is under way."""
        unseen = [other for other in _UNDER_WAY if other._thread == self._thread and other._trainer.interrupted]
        for other in unseen:
            other._finish("exception")
        _UNDER_WAY.append(self)
        trainer, strategy = self._trainer, self._trainer.strategy
        run, teardown, on_exception = trainer._run, trainer._teardown, strategy.on_exception

        def inner_run(*args: Any, **kwargs: Any) -> Any:
            """The fit's own run has begun before: this is one inside a hook, such as ``trainer.validate``."""
            self._inner_runs += 1
            try:
                return run(*args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise
            finally:
                self._inner_runs -= 1

        def loop_is_done() -> None:
            try:
                teardown()
            finally:
                if not self._inner_runs:
                    self.over = True
                    if not any(callback is self._callback for callback in trainer.callbacks):
                        self._finish("end")

        def all_were_told(exception: BaseException) -> None:
            """Lightning tells the callbacks first."""
            try:
                on_exception(exception)
            finally:
                self._finish(f"exception: {type(exception).__name__}")

        # Patches, because these are called however the fit ends and whoever is still in the list of callbacks.
        self._loop_patches.set(trainer, "_run", inner_run)
        self._loop_patches.set(trainer, "_teardown", loop_is_done)
        self._patches.set(strategy, "on_exception", all_were_told)

    def told(self) -> None:
        """The callback was told of an exception: what is left to wait for is that all others are."""
        self._loop_patches.undo()

    def forget(self) -> None:
        """Leave no trace."""
        self._loop_patches.undo()
        self._patches.undo()
        if self in _UNDER_WAY:
            _UNDER_WAY.remove(self)
