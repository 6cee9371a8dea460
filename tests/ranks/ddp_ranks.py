"""A plain loop of two ranks under DistributedDataParallel; on rank 1 the backward pass takes longer.

python ddp_ranks.py FOLDER STEPS   (with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import stallmeter
from stallmeter.engine import wiring

wiring.start_drawing = lambda: None  # pictures take most of a short run's time
torch.set_num_threads(1)
FORWARD_S, LONGER_S = 0.003, 0.02


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)  # long enough to be seen in it
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        time.sleep(LONGER_S * dist.get_rank())
        return grad


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Slow.apply(self.first(x)))


if __name__ == "__main__":
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    with stallmeter.Monitor(directory=folder, trackers=None, console=False, interval_s=0.02) as monitor:
        for batch in monitor.watch([torch.randn(4, 64)] * steps):
            model(batch).sum().backward()
    dist.destroy_process_group()
