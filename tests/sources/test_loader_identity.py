"""Whether a dataset splits itself among workers: seen inside them, read off its code, or known of its library."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from stallmeter.records import LoaderInfo
from stallmeter.sources.loader import LoaderProbe
from stallmeter.sources.loader.dataloader import why_no_other_workers
from stallmeter.sources.loader.identity import remember, shards_of, splits_itself

from . import loader_datasets as data


def told(dataset: Any, **options: Any) -> LoaderInfo:
    """What is known of a loader after its workers have made all batches."""
    loader = DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **options})
    probe = LoaderProbe()
    probe.attach(loader)
    for _ in loader:
        pass
    infos = [record for record in probe.sample(0.0) if isinstance(record, LoaderInfo)]
    probe.close()
    return infos[-1]


@pytest.mark.parametrize(
    ("dataset", "options", "splits"),
    [
        (data.Stream(), {}, True),
        (data.Set(), {"worker_init_fn": data.split_worker}, True),
        (data.Unsplit(), {}, False),
        (data.Seeded(), {}, None),
        (data.Unsplit(), {"worker_init_fn": print}, None),
        (data.Numbers(), {}, None),
    ],
    ids=[
        "asks",
        "its init function asks",
        "never asks",
        "asks for a seed",
        "init function that may split",
        "map-style",
    ],
)
def test_what_the_workers_show(dataset: Any, options: Any, splits: bool | None) -> None:
    """Both its number and how many there are must be asked for: one alone may be for a seed."""
    assert told(dataset, **options).shards_itself is splits


def test_what_the_workers_show_is_kept() -> None:
    """In the next epoch, and for whoever may change the number."""
    loader = DataLoader(data.Unsplit(), batch_size=4, num_workers=2)
    assert splits_itself(loader) is None
    probe = LoaderProbe()
    probe.attach(loader)
    list(loader)
    probe.sample(0.0)
    assert probe.attach(loader).shards_itself is False
    assert "iterable" in (why_no_other_workers(loader) or "")
    probe.close()


def helper(items: Any) -> Any:
    info = torch.utils.data.get_worker_info()
    return items if info is None else items[info.id :: info.num_workers]


class ByHelper(IterableDataset):
    def __iter__(self) -> Any:
        return iter(helper(list(range(8))))


class Around(IterableDataset):
    def __init__(self, inner: Any) -> None:
        self.stages = {"first": [inner]}

    def __iter__(self) -> Any:
        yield from self.stages["first"][0]


@pytest.mark.parametrize(
    ("dataset", "splits"),
    [
        (data.Stream(), True),
        (ByHelper(), True),
        (Around(data.Stream()), True),
        (data.Unsplit(), None),
        (data.Seeded(), None),
        (Around([1, 2]), None),
    ],
)
def test_without_workers_the_code_says_it(dataset: Any, splits: bool | None) -> None:
    """In the class, in a function that it calls, in a dataset that it wraps; otherwise nothing is known."""
    loader = DataLoader(dataset, batch_size=4)
    assert splits_itself(loader) is splits
    assert (why_no_other_workers(loader) is None) is bool(splits)


class Copying(IterableDataset):
    """Makes what a program may make of its worker's identity."""

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        assert isinstance(info, type(copy.copy(info)))
        for twin in (copy.copy(info), pickle.loads(pickle.dumps(info))):
            assert (twin.id, twin.num_workers, twin.seed) == (info.id, info.num_workers, info.seed)
        assert "WorkerInfo(" in repr(info)
        with pytest.raises((AttributeError, RuntimeError)):
            info.no_such_attribute  # noqa: B018
        yield 1


def test_the_identity_is_as_it_was() -> None:
    """A copy, a pickle and its text are torch's own."""
    assert told(Copying(), batch_size=None).shards_itself is True


def write_shards(folder: Path, count: int) -> str:
    for number in range(count):
        with tarfile.open(folder / f"{number:03}.tar", "w") as tar:
            for item in range(8):
                member = tarfile.TarInfo(f"{number:03}{item:03}.txt")
                member.size = 1
                tar.addfile(member, io.BytesIO(b"x"))
    return f"{folder}/{{000..{count - 1:03}}}.tar"


@pytest.mark.filterwarnings("ignore")
def test_webdataset(tmp_path: Path) -> None:
    """It asks for the identity of its node in any case: what counts are its stages."""
    wds = pytest.importorskip("webdataset")
    urls = write_shards(tmp_path, 3)
    split = DataLoader(wds.WebDataset(urls, shardshuffle=False), batch_size=None, num_workers=2)
    assert (splits_itself(split), shards_of(split), why_no_other_workers(split)) == (True, 3, None)
    drawn = DataLoader(wds.WebDataset(urls, resampled=True), batch_size=None)
    assert (splits_itself(drawn), shards_of(drawn)) == (True, None)
    if "workersplitter" in inspect.signature(wds.WebDataset).parameters:  # from webdataset 0.2.90 on
        whole = wds.WebDataset(urls, shardshuffle=False, workersplitter=None)
        assert told(whole, batch_size=None).shards_itself is None
    counted = DataLoader(wds.WebDataset(urls, resampled=True).with_epoch(5), batch_size=None)
    assert "with_epoch" in (why_no_other_workers(counted) or "")


def test_hf_datasets() -> None:
    """It says into how many parts it can be split."""
    datasets = pytest.importorskip("datasets")
    made = datasets.IterableDataset.from_generator(_rows, gen_kwargs={"parts": [1, 2, 3]})
    loader = DataLoader(made, batch_size=2, num_workers=2)
    assert (splits_itself(loader), shards_of(loader)) == (True, 3)


def _rows(parts: list[int]) -> Any:
    for part in parts:
        yield {"x": part}


class Equal(DataLoader):
    """Of which there is no hash."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


def test_a_loader_that_cannot_be_hashed_is_asked_anew_each_time() -> None:
    loader = Equal(ByHelper())
    remember(loader, splits=False)
    assert splits_itself(loader) is splits_itself(DataLoader(ByHelper()))
