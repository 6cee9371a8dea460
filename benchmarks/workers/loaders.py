"""The loaders of the benchmark: each stresses another term of the model. Real work, real files, real sockets."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

ENDLESS = 1_000_000
"""Items in a dataset: more than any measurement uses, so that no worker runs out of work."""

MEBI = 1 << 20


def burn(seconds: float) -> None:
    """Compute for so many CPU seconds, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def multiply(seconds: float) -> None:
    """The same with small matrix products: a model that trains on the CPU."""
    a = torch.ones(96, 96)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        a = torch.mm(a, a).clamp_(-1, 1)


class Timed(Dataset):
    """Items that cost CPU time and blocked time."""

    def __init__(self, cpu_s: float, blocked_s: float) -> None:
        self.cpu_s = cpu_s
        self.blocked_s = blocked_s

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if self.cpu_s:
            burn(self.cpu_s)
        if self.blocked_s:
            time.sleep(self.blocked_s)
        return torch.full((16,), float(i)), i


class Uneven(Timed):
    """One item in ten takes twelve times as long as the others."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        factor = 12 if random.Random(i).random() < 0.1 else 1
        burn(self.cpu_s * factor)
        time.sleep(self.blocked_s * factor)
        return torch.full((16,), float(i)), i


class Photos(Dataset):
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


class Sentences(Dataset):
    """Strings cut into words and hashed, as a tokenizer does it in Python."""

    WORDS = re.compile(r"\w+|[^\w\s]")

    def __init__(self, words: int) -> None:
        text = random.Random(0)
        self.texts = [
            " ".join("".join(text.choices("etaoinshrdlu", k=text.randint(2, 9))) for _ in range(text.randint(5, words)))
            for _ in range(512)
        ]

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> list[int]:
        tokens = self.WORDS.findall(self.texts[i % len(self.texts)].lower())
        return [sum(ord(c) * 31**k for k, c in enumerate(token)) % 50_000 for token in tokens]


def pad(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Pad token ids to the longest row."""
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
    return {"input_ids": ids, "attention_mask": mask}


class Stream(IterableDataset):
    """A stream that splits itself between the workers, as it must."""

    def __init__(self, cpu_s: float, blocked_s: float) -> None:
        self.cpu_s = cpu_s
        self.blocked_s = blocked_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, ENDLESS, every):
            burn(self.cpu_s)
            time.sleep(self.blocked_s)
            yield torch.full((16,), float(i))


class Graphs(Dataset):
    """Cheap items whose batches are expensive to put together."""

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> np.ndarray:
        return np.full((60, 8), float(i % 251), dtype=np.float32)


def pairwise(items: list[np.ndarray]) -> torch.Tensor:
    """Collate by relating every item's rows to each other: CPU work in the collate function."""
    rows = np.stack(items)
    return torch.from_numpy(np.sqrt(((rows[:, :, None, :] - rows[:, None, :, :]) ** 2).sum(-1)) + np.float32(1.0))


class Records(Dataset):
    """Items of many small fields: each field is a tensor of its own that must be handed over."""

    def __init__(self, fields: int) -> None:
        self.fields = fields

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {f"field_{k}": torch.full((8,), float(i + k)) for k in range(self.fields)}


class Hungry(Timed):
    """Each worker keeps a table of its own and walks through a part of it for every item."""

    TABLE = 160 * MEBI
    table: np.ndarray | None = None

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if self.table is None:
            self.table = np.ones(self.TABLE // 8)
        table = self.table
        start = i * 7919 % (len(table) - 400_000)
        total = float(table[start : start + 400_000].sum())
        burn(self.cpu_s)
        time.sleep(self.blocked_s)
        return torch.full((16,), total), i


class Remote(Dataset):
    """Objects fetched over HTTP from a store whose bandwidth all clients share."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> torch.Tensor:
        with urllib.request.urlopen(f"{self.url}/{i}", timeout=30) as answer:
            return torch.frombuffer(bytearray(answer.read()), dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Case:
    """A loader, the device step that consumes it, and what is known about it beforehand."""

    name: str
    make: Callable[[int], DataLoader[Any]]
    """Number of workers to loader."""
    device_s: float
    device: Callable[[float], None] = time.sleep
    spare_bytes: int | None = None
    """Memory that all workers of this case may take together; None for what the machine has."""
    expected: str = ""
    """What must bind at the best number of workers."""


def cases(folder: Path, stack: ExitStack) -> list[Case]:
    """Make the loaders.

    Args:
        folder: Where files go.
        stack: Ends the server when the benchmark ends.
    """
    files = _write_photos(folder, 400)
    url = _serve(stack, bytes_per_s=12e6, item_bytes=32_768, latency_s=0.004)

    def loader(dataset: Any, batch_size: int, **more: Any) -> Callable[[int], DataLoader[Any]]:
        return lambda workers: DataLoader(dataset, batch_size=batch_size, num_workers=workers, **more)

    def hungry(workers: int) -> DataLoader[Any]:
        # A dataset of its own each time: workers would inherit the table that a run without workers has made.
        return DataLoader(Hungry(0.0002, 0.008), batch_size=4, num_workers=workers)

    return [
        Case("cpu", loader(Timed(0.004, 0), 8), 0.020, expected="cpu"),
        Case("cpu-saturated", loader(Timed(0.004, 0), 8), 0.005, expected="cpu"),
        Case("cpu-with-cpu-model", loader(Timed(0.0015, 0), 8), 0.012, multiply, expected="compute"),
        Case("latency", loader(Timed(0, 0.012), 4), 0.012, expected="compute"),
        Case("mixed", loader(Timed(0.001, 0.005), 8), 0.015, expected="compute"),
        Case("jpeg", loader(Photos(files, 224), 12), 0.018, expected="cpu"),
        Case("jpeg-light", loader(Photos(files, 160), 6), 0.025, expected="compute"),
        Case("tokens", loader(Sentences(80), 32, collate_fn=pad), 0.012, expected="compute"),
        Case("stream", loader(Stream(0.0005, 0.004), 8), 0.015, expected="compute"),
        Case("collate", loader(Graphs(), 32, collate_fn=pairwise), 0.015, expected="compute"),
        Case("uneven", loader(Uneven(0.0002, 0.002), 8), 0.012, expected="compute"),
        Case("tiny", loader(Timed(0, 0), 16), 0.002, expected="compute"),
        Case("many-fields", loader(Records(16), 16), 0.003, expected="compute"),
        Case("hungry", hungry, 0.008, spare_bytes=900 * MEBI, expected="memory"),
        Case("bandwidth", loader(Remote(url), 8), 0.008, expected="bandwidth"),
    ]


def _write_photos(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    place = random.Random(0)
    files = []
    for i in range(count):
        photo = photos[i % len(photos)]
        left, top = place.randint(0, photo.width - 256), place.randint(0, photo.height - 256)
        buffer = io.BytesIO()
        photo.crop((left, top, left + 256, top + 256)).save(buffer, "JPEG", quality=90)
        files.append(folder / f"{i:04d}.jpg")
        files[-1].write_bytes(buffer.getvalue())
    return files


def _serve(stack: ExitStack, **settings: float) -> str:
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
