"""Seven ways to feed one segmentation network: healthy, and with each bottleneck of the article planted.

Chaim Rand, "TensorFlow Performance Analysis", Towards Data Science, 23 August 2020: a network for pixel-level
segmentation on one V100. Absolute numbers of another network on another GPU differ; what should agree is the order of
the cases, where the GPU idles, and why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Shape:
    """How large everything is."""

    side: int
    width: int
    batch: int
    workers: int
    steps: int
    fetch_s: float
    """Time in which a record comes over a network that is fast enough."""
    images: int
    """Random images that the post-processing makes after each step."""
    passes: int
    """How often the overloaded preprocessing convolves a record."""


GPU = Shape(side=256, width=128, batch=64, workers=8, steps=300, fetch_s=0.012, images=64, passes=40)
"""About 85 GFLOP a record: some 100 records/s on the article's V100 in single precision. `suited` fits it to others."""

SMOKE = Shape(side=16, width=4, batch=8, workers=0, steps=24, fetch_s=0.0002, images=2, passes=1)
"""Small enough for any CPU: runs the code, proves nothing."""


@dataclass(frozen=True)
class Case:
    name: str
    planted: str
    article: str
    """What the article reports, in its words and numbers."""
    expected: tuple[str, ...]
    """Primary causes that name what was planted."""
    batch: int | None = None
    drop: int = 1
    """Records read for each one that is used."""
    heavy: bool = False
    tiles: int = 1
    wide_layer: bool = False
    callback: Callable[[Shape], L.Callback] | None = field(default=None)
    pinned: bool = True


class PostProcessing(L.Callback):
    """Makes and keeps random images after every step, as the article's callback does with segmentation masks."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.kept: list[Any] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        side = 4 * self.shape.side
        self.kept = [torch.randint(0, 256, (side, side, 3), dtype=torch.uint8) for _ in range(self.shape.images)]


CASES = (
    Case("healthy", "nothing; batch 64", "100 samples/s, GPU 95-100 %", ("compute-bound",)),
    Case(
        "small batch",
        "batch 2",
        "40 samples/s, GPU 60 %",
        ("launch-bound", "host-sync", "low-utilization", "low-gpu-memory-use"),
        batch=2,
    ),
    Case(
        "slow network input",
        "9 of 10 records dropped after they were read",
        "22 samples/s, 77.8 % of the step waiting for data",
        ("fetch-stall", "too-few-workers"),
        drop=10,
    ),
    Case(
        "overloaded preprocessing",
        "a separable 7x7 convolution of each record on the CPU",
        "25 samples/s, GPU at most 36 %, CPU 96 %",
        ("prep-stall", "too-few-workers"),
        heavy=True,
    ),
    Case(
        "ten-fold input",
        "input tiled ten times, dropped on the device",
        "84 samples/s",
        ("transfer-bound", "unpinned-memory", "batch-handoff"),
        tiles=10,
    ),
    Case(
        "ten-fold input, pageable",
        "the same from memory that is not pinned",
        "not in the article",
        ("unpinned-memory", "transfer-bound", "batch-handoff"),
        tiles=10,
        pinned=False,
    ),
    Case(
        "heavy post-processing",
        "64 random images made and kept after each step",
        "43 samples/s, GPU 46 %",
        ("slow-callback",),
        callback=PostProcessing,
    ),
    Case(
        "inefficient layer",
        "an 11x11 convolution on the output",
        "96 samples/s",
        ("compute-bound",),
        wide_layer=True,
    ),
)


class Records(Dataset):
    """Frames with masks, read from a network that delivers a record in a fixed time, and prepared on the CPU."""

    def __init__(self, case: Case, shape: Shape, count: int) -> None:
        self.case, self.shape, self.count = case, shape, count
        self.frame = torch.rand(3, shape.side, shape.side)
        self.kernel = torch.ones(3, 1, 7, 7) / 49
        self.mix = torch.eye(3).reshape(3, 3, 1, 1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.shape.fetch_s * self.case.drop)
        frame = self.frame + index % 7
        if self.case.heavy:
            for _ in range(self.shape.passes):
                frame = nn.functional.conv2d(frame[None], self.kernel, padding=3, groups=3)
                frame = nn.functional.conv2d(frame, self.mix)[0]
        mask = (frame[0] > 1).long()
        return frame.repeat(self.case.tiles, 1, 1) if self.case.tiles > 1 else frame, mask


class Segmentation(L.LightningModule):
    """Down twice, up twice: enough convolutions to fill a GPU with a batch of 64."""

    def __init__(self, case: Case, shape: Shape) -> None:
        super().__init__()
        w = shape.width
        self.layers = nn.Sequential(
            nn.Conv2d(3, w, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * w, 4 * w, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * w, 2 * w, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * w, w, 2, stride=2),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(w, 2, 11 if case.wide_layer else 1, padding=5 if case.wide_layer else 0)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        frames, masks = batch
        return frames[:, :3], masks

    def training_step(self, batch, batch_idx):
        frames, masks = batch
        return nn.functional.cross_entropy(self.head(self.layers(frames)), masks)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def loader_of(case: Case, shape: Shape) -> DataLoader:
    batch = case.batch or shape.batch
    return DataLoader(
        Records(case, shape, batch * shape.steps),
        batch_size=batch,
        num_workers=shape.workers,
        pin_memory=case.pinned and torch.cuda.is_available(),
        persistent_workers=shape.workers > 0,
    )
