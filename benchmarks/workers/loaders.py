"""What the drawn loaders are made of: real work, real files, real sockets, real locks."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch.utils.data import Dataset, IterableDataset, get_worker_info

ENDLESS = 1_000_000
"""Items in a dataset: more than any measurement uses, so that no worker runs out of work."""

MEBI = 1 << 20

_BLOCK = bytes(256 << 10)


def burn(seconds: float) -> None:
    """Compute for so many CPU seconds, however long that takes, and hold the interpreter meanwhile."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def hash_away(seconds: float) -> None:
    """Compute for so many CPU seconds in C that lets other threads have the interpreter."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(_BLOCK)


@dataclass(frozen=True, slots=True)
class Work:
    """What making one item costs."""

    python_s: float = 0.0
    native_s: float = 0.0
    blocked_s: float = 0.0

    def do(self, times: float = 1.0) -> None:
        """Do it, or a multiple of it."""
        if self.python_s:
            burn(times * self.python_s)
        if self.native_s:
            hash_away(times * self.native_s)
        if self.blocked_s:
            time.sleep(times * self.blocked_s)


@dataclass(slots=True)
class Items(Dataset):  # type: ignore[type-arg]
    """Items of some tensors that cost some work."""

    work: Work
    floats: int = 16
    """In each tensor."""
    tensors: int = 1
    items: int = ENDLESS
    slow_share: float = 0.0
    """Share of the items that take ``slow_times`` as long."""
    slow_times: float = 1.0
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)
    """Held while the work is done."""

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        if i >= self.items:
            raise IndexError(i)
        slow = self.slow_share and random.Random(i).random() < self.slow_share
        with self.lock:
            self.work.do(self.slow_times if slow else 1.0)
        return {f"field_{k}": torch.full((self.floats,), float(i + k)) for k in range(self.tensors)}


@dataclass(slots=True)
class Hungry(Items):
    """Each worker keeps a table of its own and walks through a part of it for every item."""

    table_bytes: int = 64 * MEBI
    table: np.ndarray | None = None

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        if self.table is None:
            self.table = np.ones(self.table_bytes // 8)
        start = i * 7919 % (len(self.table) - 200_000)
        total = float(self.table[start : start + 200_000].sum())
        return {**Items.__getitem__(self, i), "total": torch.tensor(total)}


class Photos(Dataset):  # type: ignore[type-arg]
    """JPEG files, decoded, cropped, flipped and recoloured by Pillow."""

    def __init__(self, files: list[Path], side: int) -> None:
        self.files = files
        self.side = side

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[i % len(self.files)]) as file:
            image = file.convert("RGB")
        left, top = random.randint(0, image.width - self.side), random.randint(0, image.height - self.side)
        image = image.crop((left, top, left + self.side, top + self.side))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Color(image).enhance(random.uniform(0.6, 1.4))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255), i


class ColdFiles(Dataset):  # type: ignore[type-arg]
    """Files that are read from the disk each time: the kernel is told to forget them."""

    def __init__(self, files: list[Path], work: Work) -> None:
        self.files = files
        self.work = work

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> torch.Tensor:
        number = os.open(self.files[i * 7919 % len(self.files)], os.O_RDONLY)
        try:
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            read = os.read(number, 1 << 24)
        finally:
            os.close(number)
        self.work.do()
        return torch.frombuffer(bytearray(read[:4096]), dtype=torch.uint8)


class Stream(IterableDataset):  # type: ignore[type-arg]
    """A stream that splits itself between the workers, as it must."""

    def __init__(self, items: Items) -> None:
        self.items = items

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        info = get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, ENDLESS, every):
            yield self.items[i]


class Remote(Dataset):  # type: ignore[type-arg]
    """Objects fetched over HTTP from a store whose bandwidth all clients share."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> torch.Tensor:
        with urllib.request.urlopen(f"{self.url}/{i}", timeout=30) as answer:
            return torch.frombuffer(bytearray(answer.read()), dtype=torch.uint8)


def write_photos(folder: Path, count: int = 300) -> list[Path]:
    """Write photographs of 256 by 256 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{i:04d}.jpg" for i in range(count)]
    if files[-1].exists():
        return files
    from sklearn.datasets import load_sample_images  # imports much

    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    place = random.Random(0)
    for i, file in enumerate(files):
        photo = photos[i % len(photos)]
        left, top = place.randint(0, photo.width - 256), place.randint(0, photo.height - 256)
        buffer = io.BytesIO()
        photo.crop((left, top, left + 256, top + 256)).save(buffer, "JPEG", quality=90)
        file.write_bytes(buffer.getvalue())
    return files


def write_files(folder: Path, size: int, total: int = 192 * MEBI) -> list[Path]:
    """Write files of one size that are not all zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{i:05d}.bin" for i in range(max(16, total // size))]
    if not files[-1].exists():
        for file in files:
            file.write_bytes(os.urandom(size))
        os.sync()
    return files


def write_shards(folder: Path, shards: int = 24, samples: int = 64) -> list[str]:
    """Write tar files of small samples, as webdataset reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [folder / f"{i:03d}.tar" for i in range(shards)]
    for name in names:
        if name.exists():
            continue
        with tarfile.open(name, "w") as tar:
            for i in range(samples):
                entry = tarfile.TarInfo(f"{name.stem}-{i:04d}.bin")
                content = random.Random(i).randbytes(256)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return [str(name) for name in names]


def serve(stack: ExitStack, **settings: float) -> str:
    """Start the throttled server as a process of its own and return its address."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("throttled_server.py")), json.dumps(settings)],
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(server.wait)
    stack.callback(server.terminate)
    assert server.stdout is not None
    return f"http://127.0.0.1:{int(server.stdout.readline())}"
