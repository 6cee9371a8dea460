"""Which data a loader goes through, told so that ranks can compare it."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from stallmeter.sources.loader.data import MOST_PARTS, data_of, digest_of
from stallmeter.sources.loader.dataloader import describe


class Files(Dataset[Any]):
    """As people write them: a list of paths, labels, and how an item is made."""

    def __init__(self, names: list[str], **more: object) -> None:
        self.files = [Path("data") / name for name in names]
        self.labels = {name: at % 3 for at, name in enumerate(names)}
        self.transform = partial(sorted, reverse=True)
        self.random = random.Random()  # each process has another
        self.lock = threading.Lock()
        self.pattern = re.compile("a+")
        vars(self).update(more)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("nothing of the dataset's own is called")


NAMES = [f"{number}.jpg" for number in range(1000)]


@contextmanager
def ranks(count: int) -> Iterator[None]:
    """A process of a job, as torch says it: its group is a fake one of torch's own for tests."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@dataclass(slots=True)
class Row:
    """Has no `__dict__`."""

    number: int


def test_datasets_that_are_made_alike_have_one_digest():
    """Locks and random numbers of their own are no data."""
    assert re.fullmatch("[0-9a-f]{8}", digest_of(Files(NAMES)))
    assert digest_of(Files(NAMES)) == digest_of(Files(list(NAMES)))


@pytest.mark.parametrize(
    "other",
    [
        Files(NAMES[::2]),
        Files(NAMES[500:] + NAMES[:500]),
        Files(NAMES, rank=1),
        Files(NAMES, table=np.arange(10.0)),
        Subset(Files(NAMES), range(0, 1000, 2)),
        Files([f"other/{name}" for name in NAMES]),
    ],
    ids=["every second", "another order", "its number", "one more", "subset", "other files"],
)
def test_parts_of_ranks_differ(other):
    """Each of another length, order or place, and where a rank's number is kept."""
    assert digest_of(other) not in ("", digest_of(Files(NAMES)))


@pytest.mark.parametrize(
    "make",
    [
        lambda at: TensorDataset(torch.arange(100.0)[at::2], torch.arange(100)[at::2].reshape(50, 1)),
        lambda at: TensorDataset(torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2) + at),
        lambda at: Subset(TensorDataset(torch.zeros(100)), list(range(at, 100, 2))),
        lambda at: ConcatDataset([TensorDataset(torch.zeros(4)), TensorDataset(torch.full((4,), float(at)))]),
        lambda at: Files(NAMES, table=np.array([[f"{at}", "b"], ["c", "d"]], dtype=object)),
        lambda at: Files(NAMES, table=np.array([(at, 2.0)], dtype=[("a", "i4"), ("b", "f8")])),
        lambda at: Files(NAMES, part=range(at, 10)),
        lambda at: Files(NAMES, known={at}),
        lambda at: Files(NAMES, make=partial(sorted, key=at)),
        lambda at: Files(NAMES, row=Row(at)),
        lambda at: [at, 1, 2],
    ],
)
def test_what_holds_the_data_tells_them_apart(make):
    """Tensors, arrays, parts of datasets, functions with arguments, slots, and a plain list; of a set the length."""
    assert digest_of(make(0)) == digest_of(make(0)) != ""
    differs = not isinstance(getattr(make(0), "known", None), set)
    assert (digest_of(make(0)) != digest_of(make(1)) != "") is differs


def test_tables_and_files_tell_theirs(tmp_path):
    """Of libraries that keep data where Python does not look; they need not be installed."""
    paths = [tmp_path / "0", tmp_path / "1"]
    for path in paths:
        path.write_bytes(b"1")
    with paths[0].open("rb") as a, paths[0].open("rb") as b, paths[1].open("rb") as c:
        assert digest_of(Files(NAMES, file=a)) == digest_of(Files(NAMES, file=b)) != ""
        assert digest_of(Files(NAMES, file=a)) != digest_of(Files(NAMES, file=c))
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")

    def frame(at: int) -> Any:
        return pandas.DataFrame({"path": [f"{at}.jpg", "b"], "label": [1, 2]})

    for make in (frame, lambda at: frame(at)["path"], lambda at: frame(at).set_index("path").index):
        assert digest_of(Files(NAMES, table=make(0))) == digest_of(Files(NAMES, table=make(0))) != ""
        assert digest_of(Files(NAMES, table=make(0))) != digest_of(Files(NAMES, table=make(1)))
    tables = [pyarrow.table({"a": [at, 2]}) for at in (0, 0, 1)]
    first, same, other = (digest_of(Files(NAMES, table=table)) for table in tables)
    assert first == same != other


@pytest.mark.parametrize(
    "hidden",
    [
        memoryview(b"1"),
        iter([1]),
        torch.zeros(2, 2).to_sparse(),
        [[[[[[[[[[1]]]]]]]]]],
        {f"{a}": {f"{b}": [[[a, b, c, d] for d in range(8)] for c in range(8)] for b in range(8)} for a in range(8)},
    ],
    ids=["view", "iterator", "sparse", "deep", "large"],
)
def test_of_what_cannot_be_looked_into_there_is_no_digest(hidden):
    """It may be another rank's part."""
    assert digest_of(Files(NAMES, hidden=hidden)) == ""


def test_one_that_asks_for_its_rank_has_none():
    """Its attributes are the same on each rank, and its items are not. What `__init__` chose is kept."""

    class Asks(Files):
        def __getitem__(self, index: int) -> Any:
            return self.files[index * torch.distributed.get_world_size()]

    class Chooses(Files):
        def __init__(self) -> None:
            super().__init__(NAMES[torch.distributed.get_rank() :])

    assert digest_of(Asks(NAMES)) == ""
    with ranks(2):
        assert digest_of(Chooses()) != ""


RANK = 0


def test_one_that_reads_its_module_is_told_by_that(monkeypatch):
    """A rank's number is a variable there in many programs; one that holds nothing at all has no digest."""

    class Reads(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return RANK, index

    class Makes(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return index

    first = digest_of(Reads())
    assert first == digest_of(Reads()) != ""
    monkeypatch.setitem(globals(), "RANK", 1)
    assert digest_of(Reads()) != first
    assert digest_of(Makes()) == ""


def test_a_dataset_that_holds_itself_comes_to_an_end():
    """As one with a method of its own as transform does."""
    one, same = Files(NAMES), Files(NAMES)
    for each in (one, same):
        vars(each).update(me=each, transform=each.__getitem__)
    assert digest_of(one) == digest_of(same) != ""


def test_many_items_are_few_looks():
    """However long its list is."""
    assert digest_of(Files([f"{number}" for number in range(20 * MOST_PARTS)]))


class TestLoader:
    def test_alone_nothing_is_said(self):
        """There is nobody to compare with."""
        assert data_of(DataLoader(Files(NAMES))) == {}
        assert describe(DataLoader(Files(NAMES))).items is None

    @pytest.mark.parametrize(
        ("options", "sampler"),
        [
            ({}, "SequentialSampler"),
            ({"shuffle": True}, "RandomSampler"),
            ({"sampler": WeightedRandomSampler([1.0] * 1000, 1000)}, "WeightedRandomSampler"),
        ],
    )
    def test_samplers_of_torchs_that_know_no_rank(self, options, sampler):
        """They draw on each rank as if it were alone."""
        with ranks(2):
            found = describe(DataLoader(Files(NAMES), **options))
        assert (found.items, found.items_drawn, found.sampler) == (1000, 1000, sampler)
        assert found.data_digest == digest_of(Files(NAMES))

    def test_others_say_nothing(self):
        """They may know a rank, or hold its part."""
        data = Files(NAMES)

        class Own(BatchSampler):
            pass

        with ranks(2):
            assert data_of(DataLoader(data, sampler=DistributedSampler(data))) == {}
            assert data_of(DataLoader(data, sampler=SubsetRandomSampler(range(10)))) == {}
            assert data_of(DataLoader(data, batch_sampler=Own(RandomSampler(data), 8, False))) == {}
            assert data_of(DataLoader(data, batch_size=None)) == {}
            assert data_of(DataLoader(data, collate_fn=_of_this_rank)) == {}
        with ranks(1):
            assert data_of(DataLoader(data)) == {}

    def test_part_of_the_items(self):
        """A pass may be shorter than the dataset."""
        with ranks(2):
            found = data_of(DataLoader(Files(NAMES), sampler=RandomSampler(Files(NAMES), num_samples=300)))
        assert (found["items"], found["items_drawn"]) == (1000, 300)

    def test_orders_of_one_seed_are_the_same(self):
        """By the program's generator or by torch's, which is not touched."""

        def order(seed: int, **options: Any) -> str:
            torch.manual_seed(seed)
            return str(data_of(DataLoader(Files(NAMES), **options))["order_digest"])

        with ranks(2):
            assert order(1, shuffle=True) == order(1, shuffle=True) != order(2, shuffle=True)
            assert order(1) == order(2), "one after the other"
            own = {"shuffle": True, "generator": torch.Generator().manual_seed(5)}
            assert order(1, **own) == order(2, **own) != order(1, shuffle=True)
            torch.manual_seed(3)
            data_of(DataLoader(Files(NAMES), shuffle=True))
            drawn = torch.rand(1)
            torch.manual_seed(3)
            assert torch.rand(1) == drawn


def _of_this_rank(items: Any) -> Any:
    return items[torch.distributed.get_rank() :]
