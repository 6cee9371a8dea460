"""Steps of a LightningModule, made by a Trainer of the package that it belongs to."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import SettingError
from ..timing.batches import BatchSizes
from ..window import Window
from .rate_meter import RateMeter
from .tensors import NOT_INITIALISED
from .training import options_of

NAMESPACES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
"""Top-level packages of Lightning, and where each has its Trainer."""

ADAPTERS = {"lightning": "unified", "pytorch_lightning": "legacy"}

MANY_STEPS = 1_000_000
"""Schedules that ask for the number of steps get this one; none of them is reached."""


class LightningTraining:
    """A Trainer of the package that the module belongs to.

    Loggers, callbacks, checkpoints and validation are left out: what remains is the training itself.

    Args:
        module: A LightningModule, compiled or not.
        datamodule: Its hooks run as in training; its loaders are replaced by what is to be measured.
        trainer_kwargs: For the Trainer, for example ``precision``.

    Raises:
        SettingError: An argument is one that the probe needs for itself, or a parameter is not initialised yet.
    """

    def __init__(self, module: Any, datamodule: Any | None, trainer_kwargs: Mapping[str, Any]) -> None:
        from torch.nn.parameter import is_lazy

        self._module = module
        self._datamodule = datamodule
        self._kwargs = dict(trainer_kwargs)
        namespace = lightning_namespace(module)
        assert namespace is not None
        self._namespace = namespace
        self._lightning: Any = sys.modules[NAMESPACES[namespace]]
        self.framework = f"{namespace} {getattr(sys.modules[namespace], '__version__', '?')}"
        self.device = "cpu"
        taken = sorted(self._kwargs.keys() & _ours(Path()).keys())
        if taken:
            raise SettingError(f"trainer_kwargs has {', '.join(taken)}, which the probe sets itself; leave it out")
        if any(is_lazy(parameter) for parameter in module.parameters()):
            raise SettingError(NOT_INITIALISED)

    def roots(self) -> list[object]:
        """Return the module."""
        return [self._module]

    def run(self, loader: Iterable[Any], meter: RateMeter, folder: Path, *, inside: bool) -> Window:
        """Train; see `Training.run`."""
        adapter = importlib.import_module(f"..lightning.{ADAPTERS[self._namespace]}", __package__)
        watcher = adapter.StallMonitor(**options_of(folder, inside=inside))
        with _quiet(NAMESPACES[self._namespace]):
            trainer = self._lightning.Trainer(
                **self._kwargs, **_ours(folder), callbacks=[watcher, self._metering_callback(meter, watcher, loader)]
            )
            self.device = str(trainer.strategy.root_device.type)
            try:
                with _interruptible(trainer):
                    trainer.fit(self._module, **self._data(loader))
            finally:
                if watcher.monitor is not None:
                    watcher.monitor.finish()
        window: Window = watcher.monitor.window
        return window

    def _metering_callback(self, meter: RateMeter, watcher: Any, loader: object) -> Any:
        sizes = BatchSizes()
        sizes.set_loader(loader)

        def on_train_batch_end(trainer: Any, _module: Any, _outputs: Any, batch: Any, _batch_idx: int) -> None:
            if meter.tick(sizes(batch)):
                trainer.should_stop = True
                watcher.monitor.run.ending.skip_reports()

        metering = self._lightning.Callback()
        metering.on_train_batch_end = on_train_batch_end
        return metering

    def _data(self, loader: Iterable[Any]) -> dict[str, Any]:
        """Put the loader where the Trainer looks for it. All this is undone with the snapshot of module and data."""
        module = getattr(self._module, "_orig_mod", self._module)
        module.configure_callbacks = list
        datamodule = self._datamodule
        if datamodule is None:
            return {"train_dataloaders": loader}
        datamodule.train_dataloader = lambda: loader
        datamodule.prepare_data = lambda: None
        datamodule.setup = datamodule.teardown = lambda stage: None  # noqa: ARG005 - Lightning passes it by name
        return {"datamodule": datamodule}


def lightning_namespace(thing: object) -> str | None:
    """Return the package whose LightningModule something is, compiled or not; None when it is none."""
    return _lightning_base(getattr(thing, "_orig_mod", thing), "LightningModule")


def is_datamodule(thing: object) -> bool:
    """Whether something is a LightningDataModule of either package."""
    return _lightning_base(thing, "LightningDataModule") is not None


def _lightning_base(thing: object, name: str) -> str | None:
    for cls in type(thing).__mro__:
        root = cls.__module__.partition(".")[0]
        if cls.__name__ == name and root in NAMESPACES:
            return root
    return None


def _ours(folder: Path) -> dict[str, Any]:
    """Arguments of the Trainer that make it a probe's."""
    return {
        "max_epochs": -1,
        "max_steps": MANY_STEPS,
        "devices": 1,
        "num_nodes": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "default_root_dir": folder,
    }


@contextmanager
def _quiet(package: str) -> Iterator[None]:
    """Keep what Lightning says about the probe's Trainer to itself."""
    log = logging.getLogger(package)
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(lightning|pytorch_lightning|torch)\.")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


@contextmanager
def _interruptible(trainer: Any) -> Iterator[None]:
    """Let Ctrl-C end the probe: Lightning would exit the program or, before 2.4, go on as if the fit were over.

    Raises:
        KeyboardInterrupt: It was pressed.
    """
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as exc:
        if not isinstance(exc.__context__, KeyboardInterrupt):
            raise
        raise KeyboardInterrupt from None
    finally:
        if main and handler is not None:
            signal.signal(signal.SIGINT, handler)
    if trainer.interrupted:
        raise KeyboardInterrupt
