"""What both Lightning callbacks do: from hooks to the run, nothing else."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..delivery.choice import choose_trackers
from ..engine.adapter import Adapter
from ..engine.context import RunContext
from ..engine.monitor import Monitor
from ..engine.patch import Patches
from ..engine.run import Run, is_signalled
from ..engine.wiring import assemble
from ..ranks.ray import ray_worker
from ..sources.torch_view import model_facts
from ..timing.clock import ValidationSpan
from ..timing.ledger import BACKWARD, CHECKPOINT, LOGGING, VALIDATION, VALIDATION_START, WORKER_STARTUP, Span, WorkSpan
from ..timing.tracebacks import let_out
from .actions import Spans, owners_of
from .ending import FitEnd

MAILBOX_S = 1.0
"""Most seconds to wait, after an exception, for the last points for loggers that only the training thread may call."""


class StallMonitorMixin(Adapter):
    """Records where the time of ``Trainer.fit`` goes and why the accelerator waits.

    Args:
        **options: The fields of `stallmeter.engine.options.Options`, which says what each is for.

    Raises:
        SettingError: An option makes no sense.
        TypeError: There is no such option.
    """

    _training: _Fit | None

    # -- Lightning's hooks --------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start a run when ``fit`` begins; a second StallMonitor on the same trainer steps aside."""
        if stage != "fit":
            return
        self._finish("a new fit began")
        if self._is_second(trainer.callbacks, StallMonitorMixin):
            return
        run = self._assemble(trainer)
        self._training = _Fit(run, trainer, FitEnd(trainer, self, self._finish))
        run.guard("seeing the end", self._training.end.watch)
        run.guard("probing Lightning's loaders", self._training.prepare)
        self._training.start()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to listen."""
        if self._training is not None:
            self._training.run.guard("listening to Lightning", self._training.listen)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Until the first batch is asked for, workers are started."""
        fit = self._training
        if fit is not None:
            fit.clock.ledger.base(WORKER_STARTUP)
            fit.run.guard("num_workers", fit.between_epochs)
            fit.clock.new_epoch(trainer.current_epoch)
            fit.run.guard("worker probe", fit.new_epoch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The batch was used."""
        fit = self._training
        if fit is None:
            return
        clock = fit.clock
        clock.samples = fit.sizes.known(batch)
        if clock.samples is None:
            clock.samples = fit.run.guard("batch size", fit.sizes.find, batch)
        if clock.ledger.last >= fit.loaders.content_due_ns:
            fit.loaders.note_content(batch, is_used=True)
        clock.worked = True
        if fit.epoch_loop is not None:
            clock.tracker_step = fit.epoch_loop._batches_that_stepped
            clock.optimizer_step = fit.optimizer_progress.completed
        if fit.mailboxes:
            fit.deliver()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """What follows belongs to no step."""
        if self._training is not None:
            self._training.clock.pause()
            if getattr(trainer, "reload_dataloaders_every_n_epochs", 0):
                self._training.clock.ledger.base(WORKER_STARTUP)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """What follows belongs to no step."""
        if self._training is not None:
            self._training.clock.pause()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the recording."""
        if stage == "fit" or (self._training is not None and self._training.end.over):
            self._finish("end")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Flush the recording and return: callbacks that save an emergency checkpoint are called after this one."""
        if self._training is not None:
            self._training.abort(exception)

    # -----------------------------------------------------------------------------------------------------------------

    def _assemble(self, trainer: Any) -> Run:
        options = self._options
        if type(trainer.profiler).__name__ == "PyTorchProfiler":  # there can be only one torch.profiler
            options = replace(options, deep_steps=0)
        context = RunContext(
            recordings=options.recordings_here(),
            framework=_framework(trainer),
            loop_bucket="loop",
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            ranks_on_node=_ranks_on_node(trainer),
            is_killed=ray_worker() is not None,
            ddp_module=_module_of(weakref.ref(trainer)),
        )
        return assemble(
            options,
            context,
            find_trackers=lambda: choose_trackers(options.trackers, trainer.loggers, trainer.global_rank),
            facts=_facts_of(trainer),
            now=self._now,
        )


class _Fit:
    """One fit: its run, and what was put into the trainer for it."""

    __slots__ = (
        "_made",
        "_patches",
        "_thread",
        "_trainer",
        "clock",
        "end",
        "epoch_loop",
        "loaders",
        "mailboxes",
        "monitor",
        "optimizer_progress",
        "run",
        "sizes",
        "spans",
    )

    def __init__(self, run: Run, trainer: Any, end: FitEnd) -> None:
        self.run = run
        self.monitor = Monitor.of(run)
        self.end = end
        self.clock = run.clock
        self._trainer = trainer
        self._patches = Patches()
        self._thread = threading.get_ident()
        self._made = 0  # loaders of this setting up, which may be repeated for later epochs
        self.loaders = run.loaders
        self.epoch_loop: Any = None
        self.optimizer_progress: Any = None
        self.sizes = run.loaders.sizes
        self.spans: Any = None
        self.mailboxes: list[Any] = []

    def start(self) -> None:
        """Start the run, and know the trackers that only the training thread serves."""
        self.run.start()
        self.mailboxes = [tracker for tracker in self.run.trackers if hasattr(tracker, "deliver")]

    def prepare(self) -> None:
        """Before the loaders are made: be there when one is about to start its workers."""
        strategy = self._trainer.strategy
        original = strategy.process_dataloader

        # A patch, because no hook comes between the making of a loader and the start of its workers.
        def process(dataloader: Any) -> Any:
            try:
                processed = original(dataloader)
            except BaseException as exc:
                let_out(exc)
                raise
            if self._trainer.training:
                self.run.loaders.probe_workers(processed, self._seeding(processed), self._made)
                self._made += 1
            return processed

        self._patches.set(strategy, "process_dataloader", process)

    def listen(self) -> None:
        """Training starts: turn Lightning's actions into spans."""
        trainer, ledger = self._trainer, self.clock.ledger
        epoch_loop = trainer.fit_loop.epoch_loop
        self.optimizer_progress = _optimizer_progress(epoch_loop, trainer.lightning_module)
        self.clock.optimizer_step = self.optimizer_progress.completed
        self.clock.tracker_step = epoch_loop._batches_that_stepped
        self.epoch_loop = epoch_loop
        self.clock.epoch = trainer.current_epoch
        self.spans = Spans(self.clock, owners_of(trainer.callbacks, trainer.lightning_module))
        self._listen_to_profiler(trainer.profiler)
        validation = ValidationSpan(ledger, self.spans.validation_wait)
        # Patches, because no action of the profiler brackets a whole validation, or what a logger does.
        self._patches.around(epoch_loop.val_loop, "run", validation)
        self.run.guard("validation's loader", self._around_validation_start, epoch_loop.val_loop)
        if not trainer.lightning_module.automatic_optimization:
            # No action brackets what `manual_backward` asks the strategy for.
            self._patches.around(trainer.strategy, "backward", WorkSpan(ledger, BACKWARD))
        # Lightning before 2.3 saves without an action of its own.
        self._patches.around(trainer, "save_checkpoint", Span(ledger, CHECKPOINT))
        for logger in trainer.loggers:
            name = type(logger).__name__
            if name == "DummyLogger":
                continue
            span = Span(ledger, ledger.slot(LOGGING, name))
            self._patches.around(logger, "log_metrics", span)
            self._patches.around(logger, "save", span)
        for optimizer in trainer.optimizers[:1]:
            self.run.tell_optimizer(optimizer)
        self.run.guard("batch size", self._expect_batches)
        self.run.guard("num_workers", self._offer_loader)
        self.new_epoch()

    def _expect_batches(self) -> None:
        """A batch of several loaders has no size that one of them would know."""
        loaders = self._loaders()
        self.sizes.set_loader(loaders[0] if len(loaders) == 1 else None)

    def _offer_loader(self) -> None:
        """Say which loader may get another number of workers, or why none may."""
        loaders = self._loaders()
        why_not = None
        if len(loaders) != 1:
            why_not = f"there are {len(loaders)} training loaders"
        elif getattr(self._trainer, "reload_dataloaders_every_n_epochs", 0):
            why_not = "reload_dataloaders_every_n_epochs makes new loaders"
        if loaders:
            self.run.loaders.may_resize(loaders[0], why_not)

    def between_epochs(self) -> None:
        """The next epoch has not begun: its loader may get other workers, which have to be probed anew."""
        loaders = self._loaders()
        self._made = 0
        if self.run.loaders.between_epochs():
            self.run.loaders.probe_workers(loaders[0], self._seeding(loaders[0]))

    def _loaders(self) -> list[Any]:
        return list(self._trainer.fit_loop._combined_loader.flattened)

    def new_epoch(self) -> None:
        """Tell the loader probe where the epoch's iterator will be found."""
        self.run.loaders.find_iterator_by(self._iterator)

    def deliver(self, *, last: bool = False) -> None:
        """Hand over what waits for loggers that only this thread may call."""
        for mailbox in self.mailboxes:
            if mailbox.waiting and (last or mailbox.is_due(self._now_s())):
                deliver = functools.partial(mailbox.deliver, self._now_s)
                self.run.guard.keep_trying(f"tracker {mailbox.name}", deliver)

    def _now_s(self) -> float:
        return self.clock.ledger.now() / 1e9

    def abort(self, exception: BaseException) -> None:
        """Flush the recording; the rest comes with `close`, when all callbacks have been called."""
        self.run.guard("removing the patches", self._patches.undo)
        self.run.guard("removing the patches", self.end.told)
        self.run.abort(f"exception: {type(exception).__name__}", signalled=self._signalled(exception))

    def close(self, reason: str, exception: BaseException | None = None) -> None:
        """Undo every patch, then end the recording."""
        self.run.guard("removing the patches", self._patches.undo)
        self.run.guard("forgetting the fit", self.end.forget)
        try:
            if reason.startswith("exception"):
                self.run.abort(reason, signalled=self._signalled(exception))
                self.run.ending.others_are_done(MAILBOX_S if self.mailboxes else 0.0)
            else:
                self.run.close(reason)
        finally:
            self.deliver(last=True)
            self.run.ending.settle()
            if not reason.startswith("exception"):
                self.run.see_out()

    def _signalled(self, exception: BaseException | None = None) -> bool:
        """Whether a signal is ending the process."""
        received = bool(getattr(self._trainer, "received_sigterm", False))
        return received or (exception is not None and is_signalled(exception))

    def _listen_to_profiler(self, profiler: Any) -> None:
        spans = self.spans
        if type(profiler).__name__ == "PassThroughProfiler":  # does nothing that would be missed
            # A span is what `profile` returns, ready made: Lightning's own makes a generator for each action.
            self._patches.set(profiler, "profile", lambda action_name: spans[action_name])
            self._patches.set(profiler, "start", lambda action_name: spans[action_name].__enter__())
            self._patches.set(profiler, "stop", lambda action_name: spans[action_name].__exit__())
            return
        start, stop = profiler.start, profiler.stop

        # The user's profiler works outside the span: its own time is not the action's.
        def chained_start(action_name: str) -> None:
            start(action_name)
            spans[action_name].__enter__()

        def chained_stop(action_name: str) -> None:
            spans[action_name].__exit__()
            stop(action_name)

        self._patches.set(profiler, "start", chained_start)
        self._patches.set(profiler, "stop", chained_stop)

    def _around_validation_start(self, val_loop: Any) -> None:
        """Between its own `run` and the first batch a validation makes the iterator of its loader, in `reset`."""
        original, started = val_loop.reset, Span(self.clock.ledger, VALIDATION_START)

        def reset(*args: Any, **kwargs: Any) -> None:
            try:
                if threading.get_ident() != self._thread or VALIDATION not in self.clock.ledger.stack:
                    original(*args, **kwargs)
                    return
                with started:
                    original(*args, **kwargs)
                self.run.guard("validation's loader", self._begin_validation, val_loop)
            except BaseException as exc:
                let_out(exc)
                raise

        self._patches.set(val_loop, "reset", reset)

    def _begin_validation(self, val_loop: Any) -> None:
        loaders = val_loop._combined_loader.flattened
        only = loaders[0] if len(loaders) == 1 else None
        self.spans.validation_wait.begin(only, workers=any(getattr(loader, "num_workers", 0) for loader in loaders))

    def _iterator(self) -> object | None:
        fetcher = self._trainer.fit_loop._data_fetcher
        together: Any = fetcher.combined_loader._iterator
        iterators: list[object] = together.iterators
        # Of several, each is found in what asks them in turn.
        if len(iterators) == 1:
            return iterators[0]
        asking: object = together
        return asking

    def _seeding(self, dataloader: Any) -> Callable[[int], None] | None:
        """Lightning seeds workers only where the user gave no ``worker_init_fn``; ours must not count as one."""
        if getattr(dataloader, "worker_init_fn", None) is not None or not int(os.environ.get("PL_SEED_WORKERS", "0")):
            return None
        name = "lightning.fabric" if _namespace(self._trainer) == "lightning" else "lightning_fabric"
        seed = sys.modules[f"{name}.utilities.seed"]
        return functools.partial(seed.pl_worker_init_function, rank=self._trainer.global_rank)


def _ranks_on_node(trainer: Any) -> int:
    worker = ray_worker()
    if worker is not None and worker.ranks_on_node:
        return worker.ranks_on_node  # Ray starts the ranks one by one: each Trainer knows of one device
    return trainer.num_devices if trainer.world_size > 1 else 1


def _module_of(trainer: weakref.ref[Any]) -> Callable[[], object]:
    """Return what finds the module that the strategy has wrapped; a run that is kept must not keep the trainer."""
    return lambda: getattr(getattr(trainer(), "strategy", None), "model", None)


def _optimizer_progress(epoch_loop: Any, module: Any) -> Any:
    """Return the counter of weight updates behind ``trainer.global_step``, which is slow to ask."""
    if module.automatic_optimization:
        return epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
    return epoch_loop.manual_optimization.optim_step_progress.total


def _namespace(trainer: Any) -> str:
    """Return the package that defines the trainer's base class."""
    for cls in type(trainer).__mro__:
        root = cls.__module__.split(".", 1)[0]
        if cls.__name__ == "Trainer" and root in ("lightning", "pytorch_lightning"):
            return root
    return "lightning"


def _framework(trainer: Any) -> str:
    root = _namespace(trainer)
    return f"{root} {getattr(sys.modules.get(root), '__version__', '?')}"


def _copies_without_waiting(trainer: Any) -> bool | None:
    """Lightning copies with ``non_blocking=True`` to all but CPU and MPS; None where the program copies itself."""
    if trainer.strategy.root_device.type in ("cpu", "mps"):
        return None
    for owner in (trainer.lightning_module, getattr(trainer, "datamodule", None)):
        hook = None if owner is None else getattr(type(owner), "transfer_batch_to_device", None)
        if hook is not None and not hook.__module__.startswith(("lightning.", "pytorch_lightning.")):
            return None
    return True


def _epochs_ahead(trainer: Any) -> int | None:
    """Return how many epochs there are at most; None where there is no such bound."""
    most = trainer.max_epochs
    return None if most is None or most < 0 else max(0, most - trainer.current_epoch)


def _facts_of(trainer: Any) -> dict[str, Callable[[], object]]:
    """Return what finds each fact: one that a strategy or plugin does not know costs that one alone."""
    return {
        "accelerator": lambda: type(trainer.accelerator).__name__,
        "strategy": lambda: type(trainer.strategy).__name__,
        "devices": lambda: trainer.num_devices,
        "nodes": lambda: trainer.num_nodes,
        "precision": lambda: str(trainer.precision),
        "accumulate_grad_batches": lambda: trainer.accumulate_grad_batches,
        "epochs_ahead": lambda: _epochs_ahead(trainer),
        "torch": lambda: str(getattr(sys.modules.get("torch"), "__version__", "")),
        "non_blocking": lambda: _copies_without_waiting(trainer),
        "model": lambda: model_facts(trainer.lightning_module),
    }
