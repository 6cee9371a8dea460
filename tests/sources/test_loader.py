"""A probed loader gives the very same batches, and is given back as it was."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stallmeter.records import LoaderInfo, WorkerBatch
from stallmeter.records.interfaces import Source
from stallmeter.sources.loader import LoaderProbe
from stallmeter.sources.loader.dataloader import describe
from stallmeter.sources.loader.heard import SILENT_BATCHES

from ..warm import Forks
from . import loader_datasets as data

ROOT = str(Path(__file__).parents[2])
HAS_IN_ORDER = "in_order" in inspect.signature(DataLoader).parameters


@pytest.fixture
def probe() -> Any:
    probe = LoaderProbe()
    yield probe
    probe.close()


def made(probe: LoaderProbe) -> list[WorkerBatch]:
    return [record for record in probe.sample(0.0) if isinstance(record, WorkerBatch)]


class OwnSignature(DataLoader):
    """Cannot carry a worker_init_fn when it is made anew."""

    def __init__(
        self, dataset, batch_size=4, num_workers=2, sampler=None, shuffle=False, batch_sampler=None, drop_last=False
    ):
        super().__init__(
            dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            sampler=sampler,
            shuffle=shuffle,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
        )


class OwnIterator(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


HIDDEN = weakref.WeakKeyDictionary()


class Hiding(DataLoader):
    """Hands out the batches of another loader, which nobody can see."""

    def __init__(self, dataset, **options):
        super().__init__(dataset, **options)
        HIDDEN[self] = DataLoader(dataset, **options)

    def __iter__(self):
        yield from HIDDEN[self]


class Delegating:
    """As Accelerate's: a wrapper that passes for a DataLoader, fetches one batch ahead, and is none."""

    def __init__(self, dataset, **options):
        self.base_dataloader = DataLoader(dataset, **options)

    def __getattr__(self, name):
        if name == "base_dataloader":
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    @property
    def __class__(self):
        return self.base_dataloader.__class__

    def __len__(self):
        return len(self.base_dataloader)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def __iter__(self):
        ahead = None
        for batch in self.base_dataloader:
            if ahead is not None:
                yield ahead
            ahead = batch
        yield ahead


class Holding:
    """No DataLoader, but it has one."""

    def __init__(self, dataset, **options):
        self.loader = DataLoader(dataset, **options)

    def __iter__(self):
        return iter(self.loader)


def loader(dataset: Any = None, kind: type[DataLoader] = DataLoader, **options: Any) -> DataLoader:
    options = {"batch_size": 4, "num_workers": 2, **options}
    return kind(data.Numbers() if dataset is None else dataset, **options)


# torch warns that pinning needs an accelerator, and goes on without.
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.parametrize(
    ("make", "epochs"),
    [
        pytest.param(partial(loader, shuffle=True), 2, id="map"),
        pytest.param(partial(loader, shuffle=True, worker_init_fn=data.mark_worker), 2, id="own init"),
        pytest.param(partial(loader, worker_init_fn=lambda i: data.mark_worker(i)), 1, id="lambda init"),
        pytest.param(partial(loader, collate_fn=lambda items: torch.stack(items)), 1, id="lambda collate"),
        pytest.param(partial(loader, collate_fn=data.doubling_collate), 1, id="own collate"),
        pytest.param(partial(loader, persistent_workers=True, shuffle=True), 3, id="persistent"),
        pytest.param(partial(loader, data.Batched(), shuffle=True), 2, id="getitems"),
        pytest.param(partial(loader, data.Stream()), 2, id="iterable"),
        pytest.param(partial(loader, data.Stream(), persistent_workers=True, drop_last=True), 3, id="drop_last"),
        pytest.param(partial(loader, batch_size=None), 1, id="no batching"),
        pytest.param(partial(loader, data.Stream(), batch_size=None), 1, id="iterable, no batching"),
        pytest.param(partial(loader, pin_memory=True), 1, id="pin_memory"),
        pytest.param(
            partial(loader, num_workers=1, in_order=False),
            2,
            id="in_order=False",
            marks=pytest.mark.skipif(not HAS_IN_ORDER, reason="torch before 2.6 has no in_order"),
        ),
        pytest.param(partial(loader, kind=OwnSignature), 2, id="subclass"),
        pytest.param(partial(loader, kind=OwnIterator), 2, id="own __iter__"),
        pytest.param(partial(loader, kind=StatefulDataLoader, shuffle=True), 2, id="stateful"),
        pytest.param(partial(loader, data.Stream(), StatefulDataLoader), 2, id="stateful iterable"),
        pytest.param(partial(loader, num_workers=0, shuffle=True), 2, id="no workers"),
        pytest.param(partial(loader, kind=Delegating, shuffle=True), 2, id="delegating"),
        pytest.param(partial(loader, kind=Holding, shuffle=True), 2, id="holding"),
    ],
)
def test_batches_are_the_same_and_all_are_recorded(probe: LoaderProbe, make: Callable[[], Any], epochs: int) -> None:
    expected = data.batches(make(), epochs)
    random_state = torch.get_rng_state()
    probed = make()
    info = probe.attach(probed)
    got = data.batches(probed, epochs)

    assert info.probed
    assert info.why_not is None
    assert len(got) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), random_state)
    if info.num_workers:
        records = made(probe)
        assert len(records) == len(got)
        assert {record.worker for record in records} == set(range(info.num_workers))
        if info.batch_size:
            assert sum(record.items or 0 for record in records) == sum(len(batch) for batch in got)
        else:
            assert {record.items for record in records} == {None}
        assert probe.lost == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "make"),
    [
        ("spawn", partial(loader, shuffle=True, worker_init_fn=data.mark_worker, persistent_workers=True)),
        (
            "forkserver",
            partial(loader, data.Stream(), worker_init_fn=data.mark_worker, collate_fn=data.doubling_collate),
        ),
    ],
)
def test_workers_that_are_not_forked(
    probe: LoaderProbe, method: str, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)  # a spawned worker imports the datasets by name
    expected = data.batches(make(), epochs=2 if method == "spawn" else 1)
    probed = make(multiprocessing_context=method)
    info = probe.attach(probed)
    got = data.batches(probed, epochs=2 if method == "spawn" else 1)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert info.start_method == method
    assert len(made(probe)) == len(got)


def test_the_info_says_how_the_loader_is_set_up(probe: LoaderProbe) -> None:
    probe.attach(loader(prefetch_factor=3, persistent_workers=True, multiprocessing_context="fork"))
    probe.attach(StatefulDataLoader(data.Stream(), batch_size=5))
    probe.attach([1, 2])
    first, second, third = probe.sample(0.0)
    assert isinstance(first, LoaderInfo)
    assert (first.kind, first.num_workers, first.batch_size, first.prefetch_factor) == ("DataLoader", 2, 4, 3)
    assert (first.persistent_workers, first.pin_memory) == (True, False)
    assert first.in_order is (True if HAS_IN_ORDER else None)
    assert (first.start_method, first.iterable, first.stateful, first.probed) == ("fork", False, False, True)
    assert isinstance(second, LoaderInfo)
    assert (second.kind, second.num_workers, second.batch_size) == ("StatefulDataLoader", 0, 5)
    assert second.snapshot_every_batches is None  # without workers nothing is sent
    assert (second.start_method, second.iterable, second.stateful, second.probed) == (None, True, True, True)
    assert isinstance(third, LoaderInfo)
    assert (third.kind, third.num_workers, third.probed) == ("list", None, False)
    assert third.why_not == "it is no torch.utils.data.DataLoader"


@pytest.mark.long
def test_asking_for_the_start_method_does_not_settle_it(forks: Forks, tmp_path: Path) -> None:
    code = (
        "import torch.multiprocessing as m; from torch.utils.data import DataLoader;"
        "from stallmeter.sources.loader import LoaderProbe;"
        "from stallmeter.sources.loader.heard import SILENT_BATCHES;"
        "info = LoaderProbe().attach(DataLoader([1, 2], num_workers=1));"
        "assert m.get_start_method(allow_none=True) is None, 'settled';"
        "assert info.start_method == m.get_all_start_methods()[0], info"
    )
    assert forks.run(code, cwd=tmp_path).returncode == 0


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, stallmeter.sources.loader as s; s.LoaderProbe().attach([1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_it_is_a_source(probe: LoaderProbe) -> None:
    assert isinstance(probe, Source)
    assert probe.name == "loader"
    assert list(probe.sample(0.0)) == []


def test_attaching_twice_changes_nothing(probe: LoaderProbe) -> None:
    probed = loader(worker_init_fn=data.mark_worker)
    probe.attach(probed)
    first = probed.worker_init_fn
    probe.attach(probed)
    assert probed.worker_init_fn is first
    got = data.batches(probed, 1)
    records = probe.sample(0.0)
    assert sum(isinstance(record, LoaderInfo) for record in records) == 1
    assert sum(isinstance(record, WorkerBatch) for record in records) == len(got)


def test_a_loader_in_the_place_of_another_one_is_told_as_such(probe: LoaderProbe) -> None:
    first, second = loader(), loader()
    assert not probe.attach(first).remade
    assert not probe.attach(first).remade
    assert probe.attach(second).remade
    assert not probe.attach(second).remade
    assert not probe.attach(loader(), number=1).remade
    probe.detach()
    assert not probe.attach(first).remade


def test_a_loader_that_was_begun_unseen_in_the_place_of_another_one_has_workers_of_its_own(probe: LoaderProbe) -> None:
    first = loader()
    probe.replaced_by(first)  # nothing was attached
    probe.attach(first)
    probe.replaced_by(first)
    assert [record.remade for record in probe.sample(0.0) if isinstance(record, LoaderInfo)] == [False]
    probe.replaced_by(loader())
    assert [record.remade for record in probe.sample(0.0) if isinstance(record, LoaderInfo)] == [True]


def test_detaching_gives_the_loader_back(probe: LoaderProbe) -> None:
    own, without = loader(worker_init_fn=data.mark_worker), loader()
    before = dict(own.__dict__), dict(without.__dict__)
    probe.attach(own)
    probe.attach(without, default_init=data.mark_worker)
    data.batches(own, 1)
    probe.detach()
    assert (own.__dict__, without.__dict__) == before
    assert len(made(probe)) == len(own)
    data.batches(own, 1)
    assert made(probe) == []


def test_detaching_leaves_what_the_user_set_meanwhile(probe: LoaderProbe) -> None:
    probed = loader()
    probe.attach(probed)
    probed.worker_init_fn = data.mark_worker
    probe.detach()
    assert probed.worker_init_fn is data.mark_worker


def test_a_function_wrapped_by_the_user_times_once(probe: LoaderProbe) -> None:
    probed = loader()
    probe.attach(probed)
    inner = probed.worker_init_fn
    probed.worker_init_fn = lambda worker_id: inner(worker_id)
    probe.attach(probed)
    got = data.batches(probed, 2)
    records = made(probe)
    assert len(records) == len(got)
    assert all(record.collate_s is not None for record in records)


def test_a_second_probe_takes_over_and_gives_back(probe: LoaderProbe) -> None:
    other = LoaderProbe()
    probed = loader(worker_init_fn=data.mark_worker)
    probe.attach(probed)
    other.attach(probed)
    got = data.batches(probed, 1)
    assert len(made(other)) == len(got)
    probe.detach()
    other.close()
    assert probed.worker_init_fn is data.mark_worker


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_is_as_if_it_had_never_been_touched(probe: LoaderProbe, copied: Callable[[Any], Any]) -> None:
    probed = loader(worker_init_fn=data.mark_worker, shuffle=True)
    expected = data.batches(probed, 1)
    probe.attach(probed)
    twin = copied(probed)
    assert twin.worker_init_fn is data.mark_worker
    assert all(torch.equal(a, b) for a, b in zip(data.batches(twin, 1), expected, strict=True))
    assert made(probe) == []
    assert copied(loader()).worker_init_fn is None


def test_reading_a_pickled_loader_needs_nothing_of_ours(probe: LoaderProbe) -> None:
    probed = loader()
    probe.attach(probed)
    assert b"stallmeter" not in pickle.dumps(probed)


@pytest.mark.parametrize(("options", "every"), [({}, 1), ({"snapshot_every_n_steps": 20}, 20)])
def test_how_often_workers_send_their_state(options: dict[str, int], every: int) -> None:
    assert describe(StatefulDataLoader(data.Numbers(), num_workers=2, **options)).snapshot_every_batches == every
    assert describe(DataLoader(data.Numbers(), num_workers=2)).snapshot_every_batches is None


@pytest.mark.parametrize("kind", [DataLoader, OwnSignature, StatefulDataLoader])
def test_a_loader_that_lightning_makes_anew(probe: LoaderProbe, kind: type[DataLoader]) -> None:
    from lightning.pytorch.utilities.data import _update_dataloader

    probed = loader(kind=kind, **({} if kind is OwnSignature else {"worker_init_fn": data.mark_worker}))
    own = probed.worker_init_fn
    probe.attach(probed)
    again = _update_dataloader(probed, SequentialSampler(probed.dataset))
    assert probe.attach(again).probed
    got = data.batches(again, 2)
    assert len(made(probe)) == len(got)
    probe.detach()
    assert probed.worker_init_fn is own
    assert again.worker_init_fn is own


@pytest.mark.parametrize("persistent", [False, True])
def test_lightnings_seeding_is_not_lost(probe: LoaderProbe, persistent: bool) -> None:
    from lightning.fabric.utilities.seed import pl_worker_init_function

    seeding = partial(pl_worker_init_function, rank=0)
    expected = data.batches(loader(worker_init_fn=seeding, persistent_workers=persistent))
    probed = loader(persistent_workers=persistent)
    probe.attach(probed, default_init=seeding)
    probe.attach(probed)
    got = data.batches(probed)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert not torch.equal(got[0], data.batches(loader(), 1)[0])


def test_the_default_is_not_called_beside_the_users_own(probe: LoaderProbe) -> None:
    probed = loader(worker_init_fn=data.mark_worker)
    expected = data.batches(probed, 1)
    probe.attach(probed, default_init=data.failing_init)
    assert all(torch.equal(a, b) for a, b in zip(data.batches(probed, 1), expected, strict=True))


def test_two_iterators_of_one_loader_at_once(probe: LoaderProbe) -> None:
    probed = loader()
    probe.attach(probed)
    pairs = [(a, b) for _ in range(2) for a, b in zip(probed, probed, strict=True)]
    assert len(made(probe)) == 2 * len(pairs) == 4 * len(probed)


def test_a_loader_inside_the_dataset_is_part_of_its_fetch(probe: LoaderProbe) -> None:
    probed = loader(data.Nested())
    probe.attach(probed)
    got = data.batches(probed, 1)
    assert len(made(probe)) == len(got)


def test_the_number_of_workers_changes_on_the_live_loader(probe: LoaderProbe) -> None:
    probed = loader(worker_init_fn=data.mark_worker)
    probe.attach(probed)
    probed.num_workers = 3
    data.batches(probed, 1)
    # Nobody said so: the third worker has nowhere to write, and works all the same.
    assert {record.worker for record in made(probe)} == {0, 1}
    probe.attach(probed)
    data.batches(probed, 1)
    assert {record.worker for record in made(probe)} == {0, 1, 2}
    probed.num_workers, probed.prefetch_factor = 0, None
    assert probe.attach(probed).probed
    assert probe.in_loop
    assert probed.worker_init_fn is data.mark_worker


def test_the_state_of_a_stateful_loader(probe: LoaderProbe) -> None:
    def states(probed: bool) -> tuple[list[Any], list[torch.Tensor]]:
        one = loader(data.Stream(), StatefulDataLoader)
        if probed:
            probe.attach(one)
        torch.manual_seed(3)
        iterator = iter(one)
        next(iterator)
        states = [one.state_dict()]
        other = loader(data.Stream(), StatefulDataLoader)
        other.load_state_dict(states[0])
        if probed:
            probe.attach(other)
        return states, [batch[:, 0].clone() for batch in other]

    (plain, rest), (probed, probed_rest) = states(False), states(True)
    assert plain == probed
    assert all(torch.equal(a, b) for a, b in zip(rest, probed_rest, strict=True))


def test_running_persistent_workers_are_left_alone(probe: LoaderProbe) -> None:
    running = loader(persistent_workers=True)
    next(iter(running))
    before = dict(running.__dict__)
    info = probe.attach(running)
    assert (info.probed, info.why_not) == (False, "its persistent workers run already")
    assert running.__dict__ == before


def test_a_loader_that_refuses_is_left_alone(probe: LoaderProbe) -> None:
    class Frozen(DataLoader):
        def __setattr__(self, name, value):
            if name == "worker_init_fn" and hasattr(self, "worker_init_fn"):
                raise AttributeError("frozen")
            super().__setattr__(name, value)

    refusing = loader(kind=Frozen)
    before = dict(refusing.__dict__)
    info = probe.attach(refusing)
    assert (info.probed, info.why_not) == (False, "its worker_init_fn cannot be set: frozen")
    assert refusing.__dict__ == before
    probe.detach()


def test_a_host_without_shared_memory(probe: LoaderProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("unable to allocate shared memory(shm)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    untouched = loader()
    info = probe.attach(untouched)
    assert not info.probed
    assert "unable to allocate" in (info.why_not or "")
    assert untouched.worker_init_fn is None


def test_the_main_process_is_never_patched(probe: LoaderProbe) -> None:
    from torch.utils.data._utils import fetch

    probed = loader()
    probe.attach(probed)
    before = fetch._MapDatasetFetcher.fetch, fetch._IterableDatasetFetcher.fetch
    probed.worker_init_fn(0)
    data.batches(probed, 1)
    assert (fetch._MapDatasetFetcher.fetch, fetch._IterableDatasetFetcher.fetch) == before


def outcome(failing: Any) -> tuple[type[BaseException], str, int]:
    """What iterating it raised, the last line of its message, and how many batches came before."""
    seen = 0
    try:
        iterator = iter(failing)
        while True:
            next(iterator)
            seen += 1
    except Exception as exc:
        # torch's frames hold the exception and so themselves: left to the garbage collector, the iterator would find
        # its queues closed when it tells its workers to end, and wait for them in vain.
        exc.__traceback__ = None
        return type(exc), str(exc).strip().splitlines()[-1], seen


@pytest.mark.parametrize("error", [ValueError, KeyError, StopIteration, ZeroDivisionError])
def test_an_error_of_the_dataset_is_the_same(probe: LoaderProbe, error: type[BaseException]) -> None:
    probed = loader(data.Raising(error))
    probe.attach(probed)
    expected = outcome(loader(data.Raising(error)))
    assert outcome(probed) == expected
    assert expected[0] is error
    # What raised is no batch: the third never came, its worker's others may have.
    assert all(record.items == 4 for record in made(probe))


def test_an_error_of_the_users_init_is_the_same(probe: LoaderProbe) -> None:
    probed = loader(worker_init_fn=data.failing_init)
    probe.attach(probed)
    raised = outcome(probed)
    assert raised == outcome(loader(worker_init_fn=data.failing_init))
    assert raised[0] is LookupError


def test_a_function_that_cannot_be_pickled_fails_as_before(probe: LoaderProbe) -> None:
    def make() -> Any:
        return loader(worker_init_fn=lambda worker_id: None, multiprocessing_context="spawn")

    probed = make()
    probe.attach(probed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert outcome(probed)[0] is outcome(make())[0]


def test_a_worker_that_dies_is_reported_as_before(probe: LoaderProbe) -> None:
    probed = loader(data.Dying(data.COUNT, 0.001), collate_fn=list)
    probe.attach(probed)
    error, message, _ = outcome(probed)
    assert error is RuntimeError
    assert "exited unexpectedly" in message
    probe.sample(0.0)


def test_generators_are_closed_when_they_were_before(probe: LoaderProbe, tmp_path: Path) -> None:
    def run(name: str, attach: bool) -> str:
        log = tmp_path / name
        stream = loader(data.Logged(log), num_workers=1, persistent_workers=True, prefetch_factor=1)
        if attach:
            probe.attach(stream)
        # Left early: the worker drops its generator when the next epoch begins.
        for _ in range(2):
            next(iter(stream))
        assert sum(1 for _ in stream) == 6
        return log.read_text()

    assert run("probed", attach=True) == run("plain", attach=False)


def test_many_loaders_leave_nothing_behind(probe: LoaderProbe) -> None:
    def descriptors() -> int:
        probe.sample(0.0)
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    probe.attach(loader())
    before = descriptors()
    for _ in range(20):
        probe.attach(loader())
    assert descriptors() <= before


def infos(probe: LoaderProbe) -> list[LoaderInfo]:
    return [record for record in probe.sample(0.0) if isinstance(record, LoaderInfo)]


def test_workers_that_nobody_hears_of() -> None:
    """Another loader makes the batches: how many workers make them is not known, in the next epoch neither."""
    had = [0]
    probe = LoaderProbe(lambda: had[0])
    hiding = loader(kind=Hiding)
    assert probe.attach(hiding).probed
    had[0] += SILENT_BATCHES - 1
    assert [info.probed for info in infos(probe)] == [True]
    had[0] += len(data.batches(hiding))
    (said,) = infos(probe)
    assert (said.kind, said.probed, said.num_workers) == ("Hiding", False, None)
    assert "another loader" in said.why_not
    assert not probe.attach(hiding).probed
    assert infos(probe) == []
    assert list(DataLoader.__iter__(hiding))
    (heard,) = infos(probe)
    assert (heard.probed, heard.num_workers, heard.why_not) == (True, 2, None)
    probe.close()


def test_workers_that_are_heard_of_late() -> None:
    """Batches of an epoch before, or a loader that was attached long before it is iterated, are no reason to doubt."""
    had = [0]
    probe = LoaderProbe(lambda: had[0])
    plain = loader()
    for _ in range(2):
        probe.attach(plain)
        for _ in plain:
            had[0] += 1
        assert all(info.probed for info in infos(probe))
    had[0] += 100
    assert infos(probe) == []
    probe.close()


@pytest.mark.parametrize("kind", [Delegating, Holding])
def test_a_wrapper_is_given_back_as_it_was(probe: LoaderProbe, kind: Any) -> None:
    wrapper = loader(kind=kind, worker_init_fn=data.mark_worker)
    before = dict(vars(wrapper))
    info = probe.attach(wrapper)
    assert (info.kind, info.num_workers, info.stateful) == (kind.__name__, 2, False)
    probe.detach()
    assert vars(wrapper) == before
    assert next(iter(before.values())).worker_init_fn is data.mark_worker


def test_a_wrapper_around_a_loader_without_workers(probe: LoaderProbe) -> None:
    """Batches may be made in any thread: nothing is said of them."""
    info = probe.attach(loader(kind=Holding, num_workers=0))
    assert (info.probed, info.num_workers, probe.in_loop) == (False, None, False)
