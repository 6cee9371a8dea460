"""The training loader of a program, in each of the libraries that people read data with.

Spawned workers import this module: it does not import Lightning, and a library only where a program uses it.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from .program import Program
from .work import Maker, wait


class Items(Dataset):
    """Items by index."""

    def __init__(self, maker: Maker, count: int) -> None:
        self.maker = maker
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> np.ndarray:
        return self.maker.make(index)


class Stream(IterableDataset):
    """The same items as shards that the workers share out; with fewer shards than workers some have nothing to do."""

    def __init__(self, maker: Maker, count: int, shards: int) -> None:
        self.maker = maker
        self.count = count
        self.shards = shards

    def __iter__(self) -> Iterator[np.ndarray]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        own = range(worker, self.shards, workers)
        for at in range(0, self.count, self.shards):
            for shard in own:
                yield self.maker.make(at + shard)


class Collate:
    """Makes a batch of items: one tensor, or a dict of many."""

    def __init__(self, tensors: int) -> None:
        self.tensors = tensors

    def __call__(self, items: list[Any]) -> Any:
        whole = torch.from_numpy(np.stack([np.asarray(item, dtype=np.float32) for item in items]))
        if self.tensors == 1:
            return whole
        return {f"feature_{i}": whole[:, :16] + i for i in range(self.tensors)}


class SlowInit:
    """A ``worker_init_fn`` that opens something slow."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, worker_id: int) -> None:
        wait(self.seconds)


def make_loader(program: Program, maker: Maker, seed: int, folder: Path) -> Any:
    """Return the training loader.

    Args:
        program: What it is like.
        maker: Makes its items.
        seed: Of the shuffling.
        folder: Where a library's files may lie; runs of a benchmark share it.
    """
    count = program.steps * program.batch_size
    options: dict[str, Any] = {
        "num_workers": program.workers,
        "worker_init_fn": SlowInit(program.worker_init_s) if program.worker_init_s else None,
    }
    if program.workers:
        options |= {
            "persistent_workers": program.persistent,
            "multiprocessing_context": program.start_method,
            "prefetch_factor": program.prefetch,
        }
    collate = Collate(program.tensors)
    batched = {"batch_size": program.batch_size, "collate_fn": collate, **options}
    if program.library in ("map", "stateful"):
        shuffling = {"shuffle": True, "generator": torch.Generator().manual_seed(seed)}
        if program.library == "map":
            return DataLoader(Items(maker, count), **batched, **shuffling)
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Items(maker, count), **batched, **shuffling)
    if program.library == "iterable":
        return DataLoader(Stream(maker, 4 * count, program.shards), **batched)
    if program.library == "datasets":
        return _datasets(program, maker, batched)
    if program.library in ("webdataset", "webloader"):
        return _webdataset(program, maker, collate, options, folder)
    if program.library == "litdata":
        return _litdata(maker, batched, folder)
    return _combined(program, maker, batched)


def _combined(program: Program, maker: Maker, batched: dict[str, Any]) -> Any:
    """Two loaders of half a batch each."""
    from lightning.pytorch.utilities.combined_loader import CombinedLoader

    half = {**batched, "batch_size": max(1, program.batch_size // 2)}
    items = Items(maker, program.steps * half["batch_size"])
    return CombinedLoader({"first": DataLoader(items, **half), "second": DataLoader(items, **half)}, "min_size")


def _from_shards(maker: Maker, shards: list[int], per_shard: int) -> Iterator[dict[str, Any]]:
    """Make the items of some shards, in turns; the generator of a `datasets.IterableDataset`."""
    for at in range(per_shard):
        for shard in shards:
            yield {"x": maker.make(at * 64 + shard)}


def _values(rows: list[Any]) -> list[Any]:
    return [row["x"] for row in rows]


class _RowCollate(Collate):
    def __call__(self, items: list[Any]) -> Any:
        return super().__call__(_values(items))


def _datasets(program: Program, maker: Maker, batched: dict[str, Any]) -> DataLoader:
    import datasets

    datasets.logging.set_verbosity_error()
    per_shard = 1 + 4 * program.steps * program.batch_size // program.shards
    found = datasets.IterableDataset.from_generator(
        _from_shards, gen_kwargs={"maker": maker, "shards": list(range(program.shards)), "per_shard": per_shard}
    )
    return DataLoader(found, **{**batched, "collate_fn": _RowCollate(program.tensors)})


class _Decode:
    def __init__(self, maker: Maker) -> None:
        self.maker = maker

    def __call__(self, sample: dict[str, Any]) -> np.ndarray:
        return self.maker.make(json.loads(sample["json"])["index"])


def _webdataset(program: Program, maker: Maker, collate: Collate, options: dict[str, Any], folder: Path) -> Any:
    """Shards of small samples, read again and again, whose items are made in ``map``."""
    import webdataset

    urls = [str(_tar(folder, shard)) for shard in range(program.shards)]
    with contextlib.redirect_stderr(io.StringIO()):
        data = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False).repeat()
        data = data.map(_Decode(maker))
    if program.library == "webdataset":
        return DataLoader(data, batch_size=program.batch_size, collate_fn=collate, **options)
    data = data.batched(program.batch_size, collation_fn=collate)
    loader = webdataset.WebLoader(data, batch_size=None, **options)
    return loader.with_epoch(program.steps)


def _tar(folder: Path, shard: int) -> Path:
    """Return one of the shards; made once for all runs."""
    path = folder / "tars" / f"{shard:04d}.tar"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".new")
        with tarfile.open(made, "w") as tar:
            for at in range(400):
                data = json.dumps({"index": at * 64 + shard}).encode()
                member = tarfile.TarInfo(f"{shard:04d}-{at:06d}.json")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        made.rename(path)
    return path


LITDATA_ITEMS = 20_000


def _litdata(maker: Maker, batched: dict[str, Any], folder: Path) -> Any:
    import litdata

    class Streamed(litdata.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> np.ndarray:
            return maker.make(int(super().__getitem__(index)))

    data = Streamed(str(_chunks(folder)), shuffle=False)
    kept = {k: v for k, v in batched.items() if v is not None}
    return litdata.StreamingDataLoader(data, **kept)


def _chunks(folder: Path) -> Path:
    """Return the folder of litdata's chunks; made once for all runs."""
    path = folder / "litdata"
    if not (path / "index.json").is_file():
        from litdata.streaming.writer import BinaryWriter

        path.mkdir(parents=True, exist_ok=True)
        writer = BinaryWriter(str(path), chunk_size=LITDATA_ITEMS // 16)
        for index in range(LITDATA_ITEMS):
            writer.add_item(index, index)
        writer.done()
        writer.merge()
    return path
