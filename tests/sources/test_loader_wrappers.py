"""DataLoaders inside of what a loop iterates, and which of them make its batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stallmeter.records import LoaderInfo, WorkerBatch
from stallmeter.sources.loader import RATIO_FETCHES, LoaderProbe
from stallmeter.sources.loader.heard import SILENT_BATCHES
from stallmeter.sources.loader.wrappers import MOST_OBJECTS, iterators_in, loaders_in

from . import loader_datasets as data


def loader(**options: Any) -> DataLoader:
    return DataLoader(data.Numbers(), **{"batch_size": 1, "num_workers": 1, **options})


class Held:
    """Has loaders in odd places, itself in a circle, and what must not be asked."""

    __slots__ = ("__dict__", "slot")

    def __init__(self, *loaders: Any) -> None:
        self.nested = {"a": [(loaders[0],)]}
        self.me = self
        self.tensor = torch.zeros(1)
        self.dataset = loader()
        if len(loaders) > 1:
            self.slot = loaders[1]

    @property
    def asked(self) -> Any:
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class Both:
    """Trains on one loader; the other is for validation."""

    def __init__(self) -> None:
        self.valid, self.train = loader(), loader()

    def __iter__(self) -> Iterator[Any]:
        yield from self.train


def generated(inner: Any) -> Iterator[Any]:
    yield from inner


def test_loaders_are_found_wherever_they_are() -> None:
    first, second = loader(), loader()
    assert loaders_in(first) == [first]
    assert loaders_in(Held(first, second)) == [second, first]
    assert loaders_in([first, {"b": second}]) == [first, second]
    assert loaders_in(generated(first)) == [first]
    assert loaders_in(torch.nn.ModuleList()) == []


def test_the_search_is_bounded() -> None:
    chain: Any = loader()
    for _ in range(MOST_OBJECTS):
        chain = [chain]
    assert loaders_in(chain) == []
    assert loaders_in([[object() for _ in range(30)] for _ in range(30)]) == []


@pytest.mark.parametrize(
    "around", [generated, lambda it: zip(it, range(99), strict=False), lambda it: map(len, generated(it))]
)
def test_the_iterator_inside_an_iterator(around: Any) -> None:
    iterator = around(iter(Both()))
    next(iterator)
    (found,) = iterators_in(iterator)
    assert found._num_yielded == 1


def fetched(probe: LoaderProbe, wrapper: Any, count: int) -> list[Any]:
    """Take batches as a loop does, and return what the probe made of it."""
    iterator = iter(wrapper)
    probe.iterator_of = lambda: iterator
    for _ in range(count):
        probe.asked()
        next(iterator)
        probe.answered()
    return list(probe.sample(0.0))


def test_a_loader_that_makes_none_of_the_batches_is_not_judged() -> None:
    """Its workers are heard of as well, but the loop's iterator takes nothing from them."""
    had = [0]
    probe, both = LoaderProbe(lambda: had[0]), Both()
    assert probe.attach(both).num_workers == 1
    had[0] = SILENT_BATCHES
    list(both.valid)
    made = fetched(probe, both, SILENT_BATCHES)
    infos = {info.loader: info for info in made if isinstance(info, LoaderInfo)}
    assert (infos[0].probed, infos[0].num_workers, infos[1].probed) == (False, None, True)
    assert {batch.loader for batch in made if isinstance(batch, WorkerBatch)} == {1}
    probe.close()


class Pairs:
    """Makes one batch of two."""

    def __init__(self) -> None:
        self.inner = DataLoader(data.Sleeping(3 * RATIO_FETCHES, 0.0), batch_size=1, num_workers=1)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.inner)
        for one, other in zip(batches, batches, strict=True):
            yield torch.cat([one, other])


def test_batches_that_are_made_of_several() -> None:
    probe, pairs = LoaderProbe(), Pairs()
    probe.attach(pairs)
    made = fetched(probe, pairs, RATIO_FETCHES + 2)
    assert [m.batches_per_step for m in made if isinstance(m, LoaderInfo)][-1] == pytest.approx(2.0)
    # What lies ready is not known of the loop's batch.
    assert probe.asked() == (None, None)
    probe.close()


def test_one_batch_for_one() -> None:
    """Then what is ready for the wrapper is what is ready in the queue."""
    probe, both = LoaderProbe(), Both()
    probe.attach(both)
    made = fetched(probe, both, 6)
    assert all(m.batches_per_step is None for m in made if isinstance(m, LoaderInfo))
    ready, _ = probe.asked()
    assert ready is not None
    probe.close()


@pytest.mark.filterwarnings("ignore")
def test_webloader() -> None:
    wds = pytest.importorskip("webdataset")
    made = wds.WebLoader(data.Stream(), batch_size=4, num_workers=2)
    probe = LoaderProbe()
    info = probe.attach(made.unbatched().shuffle(8).batched(6))
    assert (info.kind, info.num_workers, info.probed, info.shards_itself) == ("WebLoader", 2, True, True)
    probe.close()
    info = probe.attach(wds.WebLoader(data.Stream(), batch_size=4, num_workers=0))
    assert (info.num_workers, info.probed, probe.in_loop) == (0, True, True)
    probe.close()


def test_what_is_shared_by_all_loops_is_not_looked_into() -> None:
    """Accelerate's loaders all know of one state, which knows of the loader that was iterated last."""

    class Shared:
        def __init__(self) -> None:
            self.dataloader_references: list[object] = [None]

    class Shard:
        def __init__(self, state: Shared) -> None:
            self.base_dataloader = DataLoader(data.Sleeping(4, 0.0), num_workers=1)
            self.gradient_state = state

    state = Shared()
    one, other = Shard(state), Shard(state)
    state.dataloader_references.append(other)
    assert loaders_in(one) == [one.base_dataloader]


def test_batches_of_which_a_step_takes_several() -> None:
    """The loop asks for each of them; a wrapper may make each of several of its loader's again."""
    probe, pairs = LoaderProbe(), Pairs()
    probe.fetches_per_step = 4
    assert probe.attach(pairs).batches_per_step == 4.0
    made = fetched(probe, pairs, RATIO_FETCHES + 2)
    assert [m.batches_per_step for m in made if isinstance(m, LoaderInfo)][-1] == pytest.approx(8.0)
    probe.close()
