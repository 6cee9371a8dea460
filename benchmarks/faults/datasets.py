"""What the loaders read: items that cost CPU time, time, or bytes from a slow store.

Spawned workers import this module and the case's main module: neither imports Lightning.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .shape import Shape

_SIDE = 48
_PICTURE = np.random.default_rng(0).integers(0, 255, (_SIDE, _SIDE, 3), dtype=np.uint8)


def burn(cpu_s: float) -> None:
    """Spend CPU time on what decoding and augmenting do: crop, flip, convert, normalise."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        crop = _PICTURE[4:-4, ::-1][:, 4:-4].astype(np.float32)
        np.clip((crop / 255.0 - 0.45) / 0.225, -2.0, 2.0).transpose(2, 0, 1).copy()


def wait(seconds: float) -> None:
    """Wait for something that needs no CPU."""
    if seconds > 0:
        time.sleep(seconds)


class Items(Dataset):
    """Items made one by one."""

    def __init__(self, shape: Shape, count: int, store: tuple[str, int] | None = None) -> None:
        self.shape = shape
        self.count = count
        self.store = store
        self.connection: http.client.HTTPConnection | None = None
        self.kept: list[bytearray] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        shape = self.shape
        if shape.item_bytes:
            self.download(index)
        wait(shape.item_wait_s)
        burn(shape.item_cpu_s)
        if shape.slow_every and index % shape.slow_every == shape.slow_every // 2:
            wait(shape.slow_item_s)
            burn(shape.slow_item_cpu_s)
        if shape.leak_item_bytes:
            self.kept.append(_touched(shape.leak_item_bytes))
        if shape.tensors:
            return {f"feature_{i}": torch.full((16,), float(i)) for i in range(shape.tensors)}
        return torch.full((16,), float(index))

    def download(self, index: int) -> None:
        """Read one object of the store."""
        if self.connection is None:
            assert self.store is not None
            self.connection = http.client.HTTPConnection(*self.store, timeout=60)
        self.connection.request("GET", f"/{index}?bytes={self.shape.item_bytes}")
        body = self.connection.getresponse().read()
        if len(body) != self.shape.item_bytes:
            raise RuntimeError(f"the store sent {len(body)} of {self.shape.item_bytes} bytes")


class Stream(IterableDataset):
    """The same items as a stream that its workers share out."""

    def __init__(self, items: Items) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(start, len(self.items), step):
            yield self.items[index]


class SlowInit:
    """A ``worker_init_fn`` that opens something slow."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, worker_id: int) -> None:
        wait(self.seconds)


def _touched(size: int) -> bytearray:
    block = bytearray(size)
    block[::4096] = b"x" * len(range(0, size, 4096))
    return block
