"""Runs a program with Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins.io import TorchCheckpointIO

from .loops import Marks, Step, validation_loader
from .program import Program
from .work import wait


class Net(L.LightningModule):
    """A network whose device is a sleep or a product of matrices."""

    def __init__(self, program: Program, make_loader: Callable[[], Any], marks: Marks) -> None:
        super().__init__()
        self.program = program
        self.make_loader = make_loader
        self.marks = marks
        self.own = Step(program)
        # As submodules: tools that time modules book them as compute.
        self.device_layer, self.layer = self.own.device, self.own.layer
        self.register_buffer("weights", self.own.weights)

    def setup(self, stage: str) -> None:
        wait(self.program.setup_s)

    def train_dataloader(self) -> Any:
        wait(self.program.prepare_s)
        return self.make_loader()

    def val_dataloader(self) -> Any:
        return validation_loader(self.program)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.own.forward(batch)
        if self.trainer.loggers:
            self.log("loss", loss.detach())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        wait(self.program.validate_s)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.program.callback == "hook":
            self.own.after()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.layer.parameters(), lr=1e-3)


class ActivationHistograms(L.Callback):
    """A callback that looks at every batch."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def on_train_batch_end(self, *_: Any) -> None:
        self.step.after()


class Clock(L.Callback):
    """Notes when steps end."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.marks.step():
            trainer.should_stop = True

    def on_validation_end(self, *_: Any) -> None:
        self.marks.note()

    def on_train_epoch_end(self, *_: Any) -> None:
        self.marks.note()


class RemoteLogger(Logger):
    """A logger whose server answers slowly."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    name = "remote"
    version = 0

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        wait(self.seconds)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Nothing to keep."""


class SlowStorage(TorchCheckpointIO):
    """Writes a checkpoint for real, to a storage that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        wait(self.seconds)


def run_lightning(
    program: Program, make_loader: Callable[[], Any], callbacks: Sequence[Any], marks: Marks, folder: Path
) -> None:
    """Fit."""
    module = Net(program, make_loader, marks)
    own: list[Any] = [*callbacks, Clock(marks)]
    if program.callback != "hook":
        own.append(ActivationHistograms(module.own))
    if program.save_every:
        own.append(ModelCheckpoint(folder, every_n_train_steps=program.save_every, save_top_k=1))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=program.epochs,
        limit_train_batches=program.steps,
        callbacks=own,
        logger=RemoteLogger(program.logger_s) if program.logger_s else False,
        log_every_n_steps=program.log_every,
        accumulate_grad_batches=program.accumulate,
        val_check_interval=min(program.validate_every, program.steps) or None,
        limit_val_batches=None if program.validate_every else 0,
        num_sanity_val_steps=0,
        plugins=[SlowStorage(program.save_s)] if program.save_every else None,
        default_root_dir=folder,
        enable_checkpointing=bool(program.save_every),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module)
