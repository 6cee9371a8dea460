"""A program that trains on two ranks, once without us and once with `apply`, whose model advises three workers.

python workers_of_ranks.py FOLDER plain|lightning   (with torchrun, or with the variables that it would set)

The ranks wait for each other in each step. Between two of them one rank's sampler takes its turn, then the other's, so
that who hears of what does not depend on how busy the machine is. Each rank writes which number of workers and which
batches it had in each epoch, and what the process group was asked for.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import stallmeter
from stallmeter.engine import collector, job_workers, wiring
from stallmeter.ranks import posts
from stallmeter.records.diagnosis import Verdict, WorkerAdvice

FOLDER, CASE = Path(sys.argv[1]), sys.argv[2]
EPOCHS, STEPS = 4, 24
OPTIONS: dict[str, Any] = {"on_num_workers": "apply", "console": False, "trackers": None, "interval_s": 86_400}


def evaluate(rules: Any, window: Any, guard: Any) -> Verdict:
    now = window.present().loader.num_workers
    if now is None:
        return Verdict(primary=None)
    advice = WorkerAdvice(
        current=now,
        recommended=3,
        predicted_step_time_s=0.01,
        predicted_gain_pct=100.0 if now != 3 else 0.0,
        limited_by="compute",
        reason="it is planted",
        confidence=0.9,
    )
    return Verdict(primary=None, num_workers=advice)


collector.evaluate = evaluate  # type: ignore[attr-defined]
collector.VERDICT_EVERY_S = posts.FIRST_S = posts.PERIOD_S = 0.0
posts.BYTES_PER_MIN = 10**12
job_workers.look_s = wiring.look_s = lambda interval_s, world_size: 0.0  # type: ignore[attr-defined]
wiring.start_drawing = lambda: None  # pictures take most of a short run's time
torch.set_num_threads(1)


class Rows(Dataset):
    """Rows that take a while to make."""

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((2,), float(index))


class Seen:
    """What one rank had: the number of workers and the batches of each epoch."""

    def __init__(self, monitor: stallmeter.Monitor | None) -> None:
        self.workers: list[int] = []
        self.batches: list[list[float]] = []
        self._monitor = monitor
        self._asked = asked()
        deadline = time.monotonic() + 60
        while monitor is not None and monitor.folder is None and time.monotonic() < deadline:
            monitor.run.collector.tick()
            time.sleep(0.01)

    def epoch(self, loader: Any) -> None:
        self.workers.append(loader.num_workers)
        self.batches.append([])

    def batch(self, batch: torch.Tensor) -> None:
        self.batches[-1].append(float(batch[0, 0]))
        if self._monitor is not None and len(self.batches[-1]) % 4 == 2 * dist.get_rank():
            self._monitor.run.collector.tick()

    def write(self, name: str) -> None:
        content = [self.workers, self.batches, asked() - self._asked]
        (FOLDER / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(content))


def asked() -> int:
    return int(dist.distributed_c10d._get_default_group()._get_sequence_number_for_group())


def plain() -> None:
    dist.init_process_group("gloo")
    for name in ("without", "with"):
        torch.manual_seed(7)
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        data = Rows()
        loader = DataLoader(data, sampler=DistributedSampler(data, seed=3), num_workers=1)
        monitor = stallmeter.Monitor(directory=FOLDER / "rec", **OPTIONS) if name == "with" else None
        seen = Seen(monitor)
        for epoch in range(EPOCHS):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            batches = iter(loader if monitor is None else monitor.watch(loader))
            seen.epoch(loader)
            for batch in batches:
                model(batch).sum().backward()
                seen.batch(batch)
        seen.write(name)
        if monitor is not None:
            monitor.close()
    dist.barrier()
    dist.destroy_process_group()


def lightning() -> None:
    import lightning.pytorch as pl

    from stallmeter.lightning import StallMonitor

    class Model(pl.LightningModule):
        def __init__(self, name: str, ours: StallMonitor | None) -> None:
            super().__init__()
            self.layer, self.name, self.ours = torch.nn.Linear(2, 1), name, ours

        def on_train_start(self) -> None:
            self.seen = Seen(None if self.ours is None else self.ours.monitor)

        def on_train_epoch_start(self) -> None:
            self.seen.epoch(self.trainer.fit_loop._combined_loader.flattened[0])

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            self.seen.batch(batch)
            return self.layer(batch).sum()

        def on_train_end(self) -> None:
            self.seen.write(self.name)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    for name in ("without", "with"):
        torch.manual_seed(7)
        ours = StallMonitor(directory=FOLDER / "rec", **OPTIONS) if name == "with" else None
        trainer = pl.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, callbacks=ours and [ours], **quiet
        )
        trainer.fit(Model(name, ours), DataLoader(Rows(), shuffle=True, num_workers=1))


{"plain": plain, "lightning": lightning}[CASE]()
