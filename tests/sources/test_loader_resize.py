"""Another number of workers for a live loader: what stays, what is refused, and that no process is left."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stallmeter.errors import SettingError
from stallmeter.sources.loader.resize import resize, why_fixed

from ..children import children


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


def test_workers_that_would_be_spawned(monkeypatch):
    """Whether everything can be pickled would show in the middle of the training."""
    monkeypatch.setattr("stallmeter.sources.loader.resize._start_method", lambda _: "spawn")
    with pytest.raises(SettingError, match="spawn"):
        resize(DataLoader(Numbers()), 2)
    resize(DataLoader(Numbers(), num_workers=1), 2)


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
