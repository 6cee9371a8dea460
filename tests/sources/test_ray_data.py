"""Ray Data's own statistics, found in the generator that a loop iterates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from stallmeter.records import LibraryWait
from stallmeter.sources.ray_data import RayDataSource, find_statistics


class Timer:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def get(self) -> float:
        return self.seconds


class DatasetStats:
    """As in ``ray.data._internal.stats``."""

    __module__ = "ray.data._internal.stats"

    def __init__(self) -> None:
        self.iter_total_blocked_s = Timer(2.0)
        self.iter_blocked_production_wait_s = Timer(1.5)
        self.iter_blocked_collate_s = Timer(0.0)


def batches(stats: Any) -> Iterator[int]:
    inner = iter([1, 2, 3])
    yield from inner if stats else ()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.data", ModuleType("ray.data"))


@pytest.mark.usefixtures("ray")
def test_what_ray_has_counted_is_told_where_it_has_grown() -> None:
    stats = DatasetStats()
    iterator = batches(stats)
    next(iterator)
    source = RayDataSource(lambda: iterator)

    found = LibraryWait(time_s=1.0, library="Ray Data", blocked_s=2.0, parts={"production": 1.5})
    assert source.sample(1.0) == [found]
    assert source.sample(2.0) == ()
    stats.iter_total_blocked_s.seconds = 3.0
    assert [wait.blocked_s for wait in source.sample(3.0)] == [3.0]
    source.close()


@pytest.mark.usefixtures("ray")
def test_statistics_of_another_version_are_left_alone() -> None:
    stats = DatasetStats()
    del stats.iter_total_blocked_s
    iterator = batches(stats)
    next(iterator)

    assert RayDataSource(lambda: iterator).sample(1.0) == ()


def test_without_ray_nothing_is_looked_for() -> None:
    assert RayDataSource(lambda: pytest.fail("asked")).sample(1.0) == ()


@pytest.mark.usefixtures("ray")
def test_other_iterators_have_none() -> None:
    assert find_statistics(iter([object()])) is None
    assert RayDataSource(lambda: None).sample(1.0) == ()
