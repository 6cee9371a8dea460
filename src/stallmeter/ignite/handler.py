"""From the events of an engine of Ignite to the run, nothing else."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import ignite

from ..engine import adapter
from ..engine.options import Options, takes_options
from ..engine.patch import Patches
from ..engine.run import Run
from ..engine.wiring import this_rank
from .handlers import runs_of_neptune
from .training import Training

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..engine.options import OptionArguments


_RECORDED: weakref.WeakKeyDictionary[Callable[..., Any], Options] = weakref.WeakKeyDictionary()
"""What stands in the place of engines' ``run``, with the options that hold there."""


class StallHandler(adapter.Adapter):
    """Records where the time of a trainer's ``run`` goes and why the accelerator waits.

    ``StallHandler().attach(trainer)``: engines that its handlers run are its validation.

    Args:
        **options: The fields of `stallmeter.engine.options.Options`, which says what each is for.

    Raises:
        SettingError: An option makes no sense.
        TypeError: There is no such option.
    """

    _training: Training | None

    @takes_options
    def __init__(self, *nothing: NoReturn, **options: Unpack[OptionArguments]) -> None:
        super().__init__(*nothing, **options)
        self._attached = Patches()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_attached": Patches()}

    def attach(self, trainer: Any) -> StallHandler:
        """Record each ``run`` of an engine from now on; of two handlers of one engine the first does.

        Args:
            trainer: The engine whose process function trains.
        """
        run = trainer.run
        there: Any = getattr(run, "func", None)
        if there in _RECORDED:
            self._tell_ignored(_RECORDED[there])
            return self
        engine = weakref.ref(trainer)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._finish("a new training began")
            with self._ended_by_exception(), ExitStack() as stack:
                self._begin(engine(), stack)
                state = run(*args, **kwargs)
            self._finish("end")
            return state

        _RECORDED[recorded] = self._options
        self._attached.set(trainer, "run", recorded)
        return self

    def detach(self) -> None:
        """Leave the engine as it was."""
        self._attached.undo()

    def _begin(self, trainer: Any, stack: ExitStack) -> None:
        run = self._assemble(trainer)
        self._training = training = Training(run, trainer)
        run.guard("listening to Ignite", stack.enter_context, training.listening())
        run.start()

    def _assemble(self, trainer: Any) -> Run:
        framework = f"ignite {ignite.__version__}"
        return self._assemble_run(framework, ranks=this_rank(), runs=lambda: runs_of_neptune(trainer))
