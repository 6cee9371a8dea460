"""Real Lightning runs with sleeps planted at known places, timed from outside, against what the ledger says.

    python -m benchmarks.ledger

Truth is taken where it happens: around each planted sleep, and around torch's own iterators for what waits for workers.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from stallmeter.lightning.unified import StallMonitor

truth: dict[str, float] = {}


def planted(place: str, seconds: float) -> None:
    started = time.perf_counter()
    time.sleep(seconds)
    truth[place] = truth.get(place, 0.0) + time.perf_counter() - started


def timed(owner: type, name: str) -> None:
    """Add the time in a method of torch's iterators to the truth about waiting, nested calls once."""
    original = getattr(owner, name)

    def method(self, *args):
        nested[0] += 1
        started = time.perf_counter()
        try:
            return original(self, *args)
        finally:
            nested[0] -= 1
            if not nested[0] and counting:
                place = "waiting for workers"
                truth[place] = truth.get(place, 0.0) + time.perf_counter() - started

    setattr(owner, name, method)


counting = False
nested = [0]


class Items(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(16)


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch, batch_idx):
        planted("forward", 0.06)
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx):
        planted("validation", 0.1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class SlowCallback(L.Callback):
    def on_train_batch_end(self, *_):
        planted("callbacks", 0.02)


class SlowIO(TorchCheckpointIO):
    def save_checkpoint(self, *args, **kwargs):
        planted("checkpoint", 0.4)
        super().save_checkpoint(*args, **kwargs)


class Outside(L.Callback):
    """Counts what torch's iterators take from the first step on, as the ledger does."""

    def on_train_start(self, *_):
        global counting
        counting = True

    def on_train_end(self, *_):
        global counting
        counting = False


def slow_worker(_: int) -> None:
    time.sleep(0.3)


def fit(folder: str, epochs: int, loader: DataLoader, *callbacks: L.Callback, **options) -> StallMonitor:
    ours = StallMonitor(directory=folder, trackers=None, console=False)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[Outside(), ours, *callbacks],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        logger=False,
        default_root_dir=folder,
        **options,
    )
    validation = DataLoader(Items(40), batch_size=8)
    trainer.fit(Model(), loader, validation if "limit_val_batches" not in options else None)
    ours.monitor.finish()  # or its page would be drawn beside the next run
    return ours


def show(title: str, ours: StallMonitor) -> None:
    folder = ours.monitor.folder
    command = [sys.executable, "-m", "stallmeter", "report", str(folder), "--format", "json"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ledger = {**report["ledger"]}
    ledger["waiting for workers"] = ledger["data_wait"] + ledger["worker_startup"]
    print(f"\n{title}: wall {report['wall_s']:.2f} s, coverage {report['coverage_pct']:.2f} %")
    print(f"{'place':22s} {'planted s':>10s} {'ledger s':>10s} {'difference':>11s}")
    for place, seconds in truth.items():
        print(f"{place:22s} {seconds:10.3f} {ledger[place]:10.3f} {100 * (ledger[place] / seconds - 1):+10.2f} %")
    print(f"{'sum of the buckets':22s} {report['wall_s']:10.3f} {sum(report['ledger'].values()):10.3f}")


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        saver = ModelCheckpoint(dirpath=Path(folder) / "c", every_n_train_steps=20, save_top_k=-1)
        loader = DataLoader(Items(240), batch_size=8)
        ours = fit(folder, 3, loader, SlowCallback(), saver, plugins=[SlowIO()])
        show("validation each epoch, a slow callback, a checkpoint every 20 steps", ours)
        truth.clear()
        timed(_BaseDataLoaderIter, "__next__")
        timed(_MultiProcessingDataLoaderIter, "__init__")
        timed(_MultiProcessingDataLoaderIter, "_shutdown_workers")
        loader = DataLoader(
            Items(160), batch_size=8, num_workers=2, multiprocessing_context="spawn", worker_init_fn=slow_worker
        )
        ours = fit(folder, 5, loader, limit_val_batches=0, enable_checkpointing=False)
        show("spawned, non-persistent workers over 5 epochs", ours)
