"""Several loaders that one loop asks, as in a zip: each is looked into, and all of them make a step's batches."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from stallmeter.engine.monitor import Monitor
from stallmeter.recording import Reader
from stallmeter.records import CodeLook, LoaderInfo, StepRecord, WorkerBatch
from stallmeter.sources.loader import FIRST_FETCHES, LoaderProbe
from stallmeter.sources.loader.heard import SILENT_BATCHES
from stallmeter.sources.loader.look import MIN_STEPS, WorkerLook
from stallmeter.sources.loader.worker import WorkerInit

from . import loader_datasets as data


def loader(count: int = 24, *, workers: int = 1, **options: Any) -> DataLoader:
    return DataLoader(data.Sleeping(count, 0.002), batch_size=1, num_workers=workers, **options)


def infos(records: list[Any]) -> dict[int, LoaderInfo]:
    return {record.loader: record for record in records if isinstance(record, LoaderInfo)}


@pytest.fixture
def probe() -> Any:
    probe = LoaderProbe()
    yield probe
    probe.close()


def test_each_has_a_number_that_it_keeps(probe: LoaderProbe) -> None:
    first, second, third = loader(), loader(workers=2), loader()
    probe.attach(first)
    for _ in range(2):
        probe.attach_beside(second)
        probe.attach_beside(third)
    assert {n: i.num_workers for n, i in infos(list(probe.sample(0.0))).items()} == {0: 1, 1: 2, 2: 1}
    assert all(isinstance(one.worker_init_fn, WorkerInit) for one in (first, second, third))


def test_one_that_takes_the_place_of_another_has_its_number(probe: LoaderProbe) -> None:
    """A program may make the second loader anew in each epoch, or ask it first from some moment on."""
    first = loader()
    probe.attach(first)
    for _ in range(3):
        second = loader(workers=2)
        probe.attach_beside(second)
        assert probe.number_of(second) == 1
        del second
    third = loader()
    probe.attach_beside(third)
    assert (probe.number_of(third), probe.number_of(loader())) == (1, None)


def test_one_whose_batches_were_seen_to_be_taken_is_listened_to_whoever_feeds_the_loop() -> None:
    """Its iterators are gone as soon as they have given a batch: nobody can look at them."""
    handed_out = [0]
    probe = LoaderProbe(lambda: handed_out[0])
    first, second, third = loader(), loader(workers=2), loader(workers=3)
    probe.attach(first)
    probe.attach_beside(second, sure=True)
    probe.attach_beside(third)
    handed_out[0] = SILENT_BATCHES
    assert {n: i.num_workers for n, i in infos(list(probe.sample(0.0))).items()} == {0: None, 1: 2, 2: None}
    probe.close()


def test_what_cannot_be_told_apart_is_left_alone(probe: LoaderProbe) -> None:
    class Around:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

    probe.attach_beside(loader())  # nobody knows whose it is beside
    first = loader()
    probe.attach(first)
    for other in (first, Around(first), [1, 2], iter(())):
        probe.attach_beside(other)
    assert [*infos(list(probe.sample(0.0)))] == [0]


@pytest.mark.parametrize("which", [0, 1])
def test_one_that_is_not_trained_on_is_forgotten(probe: LoaderProbe, which: int) -> None:
    both = loader(), loader()
    probe.attach(both[0])
    probe.attach_beside(both[1])
    probe.release(both[which])
    assert [*infos(list(probe.sample(0.0)))] == [1 - which]
    assert both[which].worker_init_fn is None
    assert isinstance(both[1 - which].worker_init_fn, WorkerInit)
    probe.release(loader())


def test_one_that_is_released_no_longer_keeps_the_loop_from_being_timed(probe: LoaderProbe) -> None:
    here, other = loader(workers=0), loader(workers=2)
    probe.attach(here)
    probe.attach_beside(other)
    assert not probe.in_loop
    probe.release(other)
    assert probe.in_loop


def recorded(tmp_path: Any, first: Any, second: Any, *, again: bool = False) -> list[Any]:
    """Train on pairs of their batches; with ``again`` the second one begins again whenever it ends.

    No batch is looked into: those leave no record, and it hangs on the verdict so far how many they are.
    """
    monitor = Monitor(directory=tmp_path, interval_s=0.05, trackers=None, console=False, deep_batches=0)
    if again:
        others = iter(())
        for _ in monitor.watch(first):
            try:
                next(others)
            except StopIteration:
                others = iter(monitor.watch(second))
                next(others)
    else:
        for _ in zip(monitor.watch(first), monitor.watch(second), strict=False):
            pass
    monitor.close()
    assert monitor.folder is not None
    return [record for record, _ in Reader(monitor.folder)]


def test_the_workers_of_both_are_heard_of(tmp_path: Any) -> None:
    records = recorded(tmp_path, loader(), loader(workers=2))
    assert {n: (i.num_workers, i.probed) for n, i in infos(records).items()} == {0: (1, True), 1: (2, True)}
    made = [record.loader for record in records if isinstance(record, WorkerBatch)]
    assert [made.count(number) for number in (0, 1)] == [24, 24]
    steps = [record for record in records if isinstance(record, StepRecord)]
    assert len(steps) == 24
    # What is ready is known once it was seen that a step takes one batch of each.
    assert any(step.ready is not None for step in steps)


def test_batches_that_the_loop_makes_are_those_of_all(tmp_path: Any) -> None:
    records = recorded(tmp_path, loader(workers=0), loader(workers=0))
    assert {n: (i.num_workers, i.probed) for n, i in infos(records).items()} == {0: (0, True), 1: (0, True)}
    made = [record for record in records if isinstance(record, WorkerBatch)]
    assert len(made) == 48
    assert [i.batches_per_step for i in records if isinstance(i, LoaderInfo)][-1] == pytest.approx(2.0, abs=0.25)


def test_where_only_one_has_workers_it_is_not_guessed_who_sets_the_pace(tmp_path: Any) -> None:
    records = recorded(tmp_path, loader(workers=0), loader(workers=1))
    assert {n: i.num_workers for n, i in infos(records).items()} == {0: 0, 1: 1}
    assert {r.loader for r in records if isinstance(r, WorkerBatch)} == {1}


def test_one_that_begins_again_within_the_epoch(tmp_path: Any) -> None:
    records = recorded(tmp_path, loader(), loader(8), again=True)
    assert {n: i.probed for n, i in infos(records).items()} == {0: True, 1: True}
    made = [record.loader for record in records if isinstance(record, WorkerBatch)]
    assert [made.count(number) for number in (0, 1)] == [24, 24]


def test_beside_a_loader_that_is_not_looked_into_none_is(tmp_path: Any) -> None:
    """Else the loop would be timed as the maker of batches that workers of another loader make."""
    first, second = loader(workers=0), loader(workers=0)
    monitor = Monitor(directory=tmp_path, trackers=None, console=False)
    loaders = monitor.run.loaders
    loaders.prepare(first)
    loaders.iterator_made(iter(first))
    loaders.led_unseen()
    made = iter(second)
    assert loaders.beside(second, lambda: made) is made
    assert monitor.run.clock.before_fetch is None
    monitor.close()


def test_the_ratio_is_told_soon_and_counts_what_comes_beside(probe: LoaderProbe) -> None:
    both = loader(workers=0), loader(workers=0)
    probe.attach(both[0])
    probe.attach_beside(both[1])
    for _ in range(FIRST_FETCHES):
        probe.loop_before()
        probe.loop_after()
        for _ in range(2):
            probe.loop_beside()
            probe.loop_had_beside()
    assert infos(list(probe.sample(0.0)))[0].batches_per_step == pytest.approx(3.0)


def test_a_look_is_into_the_batches_of_all(probe: LoaderProbe) -> None:
    first, second = (DataLoader(data.Costly(), batch_size=4, num_workers=0) for _ in range(2))
    source = WorkerLook(2, probe, lambda: (0, 0))
    probe.attach(first)
    probe.attach_beside(second)
    iterators = iter(first), iter(second)
    probe.iterator_of = lambda: iterators
    records: list[Any] = []
    for step in range(16):
        probe.loop_before()
        next(iterators[0])
        probe.loop_after()
        probe.loop_beside()
        next(iterators[1])
        probe.loop_had_beside()
        records += probe.sample(0.0)
        if step == 6:
            source.request("prep-stall", MIN_STEPS)
        records += source.sample(0.0)
    [*_, look] = [record for record in records if isinstance(record, CodeLook)]
    assert look.seen == 4  # two of each
    assert next(spot for spot in look.spots if spot.own).function == "Costly.spend"
    assert sum(isinstance(record, WorkerBatch) for record in records) in (26, 27, 28)
