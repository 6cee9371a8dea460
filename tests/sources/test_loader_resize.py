"""Another number of workers for a live loader: what stays, what is refused, and that no process is left."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import types
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stallmeter.errors import SettingError
from stallmeter.sources.loader.resize import resize, why_fixed

from ..children import children
from . import loader_datasets as data


class Numbers(Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.arange(8.0))


class Stateful(DataLoader):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Stubborn(DataLoader):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "prefetch_factor" and getattr(self, "settled", False):
            raise ValueError("not me")
        super().__setattr__(name, value)


def order(loader: Any) -> list[float]:
    return [float(x) for batch in loader for x in batch]


def init(worker: int) -> None:
    pass


@pytest.mark.parametrize("numbers", [(0, 2), (2, 0), (1, 3), (3, 1), (2, 2)])
def test_the_next_iteration_has_them(numbers, processes_left):
    before, after = numbers

    def make() -> DataLoader:
        generator = torch.Generator().manual_seed(1)
        return DataLoader(
            Numbers(), 4, shuffle=True, num_workers=before, generator=generator, worker_init_fn=init, pin_memory=False
        )

    plain, changed = make(), make()
    assert order(changed) == order(plain)
    kept = {n: getattr(changed, n) for n in ("sampler", "batch_sampler", "worker_init_fn", "generator", "collate_fn")}
    resize(changed, after)
    assert changed.num_workers == after
    assert changed.prefetch_factor == (2 if after else None)
    assert all(getattr(changed, name) is value for name, value in kept.items())
    for _ in range(2):
        iterator = iter(changed)
        assert iterator._num_workers == after
        assert order(iterator) == order(plain)
    del iterator
    assert not processes_left()


def test_prefetch_factor():
    loader = DataLoader(Numbers(), 4, num_workers=1, prefetch_factor=5)
    resize(loader, 3)
    assert (loader.num_workers, loader.prefetch_factor) == (3, 5)
    resize(loader, 0)
    assert loader.prefetch_factor is None
    resize(loader, 1, prefetch_factor=5)
    assert loader.prefetch_factor == 5
    resize(loader, 1, prefetch_factor=7)
    assert loader.prefetch_factor == 7


def test_persistent_workers_are_shut_down(processes_left):
    before = children()
    loader = DataLoader(Numbers(), 4, num_workers=2, persistent_workers=True)
    order(loader)
    old = children() - before
    assert len(old) == 2
    resize(loader, 3)
    assert not processes_left()
    assert sorted(order(loader)) == sorted(range(24))
    new = children() - before
    assert len(new) == 3
    assert not old & new
    assert loader.persistent_workers
    resize(loader, 1)
    assert not processes_left()


def test_setting_what_it_has_leaves_persistent_workers_alone():
    before = children()
    loader = DataLoader(Numbers(), 4, num_workers=2, persistent_workers=True)
    order(loader)
    old = children() - before
    resize(loader, 2)
    assert children() - before == old
    loader._iterator._shutdown_workers()


@pytest.mark.parametrize(
    ("make", "workers", "reason"),
    [
        (lambda: DataLoader(Stream()), 2, "iterable"),
        (lambda: Stateful(Numbers()), 2, "state"),
        (lambda: [1, 2, 3], 2, "list is no"),
        (lambda: DataLoader(Numbers(), num_workers=1, timeout=5), 0, "timeout"),
        (lambda: DataLoader(Numbers(), num_workers=1, persistent_workers=True), 0, "persistent_workers"),
        (lambda: DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork"), 0, "multiprocessing_context"),
    ],
)
def test_what_is_refused_stays_as_it_was(make, workers, reason):
    loader = make()
    before = dict(vars(loader)) if hasattr(loader, "__dict__") else {}
    with pytest.raises(SettingError, match=reason):
        resize(loader, workers)
    assert (dict(vars(loader)) if before else {}) == before
    assert reason in (why_fixed(loader, workers) or "")


@pytest.fixture(params=["spawn", "forkserver"])
def started_anew(request, monkeypatch):
    """Processes start by this method: by default on macOS and Windows, and on Linux from Python 3.14 on."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # they import the datasets by name
    multiprocessing.set_start_method(request.param, force=True)
    resource_tracker.ensure_running()  # both stay to the program's end
    forkserver.ensure_running()
    yield request.param
    multiprocessing.set_start_method(None, force=True)


@pytest.mark.long
def test_the_first_workers_are_started_anew(started_anew, processes_left):
    loader = DataLoader(data.Numbers(), 4)
    resize(loader, 2)
    assert loader.num_workers == 2
    assert not processes_left()  # the one that tried it
    assert [int(item[0]) for batch in loader for item in batch] == list(range(data.COUNT))
    assert not processes_left()


def unpicklable():
    return DataLoader(data.Numbers(), collate_fn=lambda items: items)


def only_here(monkeypatch):
    """A module that nobody else can import, as a notebook's."""
    module = types.ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    module.Numbers = type("Numbers", (data.Numbers,), {"__module__": "only_here"})
    return DataLoader(module.Numbers())


def test_what_a_new_process_cannot_have_is_left_alone(started_anew, monkeypatch, processes_left, capfd):
    """Before the training depends on it."""
    for loader, why in ((unpicklable(), "cannot be sent"), (only_here(monkeypatch), "did not take")):
        with pytest.raises(SettingError, match=f"left at 0: workers would start by {started_anew}, .* {why} the data"):
            resize(loader, 2)
        assert loader.num_workers == 0
        assert len(list(loader)) == data.COUNT
    if started_anew == "spawn":  # a fork server writes where it was started
        assert "No module named 'only_here'" in capfd.readouterr().err
    assert not processes_left()


PROGRAM = """
from stallmeter.sources.loader.spawn_check import why_no_new_process

def train():
    print(why_no_new_process("forkserver"))

"""


@pytest.mark.parametrize(
    ("how", "trains"),
    [
        (["program.py", "train()"], True),
        (["program.py", "if 1:\n    train()"], True),
        (["program.py", 'if __name__ == "__main__":\n    train()'], False),
        (["program.py", "from threading import Thread\nThread(target=train).start()"], True),
        (["-m", "program", "train()"], True),
        (["-m", "package", "train()"], False),
        (["-c", "train()"], False),
    ],
)
def test_a_program_that_would_train_again(tmp_path, how, trains):
    """A new process imports the program's file: without the question for its name, one training would start another."""
    *start, ending = how
    (tmp_path / "package").mkdir()
    for path in (tmp_path / "program.py", tmp_path / "package" / "__main__.py"):
        path.write_text(PROGRAM + ending)
    if start == ["-c"]:
        start = ["-c", PROGRAM + ending]
    told = subprocess.run([sys.executable, *start], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert ('below `if __name__ == "__main__":`' in told) is trains
    assert ("None" in told) is not trains


def test_a_daemon_may_not_start_workers(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(SettingError, match="daemon"):
        resize(DataLoader(Numbers()), 2)


def test_a_loader_that_cannot_be_set_is_put_back():
    loader = Stubborn(Numbers(), 4)
    loader.settled = True
    with pytest.raises(SettingError, match="not me"):
        resize(loader, 2)
    assert (loader.num_workers, loader.prefetch_factor) == (0, None)
    assert len(order(loader)) == 24


@pytest.mark.parametrize("nonsense", [-1, 1.5, True, None, "2"])
def test_nonsense(nonsense):
    with pytest.raises(SettingError, match=r"workers is .*; give a whole number from 0 up"):
        resize(DataLoader(Numbers()), nonsense)
    with pytest.raises(SettingError, match="prefetch_factor is 0"):
        resize(DataLoader(Numbers()), 2, prefetch_factor=0)
