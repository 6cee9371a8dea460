"""A job of two ranks with gloo, of which rank 1 is slow with its data, or dies.

RANK=0 WORLD_SIZE=2 python job_ranks.py CASE FOLDER [TRACKING_URI]   (or with torchrun, or with the variables of srun)

CASE: together (in one folder), apart (in one each), dies (rank 1, in the middle), fails (rank 1, in the middle).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stallmeter
from stallmeter.engine import wiring

wiring.start_drawing = lambda: None  # pictures take most of a short run's time
CASE, FOLDER, *TRACKING = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
RANK = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
STEPS, DIES_AT = 60, 45


class Rows(Dataset):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.025 if RANK else 0.0005)
        return torch.ones(8)


def main() -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{FOLDER}.store", rank=RANK, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    directory = FOLDER / str(RANK) if CASE == "apart" else FOLDER
    monitor = stallmeter.Monitor(
        directory=directory, trackers="mlflow" if TRACKING else None, interval_s=0.25, sync_probe_steps=0
    )
    for step, batch in enumerate(monitor.watch(DataLoader(Rows(), batch_size=1))):
        with monitor.span("forward"):
            time.sleep(0.005)
            loss = model(batch).sum()
        with monitor.span("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if RANK and step == DIES_AT and CASE == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if RANK and step == DIES_AT and CASE == "fails":
            raise ValueError("planted")
    monitor.close()
    dist.destroy_process_group()


main()
