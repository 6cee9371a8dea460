"""The demo's training: a small convolutional network under Lightning, tracked by MLflow, with `StallMonitor` added."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.loggers import MLFlowLogger
from torch import nn
from torch.utils.data import DataLoader

from ..delivery.trackers.mlflow.opening import open_store
from ..lightning import StallMonitor
from ..recording import find_recording
from .crops import Crops
from .outcome import DemoRun

EXPERIMENT = "stallmeter-demo"
BATCH_SIZE = 32
VALIDATION_IMAGES = 96


class Network(lightning.LightningModule):
    """Tells from which of the photographs a crop is."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        channels = (3, 8, 16, 32)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(channels):
            layers += [nn.Conv2d(before, after, 4, stride=4), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], labels))
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch: Any, _: int) -> Any:
        """Return the loss of one batch."""
        images, labels = batch
        loss = self.loss(self.layers(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        """Log how many of a batch are told right."""
        images, labels = batch
        right = (self.layers(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(folder: Path, files: Sequence[Path], *, epochs: int, num_workers: int, apply: bool = False) -> DemoRun:
    """Train on the files and return where the run was recorded.

    Args:
        folder: Where MLflow's database, its artifacts and the recording go.
        files: Images; the first 96 are for validation.
        epochs: How often all images are seen.
        num_workers: Of the training loader.
        apply: Whether stallmeter may change that between two epochs.
    """
    # The demo's point is made by stallmeter's verdict; the rest of the screen is for the progress bar.
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store").setLevel(logging.WARNING)
    uri = f"sqlite:///{(folder / 'mlflow.db').absolute()}"
    open_store(uri).experiment(EXPERIMENT, artifact_location=(folder / "artifacts").absolute().as_uri())
    tracker = MLFlowLogger(experiment_name=EXPERIMENT, tracking_uri=uri)
    monitor = StallMonitor(
        directory=folder / "stallmeter", console=False, on_num_workers="apply" if apply else "report"
    )
    trainer = lightning.Trainer(
        max_epochs=epochs,
        devices=1,
        logger=tracker,
        callbacks=[monitor],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    training = Crops(files[VALIDATION_IMAGES:], augment=True)
    validation = Crops(files[:VALIDATION_IMAGES], augment=False)
    threads = torch.get_num_threads()
    # Several threads of a loop that shares its CPUs with workers wait for each other (docs/explain/workers-model.md).
    torch.set_num_threads(1)
    try:
        trainer.fit(
            Network(len(training.labels)),
            DataLoader(training, BATCH_SIZE, shuffle=True, num_workers=num_workers),
            DataLoader(validation, BATCH_SIZE),
        )
    finally:
        torch.set_num_threads(threads)
    if monitor.monitor is not None:
        monitor.monitor.finish()  # the page is part of what the demo shows
    return DemoRun(
        recording=find_recording(folder / "stallmeter"),
        tracking_uri=tracker._tracking_uri,
        experiment_id=tracker.experiment_id,
        run_id=tracker.run_id,
    )
