"""Settings of a live loader: what may be changed between two epochs, with the same batches in the same order."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from stallmeter.errors import SettingError
from stallmeter.sources.loader import settings as loader_settings
from stallmeter.sources.loader.settings import LoaderSettings, state_of


class Items(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.scale = 1.0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index * self.scale])


class Told(Items):
    def set_epoch(self, epoch: int) -> None:
        self.scale = float(epoch)


def _loader(dataset: Items | None = None, **settings: object) -> DataLoader[torch.Tensor]:
    return DataLoader(dataset or Items(), batch_size=3, shuffle=True, num_workers=1, **settings)  # type: ignore[arg-type]


def _order(loader: DataLoader[torch.Tensor]) -> list[list[float]]:
    return [batch.flatten().tolist() for batch in loader]


@pytest.mark.parametrize("own", [False, True])
def test_workers_that_are_kept_give_the_same_batches_in_the_same_order(own):
    def run(change: bool) -> tuple[list[list[list[float]]], float]:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(5) if own else None
        loader, settings, found = _loader(generator=generator), LoaderSettings(), []
        for epoch in range(3):
            if change:
                assert settings.boundary(loader) is None
                if epoch == 1:
                    settings.set(loader, "persistent_workers", True)
            found.append(_order(loader))
        assert (getattr(loader, "_iterator", None) is not None) == change
        loader._iterator = None
        return found, float(torch.rand(()))

    assert run(True) == run(False)


def test_what_is_set_can_be_taken_back_and_the_order_stays():
    torch.manual_seed(3)
    plain = _loader()
    expected = [_order(plain) for _ in range(3)]
    torch.manual_seed(3)
    loader, settings, found = _loader(), LoaderSettings(), []
    steps = [("persistent_workers", True), ("prefetch_factor", 5), ("persistent_workers", False)]
    for change in steps:
        settings.boundary(loader)
        if change is not None:
            settings.set(loader, *change)
            assert getattr(loader, change[0]) == change[1]
        found.append(_order(loader))
    assert found == expected
    assert getattr(loader, "_iterator", None) is None


def test_a_dataset_that_is_told_the_epoch_keeps_no_workers():
    with pytest.raises(SettingError, match="Told is told the epoch"):
        LoaderSettings().set(_loader(Told()), "persistent_workers", True)


def test_a_dataset_that_changes_between_epochs_keeps_no_workers_and_lets_go_of_those_it_has():
    loader, settings = _loader(), LoaderSettings()
    settings.boundary(loader)
    settings.set(loader, "persistent_workers", True)
    assert settings.boundary(loader) is None
    loader.dataset.scale = 2.0
    assert "dataset.scale changes between epochs" in (settings.boundary(loader) or "")
    with pytest.raises(SettingError, match=r"dataset\.scale changes"):
        settings.set(loader, "persistent_workers", True)
    settings.set(loader, "persistent_workers", False)
    assert not loader.persistent_workers


@pytest.mark.skipif(torch.cuda.is_available(), reason="says why where there is no device")
def test_memory_is_pinned_only_for_a_device():
    with pytest.raises(SettingError, match="there is no device"):
        LoaderSettings().set(_loader(), "pin_memory", True)


def test_threads_are_left_alone_in_a_deterministic_program(monkeypatch):
    settings, before = LoaderSettings(), torch.get_num_threads()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)  # setting it takes seconds
        with pytest.raises(SettingError, match="deterministic"):
            settings.set(_loader(), "torch.set_num_threads", 1)
    settings.set(_loader(), "torch.set_num_threads", 1)
    assert settings.threads() == 1
    torch.set_num_threads(before)


def test_a_start_method_goes_and_comes_back():
    loader, settings = _loader(multiprocessing_context="spawn"), LoaderSettings()
    context = loader.multiprocessing_context
    settings.set(loader, "multiprocessing_context", "forkserver")
    assert loader.multiprocessing_context.get_start_method() == "forkserver"
    settings.set(loader, "multiprocessing_context", "spawn")
    assert loader.multiprocessing_context is context


def test_the_state_of_a_loader_is_its_plain_values_however_deep():
    class Outer(Items):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Items()
            self.names = ["a", "b"]

    found = state_of(_loader(Outer()))
    assert set(found) == {"dataset.scale", "dataset.inner.scale", "dataset.names"}
    assert (found["dataset.scale"], found["dataset.inner.scale"]) == (1.0, 1.0)


ORDERS = {
    "list": list,
    "array": np.array,
    "tensor": torch.tensor,
    "dict": lambda numbers: dict(enumerate(numbers)),
}


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_drawn_anew_at_the_same_length_is_a_change(kind, in_place):
    """An own shuffle, hard examples, a curriculum: workers that were kept would go on with the old order."""
    dataset = Items()
    dataset.order = ORDERS[kind]([3, 1, 2, 0])
    before, again = state_of(_loader(dataset)), state_of(_loader(dataset))
    if in_place:
        dataset.order[0], dataset.order[2] = 2, 3
    else:
        dataset.order = ORDERS[kind]([2, 1, 3, 0])
    assert before == again
    assert state_of(_loader(dataset)) != before


def test_what_is_too_much_to_compare_may_have_changed(monkeypatch):
    monkeypatch.setattr(loader_settings, "CONTENT_BYTES", 1000)
    loader, settings = _loader(), LoaderSettings()
    loader.dataset.order = np.arange(1000)
    settings.boundary(loader)
    settings.boundary(loader)
    assert "dataset.order holds too much to be compared" in (settings.why_not(loader, "persistent_workers", True) or "")


def test_files_that_are_mapped_are_the_same_for_all(tmp_path):
    np.arange(10).tofile(tmp_path / "items")
    dataset = Items()
    dataset.order = np.memmap(tmp_path / "items", dtype=np.int64, mode="r+")
    before = state_of(_loader(dataset))
    dataset.order[0] = 7
    assert state_of(_loader(dataset)) == before


def test_kept_workers_end_with_their_loader():
    """Without garbage being collected: torch's own do so, too."""
    gc.disable()
    try:
        loader, settings = _loader(), LoaderSettings()
        settings.set(loader, "persistent_workers", True)
        list(loader)
        settings.boundary(loader)
        list(loader)
        workers = loader._iterator._workers
        del loader
        assert not [worker for worker in workers if worker.is_alive()]
    finally:
        gc.enable()
