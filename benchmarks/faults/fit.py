"""One fit of one shape, and what was really spent where, taken at the planted faults themselves.

Nothing here knows the tool under test: it is a callback like any other.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from .datasets import Items, SlowInit, Stream, _touched, burn, wait
from .shape import Shape


class Spent:
    """Seconds by place, measured where they are spent."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Book the time inside the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[place] += time.perf_counter() - started


class Device(torch.nn.Module):
    """The accelerator: a layer that takes its time. Tools that time modules book it as compute."""

    def forward(self, items: torch.Tensor, seconds: float) -> torch.Tensor:
        wait(seconds)
        return items


class Net(L.LightningModule):
    """A network whose device is a sleep."""

    def __init__(self, shape: Shape, spent: Spent, make_loader: Callable[[], DataLoader]) -> None:
        super().__init__()
        self.shape = shape
        self.spent = spent
        self.make_loader = make_loader
        self.device_layer = Device()
        self.layer = torch.nn.Linear(16, 1)
        if shape.weights_bytes:
            self.weights = torch.nn.Parameter(torch.zeros(shape.weights_bytes // 4))
        self.kept: list[bytearray] = []

    def setup(self, stage: str) -> None:
        with self.spent.at("start"):
            wait(self.shape.setup_s)

    def train_dataloader(self) -> DataLoader:
        with self.spent.at("start"):
            wait(self.shape.prepare_s)
        return self.make_loader()

    def val_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(torch.zeros(self.shape.validate_steps, 16)))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        shape = self.shape
        items = first_tensor(batch).reshape(-1, 16)
        with self.spent.at("forward"):
            items = self.device_layer(items, shape.device_s)
            if shape.pause_every and batch_idx % shape.pause_every == shape.pause_every // 2:
                with self.spent.at("pauses"):
                    wait(shape.pause_s)
        if shape.leak_bytes:
            self.kept.append(_touched(shape.leak_bytes))
        loss = self.layer(items).mean()
        if self.trainer.loggers:
            self.log("loss", loss.detach())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        with self.spent.at("validation"):
            wait(self.shape.validate_s)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.shape.hook_cpu_s:
            with self.spent.at("callbacks"):
                burn(self.shape.hook_cpu_s)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.layer.parameters(), lr=1e-3)


def first_tensor(batch: Any) -> torch.Tensor:
    """Return the tensor that a batch is, or its first one."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return batch


class ActivationHistograms(L.Callback):
    """A callback that looks at every batch."""

    def __init__(self, shape: Shape, spent: Spent) -> None:
        self.shape = shape
        self.spent = spent

    def on_train_batch_end(self, *_: Any) -> None:
        with self.spent.at("callbacks"):
            wait(self.shape.callback_s)


class RemoteLogger(Logger):
    """A logger whose server answers slowly."""

    def __init__(self, seconds: float, spent: Spent) -> None:
        super().__init__()
        self.seconds = seconds
        self.spent = spent

    name = "remote"
    version = 0

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        with self.spent.at("logging"):
            wait(self.seconds)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Nothing to keep."""


class SlowStorage(TorchCheckpointIO):
    """Writes a checkpoint for real, to a storage that takes its time."""

    def __init__(self, seconds: float, spent: Spent) -> None:
        self.seconds = seconds
        self.spent = spent

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        with self.spent.at("checkpoint"):
            super().save_checkpoint(checkpoint, path, storage_options)
            wait(self.seconds)


def make_loader(shape: Shape, seed: int, store: tuple[str, int] | None, dataset: Any = None) -> DataLoader:
    """Return the training loader of a shape."""
    whole = shape.tensors > 0
    count = shape.steps * (1 if whole else shape.batch_size)
    dataset = Items(shape, count, store) if dataset is None else dataset
    return DataLoader(
        Stream(dataset) if shape.iterable else dataset,
        batch_size=None if whole else shape.batch_size,
        shuffle=None if shape.iterable else True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=shape.workers,
        persistent_workers=shape.persistent,
        multiprocessing_context=shape.start_method if shape.workers else None,
        worker_init_fn=SlowInit(shape.worker_init_s) if shape.worker_init_s else None,
    )


@contextmanager
def timed_input(spent: Spent) -> Iterator[Callable[[DataLoader], DataLoader]]:
    """Time, in torch's own classes, what making iterators and fetching batches costs the loop.

    Yields a function that names the loader to be timed.
    """
    marked: list[object] = []
    seen = False
    original_iter, original_next = DataLoader.__iter__, _BaseDataLoaderIter.__next__
    original_shutdown = _MultiProcessingDataLoaderIter._shutdown_workers

    def timed_iter(self: DataLoader) -> Any:
        nonlocal seen
        if not any(self.dataset is dataset for dataset in marked):
            return original_iter(self)
        place, seen = "next iterators" if seen else "first iterator", True
        with spent.at(place):
            iterator = original_iter(self)
        # What a tool puts in an iterator's place may not take an attribute.
        with suppress(AttributeError):
            iterator.of_the_loop = True
        return iterator

    def timed_next(self: Any) -> Any:
        if not getattr(self, "of_the_loop", False):
            return original_next(self)
        with spent.at("next"):
            return original_next(self)

    def timed_shutdown(self: Any) -> None:
        if self._shutdown or not getattr(self, "of_the_loop", False):
            return original_shutdown(self)
        # An epoch's workers are stopped when the next epoch has made its own; those of the last one after training.
        spent.seconds["shutdowns"] += spent.seconds.pop("last shutdown", 0.0)
        with spent.at("last shutdown"):
            return original_shutdown(self)

    def mark(loader: DataLoader) -> DataLoader:
        marked.append(loader.dataset)
        return loader

    DataLoader.__iter__, _BaseDataLoaderIter.__next__ = timed_iter, timed_next
    _MultiProcessingDataLoaderIter._shutdown_workers = timed_shutdown
    try:
        yield mark
    finally:
        DataLoader.__iter__, _BaseDataLoaderIter.__next__ = original_iter, original_next
        _MultiProcessingDataLoaderIter._shutdown_workers = original_shutdown


def run(
    shape: Shape, seed: int, callbacks: Sequence[Any], *, store: tuple[str, int] | None = None
) -> tuple[float, dict[str, float]]:
    """Train and return the seconds that ``fit`` took, and those spent where something was planted."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    spent = Spent()
    if shape.fork_wait_s:
        os.register_at_fork(before=lambda: wait(shape.fork_wait_s))
    with tempfile.TemporaryDirectory() as folder, timed_input(spent) as mark:
        module = Net(shape, spent, lambda: mark(make_loader(shape, seed, store)))
        trainer = _trainer(shape, spent, callbacks, Path(folder))
        started = time.perf_counter()
        trainer.fit(module)
        elapsed = time.perf_counter() - started
    return elapsed, dict(spent.seconds)


def _trainer(shape: Shape, spent: Spent, callbacks: Sequence[Any], folder: Path) -> L.Trainer:
    own: list[Any] = [*callbacks]
    if shape.callback_s:
        own.append(ActivationHistograms(shape, spent))
    if shape.save_every:
        own.append(ModelCheckpoint(folder, every_n_train_steps=shape.save_every, save_top_k=1))
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=shape.epochs,
        callbacks=own,
        logger=RemoteLogger(shape.logger_s, spent) if shape.logger_s else False,
        log_every_n_steps=shape.log_every,
        accumulate_grad_batches=shape.accumulate,
        val_check_interval=shape.validate_every or None,
        limit_val_batches=None if shape.validate_every else 0,
        num_sanity_val_steps=0,
        plugins=[SlowStorage(shape.save_s, spent)] if shape.save_every else None,
        default_root_dir=folder,
        enable_checkpointing=bool(shape.save_every),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
