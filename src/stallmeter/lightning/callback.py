"""What both Lightning callbacks do: hooks to Monitor, nothing else."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..delivery.choice import Trackers, check_trackers, choose_trackers
from ..delivery.points import BASE_PERIOD_S
from ..engine import monitor as core
from ..engine import wiring
from ..engine.settings import CLOSE_BUDGET_S, Settings
from ..errors import SettingError
from ..records.interfaces import Source
from ..rules import ALL_RULES
from ..rules.rule import Rule, check_rules
from ..timing.ledger import CHECKPOINT, LOGGING, VALIDATION, WORKER_STARTUP, Span, WorkSpan
from ..workers.apply import OnNumWorkers
from .actions import Spans, owners_of
from .ending import FitEnd
from .patch import Patches

MAILBOX_S = 1.0
"""Most seconds to wait, after an exception, for the last points for loggers that only the training thread may call."""


class StallMonitorMixin:
    """Records where the time of ``Trainer.fit`` goes and why the accelerator waits.

    Args:
        directory: Where recordings go; ``STALLMETER_DIR`` or ``./stallmeter`` by default.
        trackers: Where the recording is forwarded: ``auto`` takes the trainer's loggers or the active MLflow run,
            ``mlflow`` makes a run when there is none, a run of Neptune's is taken as it is, None forwards nothing.
        rules: What is looked for: ``(*ALL_RULES, MyRule())`` adds one.
        sources: Measured besides the usual hardware.
        hardware: Whether to sample the host and the GPUs.
        workers: Whether to measure inside the training loader's workers.
        interval_s: Seconds between two samples.
        period_s: Seconds between two points on a tracker.
        close_budget_s: Most seconds by which the end of ``fit`` may be delayed to deliver what is left.
        console: Whether to say the verdict on stderr at the end.
        on_num_workers: ``report`` says what number of workers is advised; ``apply`` sets it on the training loader
            between two epochs, measures, and keeps what is faster; a function is called between epochs with the
            `WorkerAdvice` and may return a number.
        sync_probe_steps: Steps in which calls that wait for a CUDA device are looked for, once, where the device idles
            inside the steps; 0 for none.
        deep_steps: Steps of torch.profiler when the cause lies inside the step, once; 0 for none. Not beside a
            PyTorchProfiler of the Trainer.

    Raises:
        SettingError: An argument makes no sense.
    """

    _now = staticmethod(time.perf_counter_ns)

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        trackers: Trackers = "auto",
        rules: Sequence[Rule] = ALL_RULES,
        sources: Sequence[Source] = (),
        hardware: bool = True,
        workers: bool = True,
        interval_s: float = 1.0,
        period_s: float = BASE_PERIOD_S,
        close_budget_s: float = CLOSE_BUDGET_S,
        console: bool = True,
        on_num_workers: OnNumWorkers = "report",
        sync_probe_steps: int = 2,
        deep_steps: int = 0,
    ) -> None:
        super().__init__()
        wiring.check_retuning(on_num_workers, workers=workers)
        check_trackers(trackers)
        wiring.recordings_directory(directory)
        Settings(
            interval_s=interval_s,
            period_s=period_s,
            close_budget_s=close_budget_s,
            sync_probe_steps=sync_probe_steps,
            deep_steps=deep_steps,
        )
        check_rules(rules)
        for source in sources:
            if not isinstance(source, Source):
                raise SettingError(f"sources holds {source!r}, which has no name, sample(time_s) and close()")
        self._directory = directory
        self._trackers = trackers
        self._rules = tuple(rules)
        self._extra_sources = tuple(sources)
        self._hardware = hardware
        self._workers = workers
        self._interval_s = interval_s
        self._period_s = period_s
        self._close_budget_s = close_budget_s
        self._console = console
        self._on_num_workers = on_num_workers
        self._sync_probe_steps = sync_probe_steps
        self._deep_steps = deep_steps
        self._session: _Session | None = None
        self._last: core.Monitor | None = None

    @property
    def monitor(self) -> core.Monitor | None:
        """The monitor of the fit in progress, or of the last one in this process; None before the first."""
        return self._session.monitor if self._session is not None else self._last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_last": None}

    # -- Lightning's hooks --------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start a monitor when ``fit`` begins; a second StallMonitor on the same trainer steps aside."""
        if stage != "fit":
            return
        self._finish("a new fit began")
        first = next((cb for cb in trainer.callbacks if isinstance(cb, StallMonitorMixin)), self)
        if first is not self:
            return
        monitor = self._make_monitor(trainer)
        self._session = _Session(monitor, trainer, FitEnd(trainer, self, self._finish))
        monitor.guard("seeing the end", self._session.end.watch)
        monitor.guard("probing Lightning's loaders", self._session.prepare)
        monitor.start()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to listen."""
        if self._session is not None:
            self._session.monitor.guard("listening to Lightning", self._session.listen)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Until the first batch is asked for, workers are started."""
        session = self._session
        if session is not None:
            session.clock.ledger.base(WORKER_STARTUP)
            session.monitor.guard("num_workers", session.between_epochs)
            session.clock.new_epoch(trainer.current_epoch)
            session.monitor.guard("worker probe", session.new_epoch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The batch was used."""
        session = self._session
        if session is None:
            return
        clock = session.clock
        clock.samples = session.sizes.known(batch)
        if clock.samples is None:
            clock.samples = session.monitor.guard("batch size", session.sizes.find, batch)
        if not session.looked:
            session.look(batch)
        clock.worked = True
        if session.epoch_loop is not None:
            clock.tracker_step = session.epoch_loop._batches_that_stepped
            clock.optimizer_step = session.optimizer_progress.completed
        if session.mailboxes:
            session.deliver()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """What follows belongs to no step."""
        if self._session is not None:
            self._session.clock.pause()
            if getattr(trainer, "reload_dataloaders_every_n_epochs", 0):
                self._session.clock.ledger.base(WORKER_STARTUP)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """What follows belongs to no step."""
        if self._session is not None:
            self._session.clock.pause()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the recording."""
        if stage == "fit" or (self._session is not None and self._session.end.over):
            self._finish("end")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Flush the recording and return: callbacks that save an emergency checkpoint are called after this one."""
        if self._session is not None:
            self._session.abort(exception)

    # -----------------------------------------------------------------------------------------------------------------

    def _finish(self, reason: str) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._last = session.monitor
            session.close(reason)

    def _make_monitor(self, trainer: Any) -> core.Monitor:
        settings = Settings(
            directory=wiring.recordings_path(self._directory),
            interval_s=self._interval_s,
            period_s=self._period_s,
            close_budget_s=self._close_budget_s,
            sync_probe_steps=self._sync_probe_steps,
            deep_steps=0 if type(trainer.profiler).__name__ == "PyTorchProfiler" else self._deep_steps,
            console=self._console,
            framework=_framework(trainer),
            loop_bucket="loop",
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )
        monitor = core.Monitor(
            settings,
            sources=self._extra_sources,
            rules=self._rules,
            draw=wiring.start_drawing(),
            now=self._now,
            identity=wiring.identity(settings),
        )
        monitor.guard("finding the trainer's settings", lambda: monitor.window.facts.update(_facts(trainer)))
        ranks = trainer.num_devices if trainer.world_size > 1 else 1
        monitor.add_facts("budget", lambda: wiring.budget_facts(ranks))
        wiring.add_default_sources(monitor, hardware=self._hardware, workers=self._workers)
        found = monitor.guard(
            "finding the tracker",
            lambda: choose_trackers(self._trackers, trainer.loggers, trainer.global_rank),
        )
        monitor.use_trackers(found or ())
        monitor.guard("num_workers", wiring.add_retuner, monitor, self._on_num_workers)
        monitor.guard("the profiler", wiring.add_profiler, monitor)
        monitor.add_facts("non_blocking", lambda: _copies_without_waiting(trainer))
        monitor.add_facts("model", lambda: wiring.model_facts(trainer.lightning_module))
        return monitor


class _Session:
    """One fit: the monitor, and what was put into the trainer for it."""

    __slots__ = (
        "_patches",
        "_thread",
        "_trainer",
        "clock",
        "end",
        "epoch_loop",
        "looked",
        "mailboxes",
        "monitor",
        "optimizer_progress",
        "sizes",
    )

    def __init__(self, monitor: core.Monitor, trainer: Any, end: FitEnd) -> None:
        self.monitor = monitor
        self.end = end
        self.clock = monitor.clock
        self._trainer = trainer
        self._patches = Patches()
        self._thread = threading.get_ident()
        self.looked = False
        self.epoch_loop: Any = None
        self.optimizer_progress: Any = None
        self.sizes = monitor.sizes
        self.mailboxes: list[Any] = [t for t in monitor.trackers if hasattr(t, "deliver")]

    def prepare(self) -> None:
        """Before the loaders are made: be there when one is about to start its workers."""
        strategy = self._trainer.strategy
        original = strategy.process_dataloader

        def process(dataloader: Any) -> Any:
            processed = original(dataloader)
            if self._trainer.training:
                self.monitor.probe_loader(processed, self._seeding(processed))
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
        self._listen_to_profiler(trainer.profiler)
        validation = WorkSpan(ledger, VALIDATION)
        self._around(epoch_loop.val_loop, "run", validation)
        # Lightning before 2.3 saves without an action of its own.
        self._around(trainer, "save_checkpoint", Span(ledger, CHECKPOINT))
        for logger in trainer.loggers:
            name = type(logger).__name__
            if name == "DummyLogger":
                continue
            span = Span(ledger, ledger.slot(LOGGING, name))
            self._around(logger, "log_metrics", span)
            self._around(logger, "save", span)
        self.monitor.guard("batch size", self._expect)
        self.monitor.guard("num_workers", self._meet)
        self.new_epoch()

    def _expect(self) -> None:
        """A batch of several loaders has no size that one of them would know."""
        loaders = self._loaders()
        self.sizes.meet(loaders[0] if len(loaders) == 1 else None)

    def _meet(self) -> None:
        """Say which loader may get another number of workers, or why none may."""
        loaders = self._loaders()
        why_not = None
        if len(loaders) != 1:
            why_not = f"there are {len(loaders)} training loaders"
        elif getattr(self._trainer, "reload_dataloaders_every_n_epochs", 0):
            why_not = "reload_dataloaders_every_n_epochs makes new loaders"
        if loaders:
            self.monitor.meet_loader(loaders[0], why_not)

    def between_epochs(self) -> None:
        """The next epoch has not begun: its loader may get other workers, which have to be probed anew."""
        loaders = self._loaders()
        if self.monitor.between_epochs():
            self.monitor.probe_loader(loaders[0], self._seeding(loaders[0]))

    def _loaders(self) -> list[Any]:
        return list(self._trainer.fit_loop._combined_loader.flattened)

    def look(self, batch: Any) -> None:
        """Note what the first batch holds."""
        self.looked = True
        self.monitor.look(batch)

    def new_epoch(self) -> None:
        """Tell the loader probe where the epoch's iterator will be found."""
        self.monitor.iterator_from(self._iterator)

    def deliver(self, *, last: bool = False) -> None:
        """Hand over what waits for loggers that only this thread may call."""
        for mailbox in self.mailboxes:
            if mailbox.waiting:
                self.monitor.guard.retry(f"tracker {mailbox.name}", mailbox.deliver, at_once=last)

    def abort(self, exception: BaseException) -> None:
        """Flush the recording; the rest comes with `close`, when all callbacks have been called."""
        self.monitor.guard("removing the patches", self._patches.undo)
        self.monitor.guard("removing the patches", self.end.told)
        self.monitor.abort(f"exception: {type(exception).__name__}", signalled=self._signalled(exception))

    def close(self, reason: str) -> None:
        """Undo every patch, then end the recording."""
        self.monitor.guard("removing the patches", self._patches.undo)
        self.monitor.guard("forgetting the fit", self.end.forget)
        try:
            if reason.startswith("exception"):
                self.monitor.abort(reason, signalled=self._signalled())
                self.monitor.others_are_done(MAILBOX_S if self.mailboxes else 0.0)
            else:
                self.monitor.close(reason)
        finally:
            self.deliver(last=True)
            self.monitor.settle()

    def _signalled(self, exception: BaseException | None = None) -> bool:
        """Whether a signal is ending the process."""
        received = bool(getattr(self._trainer, "received_sigterm", False))
        return received or (exception is not None and core.is_signalled(exception))

    def _listen_to_profiler(self, profiler: Any) -> None:
        spans = Spans(self.clock, owners_of(self._trainer.callbacks, self._trainer.lightning_module))
        if type(profiler).__name__ == "PassThroughProfiler":
            self._patches.set(profiler, "profile", spans.__getitem__)
            self._patches.set(profiler, "start", lambda action_name: spans[action_name].__enter__())
            self._patches.set(profiler, "stop", lambda action_name: spans[action_name].__exit__())
            return
        start, stop = profiler.start, profiler.stop

        def chained_start(action_name: str) -> None:
            start(action_name)
            spans[action_name].__enter__()

        def chained_stop(action_name: str) -> None:
            spans[action_name].__exit__()
            stop(action_name)

        self._patches.set(profiler, "start", chained_start)
        self._patches.set(profiler, "stop", chained_stop)

    def _around(self, owner: Any, name: str, span: Span) -> None:
        original = getattr(owner, name)

        def spanned(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            with span:
                return original(*args, **kwargs)

        self._patches.set(owner, name, spanned)

    def _iterator(self) -> object | None:
        fetcher = self._trainer.fit_loop._data_fetcher
        iterators = fetcher.combined_loader._iterator.iterators
        return iterators[0] if iterators else None

    def _seeding(self, dataloader: Any) -> Callable[[int], None] | None:
        """Lightning seeds workers only where the user gave no ``worker_init_fn``; ours must not count as one."""
        if getattr(dataloader, "worker_init_fn", None) is not None or not int(os.environ.get("PL_SEED_WORKERS", "0")):
            return None
        name = "lightning.fabric" if _namespace(self._trainer) == "lightning" else "lightning_fabric"
        seed = sys.modules[f"{name}.utilities.seed"]
        return functools.partial(seed.pl_worker_init_function, rank=self._trainer.global_rank)


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


def _facts(trainer: Any) -> dict[str, Any]:
    return {
        "accelerator": type(trainer.accelerator).__name__,
        "strategy": type(trainer.strategy).__name__,
        "devices": trainer.num_devices,
        "nodes": trainer.num_nodes,
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
    }
