"""Whether the loop's own batches are made with the help of a CUDA device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from stallmeter.records import LoaderInfo
from stallmeter.sources.loader import LoaderProbe, loop
from stallmeter.sources.loader.device_use import LEAST, LOOKED_AT, DeviceUse


class Allocator:
    """Counts as torch's does, on two devices."""

    def __init__(self) -> None:
        self.counts = [0, 0]
        self.initialized = True
        self.asked = 0

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return len(self.counts)

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        self.asked += 1
        return {"allocation": {"all": {"allocated": self.counts[index]}}} if self.counts[index] else {}

    @property
    def modules(self) -> dict[str, Any]:
        return {"torch": SimpleNamespace(cuda=self)}


class OnDevice:
    """A dataset whose items take memory of the second device; or of none."""

    def __init__(self, allocator: Allocator, takes: int) -> None:
        self.allocator, self.takes = allocator, takes

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        self.allocator.counts[1] += self.takes
        return index


def test_most_batches_have_to_take_some() -> None:
    for using in range(LOOKED_AT + 1):
        allocator = Allocator()
        use = DeviceUse(allocator.modules)
        for number in range(LOOKED_AT):
            assert use.used is None
            use.before()
            allocator.counts[0] += number < using
            use.after()
        assert use.used is (using >= LEAST)


def test_nothing_is_asked_where_cuda_is_not_in_use() -> None:
    allocator = Allocator()
    allocator.initialized = False
    for modules in ({}, {"torch": SimpleNamespace()}, allocator.modules):
        use = DeviceUse(modules)
        for _ in range(LOOKED_AT):
            use.before()
            use.after()
        assert use.used is False
    assert allocator.asked == 0


def test_a_device_that_has_failed_is_the_trainings_to_tell() -> None:
    allocator = Allocator()
    allocator.memory_stats_as_nested_dict = fail  # type: ignore[method-assign,assignment]
    use = DeviceUse(allocator.modules)
    for _ in range(LOOKED_AT):
        use.before()
        use.after()
    assert use.used is False


def fail(index: int) -> dict[str, Any]:
    raise RuntimeError(f"CUDA error on device {index}: an illegal memory access was encountered")


def test_the_first_batch_may_be_the_first_use_of_cuda() -> None:
    allocator = Allocator()
    allocator.initialized = False
    use = DeviceUse(allocator.modules)
    for _ in range(LOOKED_AT):
        use.before()
        allocator.initialized = True
        allocator.counts[0] += 3
        use.after()
    assert use.used is True


@pytest.mark.parametrize("takes", [0, 2])
def test_a_real_loader_is_told_of(takes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, with the settings that it had; no more than the first batches are looked at."""
    allocator = Allocator()
    monkeypatch.setattr(loop, "DeviceUse", lambda: DeviceUse(allocator.modules))
    loader = DataLoader(OnDevice(allocator, takes), batch_size=2)  # type: ignore[arg-type]
    probe = LoaderProbe()
    try:
        probe.attach(loader)
        iterator = iter(loader)
        for _ in range(12):
            probe.loop_before()
            next(iterator)
            probe.loop_after()
        told = [record for record in probe.sample(0.0) if isinstance(record, LoaderInfo)]
        again = [record for record in probe.sample(0.0) if isinstance(record, LoaderInfo)]
    finally:
        probe.close()
    assert [info.makes_on_device for info in told][-1] is (takes > 0)
    assert told[-1].batch_size == 2
    assert not again
    assert allocator.asked <= 2 * 2 * LOOKED_AT


def test_what_was_found_out_stays_while_there_are_no_workers() -> None:
    """Each epoch the loader is told of anew."""
    before = LoaderInfo(time_s=1.0, kind="DataLoader", num_workers=0, indices_s=0.1, makes_on_device=True)
    again = LoaderInfo(time_s=2.0, kind="DataLoader", num_workers=0)
    assert again.after(before).makes_on_device
    assert again.after(before).indices_s == 0.1
    workers = LoaderInfo(time_s=2.0, kind="DataLoader", num_workers=2)
    assert not workers.after(before).makes_on_device
