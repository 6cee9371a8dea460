"""A program that trains on two ranks.

    python ranks.py NAMESPACE FOLDER with/STRATEGY|without/STRATEGY|fabric/STRATEGY ...

Given several, it trains each in a fork of its own, one after the other: the packages are imported once for all.
Most fit more than once. In the last fit rank 1 is slow with its data.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import stallmeter
from stallmeter.engine import wiring

wiring.start_drawing = lambda: None  # pictures take most of a short run's time
torch.set_num_threads(1)
NAMESPACE, FOLDER, *CASES = sys.argv[1:]
PORTS = dict(zip(CASES, os.environ.get("PORTS", "").split(), strict=False))
"""For each case one of its own to set_known_ranks at."""
SLOW_S = 0.04
"""For each item on rank 1: more than other programs of a busy machine take from rank 0."""
FITS = {"without/ddp_fork": 1, "with/ddp_fork": 2, "with/ddp_spawn": 1, "with/ddp": 3}
pl = importlib.import_module(NAMESPACE)


class Rows(Dataset):
    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if dist.is_initialized() and dist.get_rank() == 1:
            time.sleep(self.slow_s)
        return torch.full((4,), index / 64)


class Model(pl.LightningModule):  # type: ignore[name-defined, misc]
    def __init__(self, place: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.place = place

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).pow(2).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-2)

    def on_train_end(self) -> None:
        weights = [p.tolist() for p in self.parameters()]
        (self.place / f"weights-{self.global_rank}.json").write_text(json.dumps(weights))


def train(case: str) -> None:
    ours, strategy = case.split("/")
    place = Path(FOLDER, case)
    place.mkdir(parents=True, exist_ok=True)
    os.chdir(place)
    if ours == "fabric":
        return train_with_fabric(place, strategy)
    module = importlib.import_module(f"stallmeter.lightning.{'unified' if NAMESPACE[0] == 'l' else 'legacy'}")
    callbacks = [module.StallMonitor(directory=place / "rec", interval_s=0.05)] if ours == "with" else []
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    options = {"accelerator": "cpu", "devices": 2, "strategy": strategy, "max_epochs": 2, **quiet}
    workers = int(strategy != "ddp_spawn")  # they would be spawned, too: seconds of imports for each
    for fit in range(FITS[case]):
        if fit and strategy == "ddp_fork":
            wait_until_free(int(os.environ["MASTER_PORT"]))
        torch.manual_seed(7)
        trainer = pl.Trainer(**options, callbacks=callbacks)
        rows = Rows(SLOW_S if ours == "with" and fit + 1 == FITS[case] else 0.0)
        trainer.fit(Model(place), DataLoader(rows, batch_size=2, num_workers=workers, shuffle=True))
    return None


def train_with_fabric(place: Path, strategy: str) -> None:
    fabric = importlib.import_module("lightning.fabric").Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch(loop_of_fabric, place)


def loop_of_fabric(fabric: Any, place: Path) -> None:
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1e-2))
    loader = fabric.setup_dataloaders(DataLoader(Rows(SLOW_S), batch_size=2))
    with stallmeter.Monitor(directory=place / "rec", trackers=None, interval_s=0.05) as monitor:
        for _ in range(2):
            for batch in monitor.watch(loader):
                fabric.backward(model(batch).pow(2).sum())
                optimizer.step()
                optimizer.zero_grad()


def wait_until_free(port: int) -> None:
    """The ranks of the next fit meet at the same port, which what is left of the last one's may hold for a moment."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return
        time.sleep(0.05)


def main() -> None:
    if len(CASES) == 1:
        return train(CASES[0])
    importlib.import_module("torch._dynamo")  # the first optimizer does; it takes as long as the rest of a training
    for case in CASES:
        child = os.fork()
        if child == 0:
            sys.argv[3:] = [case]  # what ddp starts once more
            os.environ["MASTER_PORT"] = PORTS[case]
            return train(case)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{case}: {os.waitstatus_to_exitcode(status)}")
    return None


if __name__ == "__main__":
    main()
