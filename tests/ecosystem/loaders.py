"""Loaders of other projects, each with items that sleep for 4 ms, and one that is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, default_collate

COST_S = 0.004
ITEMS, BATCH = 240, 4


def slow(item: Any) -> Any:
    time.sleep(COST_S)
    return item


class Rows(Dataset):
    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        return slow(torch.full((4,), float(index)))


class Stream(IterableDataset):
    """Does not split itself."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (slow(torch.full((4,), float(i))) for i in range(ITEMS))


def dataloader(_: Path) -> Any:
    return DataLoader(Rows(), batch_size=BATCH, num_workers=1)


def iterable(_: Path) -> Any:
    return DataLoader(Stream(), batch_size=BATCH, num_workers=1)


def accelerate(_: Path) -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(dataloader(_))


def fabric(_: Path) -> Any:
    from lightning.fabric import Fabric

    return Fabric(accelerator="cpu", devices=1).setup_dataloaders(dataloader(_))


def stateful(_: Path) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Rows(), batch_size=BATCH, num_workers=1)


def _shards(folder: Path) -> list[str]:
    import webdataset

    paths = [str(folder / f"{shard}.tar") for shard in range(4)]
    for shard, path in enumerate(paths):
        with webdataset.TarWriter(path) as tar:
            for i in range(shard * ITEMS // 4, (shard + 1) * ITEMS // 4):
                tar.write({"__key__": f"{i:05d}", "cls": i})
    return paths


def webdataset(folder: Path) -> Any:
    import webdataset as wds

    dataset = wds.WebDataset(_shards(folder), shardshuffle=False).decode().map(slow).to_tuple("cls").batched(BATCH)
    return DataLoader(dataset, batch_size=None, num_workers=1)


def webloader(folder: Path) -> Any:
    import webdataset as wds

    dataset = wds.WebDataset(_shards(folder), shardshuffle=False).decode().map(slow).to_tuple("cls")
    return wds.WebLoader(dataset, batch_size=BATCH, num_workers=1)


def hf_map(_: Path) -> Any:
    import datasets

    rows = datasets.Dataset.from_dict({"x": list(range(ITEMS))}).with_transform(slow)
    return DataLoader(rows, batch_size=BATCH, num_workers=1)


def hf_iterable(_: Path) -> Any:
    import datasets

    rows = datasets.Dataset.from_dict({"x": list(range(ITEMS))}).to_iterable_dataset(num_shards=4).map(slow)
    return DataLoader(rows, batch_size=BATCH, num_workers=1)


def litdata(folder: Path) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import Cache

    cache = Cache(str(folder), chunk_size=20)
    for i in range(ITEMS):
        cache[i] = {"x": torch.full((4,), float(i))}
    cache.done()
    cache.merge()

    class Slow(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return slow(super().__getitem__(index))

    return StreamingDataLoader(Slow(str(folder)), batch_size=BATCH, num_workers=1)


def nodes(_: Path) -> Any:
    import torchdata.nodes as tn

    rows = Rows()
    found = tn.Batcher(tn.SamplerWrapper(RandomSampler(range(ITEMS))), BATCH)
    found = tn.ParallelMapper(
        found, lambda some: default_collate([rows[i] for i in some]), num_workers=1, method="thread"
    )
    return tn.Loader(tn.Prefetcher(found, 2))


class Generator:
    """A plain generator, begun anew each epoch."""

    def __init__(self, _: Path) -> None: ...

    def __iter__(self) -> Iterator[torch.Tensor]:
        rows = Rows()
        for first in range(0, ITEMS, BATCH):
            yield torch.stack([rows[i] for i in range(first, first + BATCH)])


MAKERS: dict[str, Callable[[Path], Any]] = {
    "DataLoader, map-style": dataloader,
    "DataLoader, iterable that does not split itself": iterable,
    "Accelerate": accelerate,
    "Fabric": fabric,
    "StatefulDataLoader": stateful,
    "WebDataset in a DataLoader": webdataset,
    "WebLoader": webloader,
    "datasets, map-style": hf_map,
    "datasets, iterable": hf_iterable,
    "litData": litdata,
    "torchdata.nodes": nodes,
    "a generator": Generator,
}
