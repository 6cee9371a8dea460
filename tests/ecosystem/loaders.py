"""Loaders of other projects, each with items that sleep for 4 ms, and one that is none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
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


class HfBatches:
    """Batches of rows, with no loader around them."""

    def __init__(self, _: Path) -> None:
        import datasets

        self.rows = datasets.Dataset.from_dict({"x": list(range(ITEMS))}).with_transform(slow_rows)

    def __iter__(self) -> Iterator[Any]:
        return self.rows.iter(BATCH)  # type: ignore[no-any-return]


def slow_rows(rows: Any) -> Any:
    time.sleep(COST_S * len(rows["x"]))
    return rows


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


@contextmanager
def without_torchvision() -> Iterator[None]:
    """Mosaic Streaming imports torchvision, which pictures alone need, and whose build must be that of torch."""
    import transformers  # noqa: F401 - it looks for torchvision, too, and must not find this one

    names = {"datasets": ("CIFAR10", "VisionDataset"), "transforms": (), "transforms.functional": ("to_tensor",)}
    modules = {f"torchvision.{name}": ModuleType(f"torchvision.{name}") for name in names}
    for module, held in zip(modules.values(), names.values(), strict=True):
        for name in held:
            setattr(module, name, type(name, (), {}))
    sys.modules |= {"torchvision": ModuleType("torchvision")} | modules
    try:
        yield
    finally:
        for name in ("torchvision", *modules):
            del sys.modules[name]


def mosaic(folder: Path) -> Any:
    if find_spec("torchvision") is None and find_spec("streaming") is not None:
        with without_torchvision():
            import_module("streaming")
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    with MDSWriter(out=str(folder), columns={"x": "int"}) as writer:
        for i in range(ITEMS):
            writer.write({"x": i})

    class Slow(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return slow(super().__getitem__(index))

    return StreamingDataLoader(Slow(local=str(folder), batch_size=BATCH), batch_size=BATCH, num_workers=1)


def grain(_: Path) -> Any:
    import grain

    read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=BATCH)
    return grain.MapDataset.range(ITEMS).map(slow).batch(BATCH).to_iter_dataset(read)


def grain_processes(_: Path) -> Any:
    from grain import MultiprocessingOptions

    return grain(_).mp_prefetch(MultiprocessingOptions(num_workers=1, per_worker_buffer_size=2))


def spdl(_: Path) -> Any:
    from spdl.dataloader import DataLoader

    return DataLoader(range(ITEMS), preprocessor=slow, batch_size=BATCH, num_threads=1)


class DaliItems:
    """What DALI asks for each item."""

    def __call__(self, info: Any) -> Any:
        import numpy as np

        if info.iteration >= ITEMS // BATCH:
            raise StopIteration
        return slow(np.full(4, info.idx_in_epoch, dtype=np.float32))


def dali(_: Path) -> Any:
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, py_num_workers=1, py_start_method="spawn")
    def made() -> Any:
        return fn.external_source(source=DaliItems(), parallel=True, batch=False)

    return DALIGenericIterator([made()], ["x"], auto_reset=True)


def slow_block(block: Any) -> Any:
    time.sleep(COST_S * len(block["id"]))
    return block


def ray_data(_: Path) -> Any:
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a busy machine takes longer than Ray's 30 s
    import ray.data

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=100_000_000)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.range(ITEMS, override_num_blocks=4).map_batches(slow_block, batch_size=BATCH)
    return rows.iter_torch_batches(batch_size=BATCH)


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
    "datasets, its own batches": HfBatches,
    "litData": litdata,
    "Mosaic Streaming": mosaic,
    "torchdata.nodes": nodes,
    "grain, threads": grain,
    "grain, processes": grain_processes,
    "SPDL": spdl,
    "DALI": dali,
    "Ray Data": ray_data,
    "a generator": Generator,
}
