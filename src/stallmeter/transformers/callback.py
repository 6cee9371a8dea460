"""From the Trainer's events to the run, nothing else.

The Trainer of ``transformers`` tells its callbacks neither who it is nor that it has failed. So the callback looks for
it among its callers, and puts a function around its ``train`` that tells an exception from an end.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import transformers

from ..engine.adapter import Adapter
from ..engine.options import takes_options
from ..engine.patch import Patches
from ..engine.run import Run
from ..sources.torch_view import model_facts
from ..timing.tracebacks import let_out
from .training import Training

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..engine.options import OptionArguments


class StallCallback(Adapter, transformers.TrainerCallback):
    """Records where the time of ``Trainer.train`` goes and why the accelerator waits.

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
        self._followed: Callable[[], Any] = _nobody
        self._following = Patches()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_followed": _nobody, "_following": Patches()}

    def attach(self, trainer: Any) -> bool:
        """Give this callback to a Trainer that has none, for what is trained inside `attached`."""
        self._followed = weakref.ref(trainer)
        trainer.add_callback(self)
        return True

    @contextmanager
    def attached(self, trainer: Any) -> Iterator[None]:
        """Record what is trained inside, and leave the Trainer afterwards."""
        try:
            with self._ended_by_exception():
                yield
        finally:
            trainer.remove_callback(self)

    # -- the Trainer's events -----------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer is made."""
        self._follow(_calling_trainer())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start a run; a second StallCallback of the same Trainer steps aside."""
        self._finish("a new training began")
        trainer = _calling_trainer()
        callbacks = [] if trainer is None else trainer.callback_handler.callbacks
        if self._is_second(callbacks, StallCallback):
            return
        self._follow(trainer)
        run = self._assemble(args, trainer)
        self._training = Training(run)
        if trainer is None:
            run.guard.name_once("StallCallback", "records nothing", "no transformers.Trainer calls it")
        else:
            run.guard("listening to the Trainer", self._training.listen, trainer, StallCallback)
        if kwargs.get("optimizer") is not None:
            run.tell_optimizer(kwargs["optimizer"])
        run.start()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Until the first batch is asked for, workers are started."""
        if self._training is not None:
            accumulate = int(getattr(args, "gradient_accumulation_steps", 1))
            self._training.begin_epoch(kwargs.get("train_dataloader"), int(state.epoch or 0), accumulate)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first batch of a step has come."""
        if self._training is not None:
            self._training.got_batch()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch was used that is not the last of its step."""
        if self._training is not None:
            self._training.ask_for_batch()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The gradients are there."""
        if self._training is not None:
            self._training.optimizer.__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The weights are updated."""
        if self._training is not None:
            self._training.optimizer.__exit__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All batches of the step were used."""
        if self._training is not None:
            self._training.end_step(state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of an evaluation was used; what else is done with it then is told from waiting for the next one."""
        busy = getattr(args, "batch_eval_metrics", False) or getattr(args, "eval_accumulation_steps", None)
        if self._training is not None and not busy:
            self._training.ask_for_evaluation()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What follows belongs to no step."""
        if self._training is not None:
            self._training.end_epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the recording."""
        self._finish("end")

    # -----------------------------------------------------------------------------------------------------------------

    def _follow(self, trainer: Any) -> None:
        """Be told when a training of this Trainer fails, which it tells no callback."""
        if trainer is None or self._followed() is trainer:
            return
        self._following.undo()
        self._followed, train = weakref.ref(trainer), trainer.train

        def followed(*args: Any, **kwargs: Any) -> Any:
            try:
                with self._ended_by_exception():
                    return train(*args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise

        self._following.set(trainer, "train", followed)

    def _assemble(self, args: Any, trainer: Any) -> Run:
        def runs_of_neptune() -> list[Any]:
            callbacks = [] if trainer is None else trainer.callback_handler.callbacks
            return [getattr(one, "_run", None) for one in callbacks if _is_neptunes(one)]

        return self._assemble_run(
            f"transformers {transformers.__version__}",
            ranks=(int(args.process_index), int(args.world_size)),
            runs=runs_of_neptune,
            facts=_facts_of(args, trainer),
        )


def _nobody() -> None:
    return None


def _calling_trainer() -> Any:
    """Return the Trainer that tells its callbacks what happens; None where something else does."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if issubclass(type(owner), transformers.Trainer):  # not isinstance, which asks proxies for their class
            return owner
        frame = frame.f_back
    return None


def _is_neptunes(callback: object) -> bool:
    return any(kind.__name__ == "NeptuneCallback" for kind in type(callback).__mro__)


def _facts_of(args: Any, trainer: Any) -> dict[str, Callable[[], object]]:
    """Return what finds each fact: one that cannot be found costs that one alone."""
    return {
        "accelerator": lambda: f"{str(args.device.type).upper()}Accelerator",
        "precision": lambda: "bf16-mixed" if args.bf16 else "16-mixed" if args.fp16 else "32-true",
        "accumulate_grad_batches": lambda: args.gradient_accumulation_steps,
        "epochs_ahead": lambda: math.ceil(args.num_train_epochs) if args.max_steps <= 0 else None,
        "model": lambda: model_facts(trainer.model),
    }
