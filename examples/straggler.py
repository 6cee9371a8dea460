"""Two ranks with DistributedDataParallel, one of which reads its images over a slow link: the job's report names it.

Both ranks are processes on this machine, without a GPU; they exchange gradients with gloo. Each reads its own half of
the same JPEG files, rank 1 as from a mount that brings 1 MB a second. Only the line with `stallmeter.watch` is
stallmeter's. The program starts its ranks itself, with torchrun; started by torchrun it is one of them.

Run it with ``python examples/straggler.py``; it needs ``pip install 'stallmeter[demo]'`` and takes about 25 s.
Then ``stallmeter report`` shows the job, ``stallmeter report --rank 0`` one rank alone.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import stallmeter
from stallmeter.demo.crops import write_crops

SLOW_RANK, SLOW_BYTES_PER_S = 1, 1_000_000
BLOCK_BYTES = 4096


class Images(Dataset):
    """JPEG files, read no faster than a link brings them."""

    def __init__(self, files: list[Path], bytes_per_s: float | None) -> None:
        self.files, self.bytes_per_s = files, bytes_per_s

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.read(self.files[index]))).convert("RGB").resize((96, 96))
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255).permute(2, 0, 1)
        return pixels, int(self.files[index].parent.name == "flower")

    def read(self, path: Path) -> bytes:
        if self.bytes_per_s is None:
            return path.read_bytes()
        blocks = []
        with path.open("rb", buffering=0) as file:
            while block := file.read(BLOCK_BYTES):
                time.sleep(len(block) / self.bytes_per_s)
                blocks.append(block)
        return b"".join(blocks)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=2), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(768, 2),
    )  # fmt: skip


def train(epochs: int, num_workers: int, count: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    files = write_crops(Path(f"demo-output/crops-{count}"), count)  # they are there: the launching process wrote them
    images = Images(files, SLOW_BYTES_PER_S if rank == SLOW_RANK else None)
    sampler = DistributedSampler(images, shuffle=True)
    loader = DataLoader(
        images, batch_size=8, sampler=sampler, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for pixels, labels in stallmeter.watch(loader):  # was: for pixels, labels in loader:
            loss = loss_of(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    dist.barrier()
    # Now and then torch hangs where the group is freed while one of gloo's threads still ends its last work and waits
    # for the interpreter's lock (pytorch issue 190489): leave it the time for that.
    time.sleep(0.5)
    dist.destroy_process_group()


def main(epochs: int = 3, num_workers: int = 1, count: int = 640) -> None:
    if "RANK" in os.environ:
        train(epochs, num_workers, count)
        return
    write_crops(Path(f"demo-output/crops-{count}"), count)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    sys.exit(subprocess.call([*torchrun, __file__, str(epochs), str(num_workers), str(count)]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
