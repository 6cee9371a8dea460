"""Looks at starts of workers: the function that a first batch is spent in is named, and nothing else changes."""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stallmeter.records import CodeLook, Event, WorkerBatch
from stallmeter.records.code import EPOCH_STARTS
from stallmeter.sources.loader import LoaderProbe
from stallmeter.sources.loader.look import STARTS, WorkerLook
from stallmeter.sources.loader.loop_look import answers_file, read_answers
from stallmeter.sources.loader.start_look import LEAST, StartLook

from . import loader_datasets as data


@pytest.fixture
def probe() -> Any:
    probe = LoaderProbe()
    yield probe
    probe.close()


def _loader(dataset: Any, **options: Any) -> DataLoader:
    torch.manual_seed(3)
    random.seed(3)
    return DataLoader(dataset, batch_size=4, **{"num_workers": 2, **options})


def _epoch(probe: LoaderProbe, loader: DataLoader, source: WorkerLook) -> tuple[list[Any], list[CodeLook | Event]]:
    iterator = iter(loader)
    probe.iterator_of = lambda: iterator
    batches = list(iterator)
    return batches, list(source.sample(0.0))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_function_is_named_and_the_samples_are_the_same(probe: LoaderProbe, start: str) -> None:
    options = {"multiprocessing_context": start}
    plain = list(_loader(data.Table(), **options))
    loader = _loader(data.Table(), **options)
    source = WorkerLook(3, probe, lambda: (2, 0))
    assert probe.attach(loader).probed
    batches, records = _epoch(probe, loader, source)
    assert all(torch.equal(a, b) for a, b in zip(batches, plain, strict=True))
    [look] = records
    assert isinstance(look, CodeLook)
    assert (look.place, look.bucket, look.rule, look.loader) == ("workers", EPOCH_STARTS, "worker-startup", 0)
    assert look.spots[0].function == "Table.read"
    assert look.spots[0].file.rpartition("/")[2] == "loader_datasets.py"
    assert look.seen >= LEAST
    assert look.wall_s >= look.spots[0].wall_s > 0.2
    made = [record for record in probe.sample(0.0) if isinstance(record, WorkerBatch)]
    assert len(made) == len(plain)  # a first batch that is looked at counts like others


def test_so_many_starts_are_told_of_and_no_more(probe: LoaderProbe) -> None:
    loader = _loader(data.Table(), num_workers=1)
    probe.attach(loader)  # the source may come later
    source = WorkerLook(3, probe, lambda: (1, 0))
    told = [len(_epoch(probe, loader, source)[1]) for _ in range(STARTS + 1)]
    assert told == [1] * STARTS + [0]


def test_a_quick_first_batch_is_no_start_to_tell_of(probe: LoaderProbe) -> None:
    loader = _loader(data.Numbers())
    source = WorkerLook(3, probe, lambda: (2, 0))
    probe.attach(loader)
    assert not _epoch(probe, loader, source)[1]


def test_where_nobody_wants_to_know_nobody_looks(probe: LoaderProbe) -> None:
    loader = _loader(data.Table())
    probe.attach(loader)
    iterator = iter(loader)
    list(iterator)
    folder = Path(answers_file()).parent
    assert not list(folder.glob(f"stallmeter-{os.getpid()}-*.start"))


class _Broken(data.Table):
    def __getitem__(self, index: int) -> torch.Tensor:
        self.read()
        raise KeyError(index)


def test_a_first_batch_that_raises_raises_as_ever(probe: LoaderProbe) -> None:
    loader = _loader(_Broken())
    WorkerLook(3, probe, lambda: (2, 0))
    probe.attach(loader)
    iterator = iter(loader)
    with pytest.raises(KeyError):
        next(iterator)
    iterator._shutdown_workers()  # what pytest keeps of the error would let them live on


def test_the_interpreters_interval_is_given_back_and_no_thread_stays(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    look = StartLook(str(tmp_path / "start"), 2)
    data.Table().read()
    assert sys.getswitchinterval() < before
    look.end()
    assert sys.getswitchinterval() == before
    assert not any(thread.name == "stallmeter-start" for thread in threading.enumerate())
    [document] = read_answers(str(tmp_path / "start"))
    assert document["loader"] == 2
    assert document["spots"][0]["function"] == "Table.read"


def test_an_interval_that_the_program_sets_meanwhile_stays(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    look = StartLook(str(tmp_path / "start"), 0)
    try:
        data.Table().read()
        sys.setswitchinterval(0.002)
        look.end()
        assert sys.getswitchinterval() == pytest.approx(0.002)
    finally:
        sys.setswitchinterval(before)
