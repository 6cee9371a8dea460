"""Several loaders: the one that sets the pace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import LoaderInfo, WorkerBatch
from stallmeter.window import Window

WORKERS = 2


def info(loader: int = 0, workers: int | None = WORKERS, **known: Any) -> LoaderInfo:
    return LoaderInfo(
        time_s=0.0, kind="DataLoader", num_workers=workers, probed=workers is not None, loader=loader, **known
    )


def batches(loader: int, service_s: float, idle_s: float = 0.0, count: int = 40, workers: int = WORKERS) -> Any:
    for i in range(count):
        yield WorkerBatch(
            worker=i % workers, time_s=float(i), wall_s=service_s, cpu_s=0.0, idle_s=idle_s, loader=loader
        )


def window(*records: Any) -> Window:
    made = Window()
    for record in records:
        made.append(record)
    return made


def test_one_loader_is_the_loader() -> None:
    made = window(info(), *batches(0, 0.1))
    assert (made.loader.num_workers, made.loader.count, made.loader.which) == (2, 1, None)
    assert len(made.workers.batches) == 40


def test_the_slower_one_sets_the_pace() -> None:
    """A worker's time for a batch counts for as many workers as there are."""
    made = window(info(0, 1), info(1, 8), *batches(0, 0.1, workers=1), *batches(1, 0.5, workers=8))
    assert made.loader.which == "the first of 2 training loaders"
    assert made.loader.num_workers == 1
    assert made.workers.service_s is not None
    assert made.workers.service_s.median == pytest.approx(0.1)


def test_of_equal_ones_the_busier() -> None:
    made = window(info(0), info(1), *batches(0, 0.1, idle_s=0.1), *batches(1, 0.095, idle_s=0.01))
    assert made.loader.which == "the second of 2 training loaders"


def test_a_loader_that_makes_none_of_the_batches_is_no_candidate() -> None:
    made = window(info(0, None), info(1), *batches(1, 0.1))
    assert (made.loader.num_workers, made.loader.count, made.loader.which) == (2, 1, None)


def test_beside_one_that_is_read_in_the_loop_only_busy_workers_are_known_to_bind() -> None:
    """What the other one takes is not seen."""
    for idle_s, workers in ((0.5, None), (0.0, 2)):
        made = window(info(0), info(1, 0), *batches(0, 0.1, idle_s=idle_s))
        assert made.loader.num_workers == workers


def test_workers_without_batches() -> None:
    """Told when each could have had several, not of a worker that is somewhat behind."""
    few, enough = info(0, 4), [*batches(0, 0.1, count=40, workers=2)]
    assert window(few, *enough[:20]).workers.idle is None
    made = window(few, *enough)
    assert made.workers.idle == 2
    assert window(info(0, 4), *batches(0, 0.1, count=42, workers=4)).workers.idle == 0
    unsure = window(info(0, 4, in_order=False), *enough, WorkerBatch(worker=2, time_s=9.0, wall_s=1.0, cpu_s=0.0))
    assert unsure.workers.idle == 1


def test_shards() -> None:
    """What the dataset says, or the workers that had any."""
    told = info(0, 4, iterable=True, shards_itself=True, shards=3)
    made = window(told, *batches(0, 0.1, count=9, workers=3))
    assert (made.workers.idle, made.loader.shards) == (1, 3)
    seen = window(info(0, 4, iterable=True), *batches(0, 0.1, count=40, workers=2))
    assert seen.loader.shards == 2
    assert window(info(0, 4), *batches(0, 0.1, count=40, workers=2)).loader.shards is None


def test_another_number_of_workers_counts_anew() -> None:
    made = window(info(0, 4), *batches(0, 0.1, count=40, workers=4), info(0, 6))
    assert made.workers.idle is None


def test_what_an_earlier_number_of_workers_took_to_begin_is_forgotten() -> None:
    first = [WorkerBatch(worker=i, time_s=0.0, wall_s=0.1, cpu_s=0.1, init_s=20.0) for i in range(WORKERS)]
    later = [replace(one, init_s=0.001) for one in first]
    made = window(info(), *first, *batches(0, 0.1), info(workers=1), later[0], *batches(0, 0.1, workers=1))
    assert made.workers.starts is not None
    assert made.workers.starts.init_s == pytest.approx(0.001)
