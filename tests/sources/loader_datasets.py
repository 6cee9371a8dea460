"""Datasets for worker processes. A module of its own, so that a spawned worker imports torch and little else."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

COUNT = 24


def _item(index: int, mark: int) -> torch.Tensor:
    """Draws from both generators, so that one draw more or less anywhere changes every item after it."""
    return torch.tensor([index, mark, float(torch.rand(())), random.random()])


class Numbers(Dataset):
    """Items that depend on the worker's seed and on whether its init function ran."""

    mark = -1

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return _item(index, self.mark)


class Batched(Numbers):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [_item(index, self.mark) for index in indices]


class Table(Numbers):
    """Reads what it needs when it is asked for the first item, in Python and in calls that wait."""

    pieces = 20
    rows: list[int] | None = None

    def read(self) -> list[int]:
        found: list[int] = []
        for _ in range(self.pieces):
            until = time.monotonic() + 0.02
            while time.monotonic() < until:
                found.append(len(found) % 7)
            time.sleep(0.002)
        return found

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.rows is None:
            self.rows = self.read()
        return _item(index, self.mark)


class Stream(IterableDataset):
    mark = -1

    def __iter__(self) -> Any:
        info = get_worker_info()
        for index in range(info.id if info else 0, COUNT, info.num_workers if info else 1):
            yield _item(index, self.mark)


class Unsplit(IterableDataset):
    """Every worker makes all of it, whichever it is."""

    def __iter__(self) -> Any:
        return iter(range(COUNT))


class Seeded(IterableDataset):
    """Reads which worker it is in for a seed, and is split by nobody."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        start = info.id if info else 0
        return iter(range(start, start + COUNT))


class Set(IterableDataset):
    """Split by `split_worker`, in each worker, before it is iterated."""

    part = (0, 1)

    def __iter__(self) -> Any:
        return iter(range(self.part[0], COUNT, self.part[1]))


def split_worker(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.part = (info.id, info.num_workers)


class Logged(IterableDataset):
    """Writes down when its generators begin and end."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def _write(self, word: str) -> None:
        with self.log.open("a") as file:
            file.write(word + "\n")

    def __iter__(self) -> Any:
        self._write("begin")
        try:
            yield from range(COUNT)
        finally:
            self._write("end")


class Sleeping(Dataset):
    """One item takes a while without a CPU."""

    def __init__(self, count: int, seconds: float, slow: frozenset[int] | None = None) -> None:
        self.count = count
        self.seconds = seconds
        self.slow = slow

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if self.slow is None or index in self.slow:
            time.sleep(self.seconds)
        return index


class Gated(Dataset):
    """One item comes when it is let through, whatever the machine's pace."""

    def __init__(self, count: int, held: int) -> None:
        self.count = count
        self.held = held
        self.gate = multiprocessing.Event()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.held:
            self.gate.wait()
        return index


class Burning(Sleeping):
    """One item takes that much CPU time, whatever else runs."""

    def __getitem__(self, index: int) -> int:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return index


class ColdFile(Dataset):
    """Every item reads a file that is not in the page cache."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        path.write_bytes(os.urandom(size))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return len(file.read())


class Nested(Numbers):
    """Each item reads a loader of its own in the worker's process."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.stack([batch.sum() for batch in DataLoader(Numbers(), batch_size=8)])


class Raising(Numbers):
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9:
            raise self.error("item 9")
        return super().__getitem__(index)


class Dying(Sleeping):
    """Its items are no tensors: what a dead worker still had to hand over would raise in their place."""

    def __getitem__(self, index: int) -> int:
        if index == 9:
            os._exit(3)
        return super().__getitem__(index)


class ClosingFiles(Numbers):
    """Closes what it did not open, as libraries that turn a process into a daemon do."""

    def __getitem__(self, index: int) -> torch.Tensor:
        for entry in Path("/proc/self/fd").iterdir():
            try:
                target = entry.readlink()
            except FileNotFoundError:
                continue
            if target.name == "schedstat":
                os.close(int(entry.name))
        return super().__getitem__(index)


def mark_worker(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == worker_id
    info.dataset.mark = worker_id
    torch.rand(3)


def failing_init(worker_id: int) -> None:
    raise LookupError("no such worker")


def doubling_collate(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(items) * 2


def slow_collate(items: list[Any]) -> int:
    time.sleep(0.02)
    return len(items)


def batches(loader: Any, epochs: int = 2) -> list[torch.Tensor]:
    """All batches of a freshly seeded run, cloned so that they outlive their workers."""
    torch.manual_seed(11)
    random.seed(11)
    return [batch.clone() for _ in range(epochs) for batch in loader]


class Costly(Numbers):
    """Most of an item's time is in one function, on one line of it."""

    count = 120

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.spend(index)

    def spend(self, index: int) -> torch.Tensor:
        item = _item(index, self.mark)
        time.sleep(0.004)
        return item


class Rereads(Costly):
    """What takes most of an item's time is the same for each of them."""

    def table(self) -> list[int]:
        time.sleep(0.004)
        return [self.count]

    def __getitem__(self, index: int) -> torch.Tensor:
        return _item(index, self.table()[0])


class CostlyBatches(Costly):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self.spend(index) for index in indices]


class CostlyStream(IterableDataset):
    def __iter__(self) -> Any:
        for index in range(Costly.count):
            item = _item(index, -1)
            time.sleep(0.004)
            yield item


class LateShare(IterableDataset):
    """Each worker makes all items, and keeps its share of them."""

    def spend(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return _item(index, -1)

    def __iter__(self) -> Any:
        info = get_worker_info()
        for index in range(Costly.count):
            item = self.spend(index)
            if info and index % info.num_workers != info.id:
                continue
            yield item


class OftenCostly(Costly):
    """Some items take much longer than others."""

    def spend(self, index: int) -> torch.Tensor:
        if index % 16 == 7:
            time.sleep(0.3)  # a tenth of it is more than what others lose a CPU for
        return _item(index, self.mark)


class Crops(torch.utils.data.Dataset[torch.Tensor]):
    """Pictures of 3 x 40 x 40 bytes, of which the upper left corner is returned."""

    def __init__(self, size: int, *, clone: bool) -> None:
        self.size, self.clone = size, clone

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        crop = torch.full((3, 40, 40), index % 255, dtype=torch.uint8)[:, :10, :10]
        return crop.clone() if self.clone else crop
