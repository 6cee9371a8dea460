"""Looks into batches where they are made: the samples stay the same, and the function and its line are named."""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from stallmeter.records import CodeLook, Event, WorkerBatch
from stallmeter.sources.loader import LoaderProbe, batch_look
from stallmeter.sources.loader.batch_look import EVENTS, PATIENCE, PATIENT, PLAIN, BatchLook, ItemTimes
from stallmeter.sources.loader.look import AFTER_S, FEW_STEPS, MIN_STEPS, WorkerLook
from stallmeter.sources.loader.ring import Order, Usual
from stallmeter.sources.loader.starts import StartOrders

from . import loader_datasets as data

FROM = 6
"""The batch after which the look is asked for."""


@pytest.fixture
def probe() -> Any:
    probe = LoaderProbe()
    yield probe
    probe.close()


def _loader(dataset: Any, workers: int, **options: Any) -> DataLoader:
    torch.manual_seed(3)
    random.seed(3)
    return DataLoader(dataset, batch_size=4, num_workers=workers, **options)


def _look(probe: LoaderProbe, loader: DataLoader, rule: str = "prep-stall") -> tuple[list[Any], list[Any], int]:
    """Iterate with a look in the middle; return the batches, what was recorded, and how many were to be measured."""
    assert probe.attach(loader).probed
    source = WorkerLook(2, probe, lambda: (loader.num_workers, 0))
    batches, records = [], []
    iterator = iter(loader)
    probe.iterator_of = lambda: iterator
    for _ in range(len(loader) if hasattr(loader.dataset, "__len__") else 10_000):
        probe.loop_before()
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
        probe.loop_after()
        if len(batches) >= FROM:
            records += probe.sample(0.0)
            source.request(rule, MIN_STEPS)
            records += source.sample(0.0)
    records += [*probe.sample(0.0), *source.sample(0.0)]
    return batches, records, len(batches)


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


SLEEPS = [
    (data.Costly, "Costly.spend"),
    (data.CostlyBatches, "Costly.spend"),
    (data.CostlyStream, "CostlyStream.__iter__"),
]


HERE, FORKED, SPAWNED = (0, None), (1, "fork"), (1, "spawn")
CASES = [(*kind, *how) for kind in SLEEPS for how in (HERE, FORKED)] + [(*SLEEPS[0], *SPAWNED)]


@pytest.mark.parametrize(("dataset", "function", "workers", "start"), CASES)
def test_the_function_is_named_and_the_samples_are_the_same(probe, dataset, function, workers, start):
    options = {} if start is None else {"multiprocessing_context": start}
    plain = list(_loader(dataset(), workers, **options))
    batches, records, made = _look(probe, _loader(dataset(), workers, **options))
    assert _same(batches, plain)
    look = [record for record in records if isinstance(record, CodeLook)][-1]
    [spot] = [spot for spot in look.spots if spot.function == function]  # a machine that stops puts others before it
    assert (spot.own, "time.sleep" in spot.calls) == (True, True)
    assert spot.file.rpartition("/")[2] == "loader_datasets.py"
    assert look.seen in (1, 2)  # a worker that is ahead has few batches left to look into
    assert spot.line == _line_of("time.sleep(0.004)", function)
    # Four items each, less what the looking is taken to have cost: on a busy machine that is several milliseconds.
    assert look.wall_s > spot.wall_s > 0.9 * look.seen * 4 * 0.004
    assert look.cpu_s is not None
    assert spot.cpu_s is not None
    assert spot.cpu_s < spot.wall_s
    measured = [record for record in records if isinstance(record, WorkerBatch)]
    left_out = PLAIN + look.seen  # those that were timed for the look, and those that were looked into
    # On a busy machine some are looked into that tell nothing.
    assert made - left_out - PATIENT <= len(measured) <= made - left_out


def test_what_a_worker_makes_for_the_others_is_told_apart(probe):
    _, records, _ = _look(probe, _loader(data.LateShare(), 2))
    look = [record for record in records if isinstance(record, CodeLook)][-1]
    [spot] = [spot for spot in look.repeated if spot.function == "LateShare.spend"]
    [whole] = [spot for spot in look.spots if spot.function == "LateShare.spend"]
    assert 0.8 * whole.wall_s < spot.wall_s <= 1.0001 * whole.wall_s
    assert spot.wall_s > 0.9 * look.seen * 7 * 0.004  # of eight items four are kept


def test_what_a_worker_makes_for_itself_is_not_told_as_made_for_others(probe):
    _, records, _ = _look(probe, _loader(data.Costly(), 2))
    assert [record for record in records if isinstance(record, CodeLook)][-1].repeated == ()


def test_what_is_the_same_for_each_item_is_told_apart(probe):
    _, records, _ = _look(probe, _loader(data.Rereads(), 2))
    look = [record for record in records if isinstance(record, CodeLook)][-1]
    [spot] = look.unvarying
    assert (spot.function, spot.call_in_line) == ("Rereads.table", None)
    assert spot.wall_s > 0.9 * look.seen * 4 * 0.004
    _, records, _ = _look(probe, _loader(data.Costly(), 2))
    assert [record for record in records if isinstance(record, CodeLook)][-1].unvarying == ()


def _line_of(text: str, function: str) -> int:
    lines = open(data.__file__, encoding="utf-8").read().splitlines()  # noqa: SIM115, PTH123
    start = next(i for i, line in enumerate(lines) if line.startswith(f"class {function.partition('.')[0]}("))
    return next(i for i, line in enumerate(lines) if i > start and text in line) + 1


def test_no_random_number_is_drawn():
    fetcher = _Fetcher()
    states = [random.getstate()[1], tuple(np.random.get_state()[1].tolist()), torch.get_rng_state().tolist()]
    look = BatchLook(Order(1, 2, False), [], lambda _: None)
    for _ in range(4):
        look.fetch(_Fetcher.fetch, fetcher, [1, 2])
    assert look.done
    now = [random.getstate()[1], tuple(np.random.get_state()[1].tolist()), torch.get_rng_state().tolist()]
    assert now == states


class _Fetcher:
    """What torch makes batches with."""

    auto_collation = True
    dataset = data.Numbers()

    def __init__(self, item: Any = None) -> None:
        self.item = item or (lambda index: index)
        self.collate_fn = sum

    def fetch(self, indices: list[int]) -> int:
        return self.collate_fn([self.item(index) for index in indices])


def _busy(index: int) -> int:
    total = 0
    for k in range(3000):
        total += k ^ index
    return total


def test_the_line_of_a_function_that_computes_itself_is_found():
    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 2, False), [], found.append)
    fetcher = _Fetcher(_busy)
    while not look.done:
        assert look.fetch(_Fetcher.fetch, fetcher, [1, 2, 3]) == sum(map(_busy, [1, 2, 3]))
    first = _busy.__code__.co_firstlineno
    assert found[-1]["spots"][0]["function"] == "_busy"
    assert first + 2 <= found[-1]["spots"][0]["line"] <= first + 3
    assert [document["seen"] for document in found] == [1, 2, 2]
    assert fetcher.collate_fn is sum


@pytest.mark.parametrize("setter", [sys.setprofile, sys.settrace])
def test_another_profiler_or_a_debugger_is_left_alone(setter):
    found: list[dict[str, Any]] = []
    before = sys.getprofile(), sys.gettrace()
    setter(_other)
    try:
        look = BatchLook(Order(1, 2, False), [], found.append)
        assert look.fetch(_Fetcher.fetch, _Fetcher(), [1, 2]) == 3
        assert _other in (sys.getprofile(), sys.gettrace())
    finally:
        setter(before[0] if setter is sys.setprofile else before[1])
    assert look.done
    assert "active" in found[0]["why_not"]


def _other(*_: Any) -> None:
    """Somebody else's profile function, or trace function."""


@pytest.mark.parametrize("events", [0, EVENTS])
def test_a_profiler_that_begins_within_a_batch_goes_on(events):
    """Also where there were too many calls before it, and what puts the items together would be looked into."""

    def begins(index: int) -> int:
        found = sum(map(functools.partial(_plus, index), range(events)))
        sys.setprofile(_other)
        return found

    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 2, False), [], found.append)
    try:
        look.fetch(_Fetcher.fetch, _Fetcher(begins), [1])
        assert sys.getprofile() is _other
        look.fetch(_Fetcher.fetch, _Fetcher(), [1])
        assert sys.getprofile() is _other
    finally:
        sys.setprofile(None)
    assert look.done
    assert found[-1]["why_not"] == "another profiler is active"


def test_what_the_dataset_raises_is_raised_and_nothing_stays_behind():
    def fails(index: int) -> int:
        raise KeyError(index)

    fetcher = _Fetcher(fails)
    look = BatchLook(Order(1, 2, False), [], lambda _: None)
    with pytest.raises(KeyError):
        look.fetch(_Fetcher.fetch, fetcher, [1])
    assert sys.getprofile() is None
    assert fetcher.collate_fn is sum


def test_a_batch_with_too_many_calls_is_looked_into_in_part():
    def many(index: int) -> int:
        return sum(map(functools.partial(_plus, index), range(EVENTS // 2)))

    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 1, False), [], found.append)
    fetcher = _Fetcher(many)
    assert look.fetch(_Fetcher.fetch, fetcher, [1, 2]) == many(1) + many(2)
    assert sys.getprofile() is None
    assert found[0]["wall_s"] > 0


@pytest.mark.parametrize(("enough_ns", "seen"), [(1, 1), (3_600_000_000_000, 3)])
def test_no_more_batches_are_looked_into_once_looking_has_added_enough(monkeypatch, enough_ns, seen):
    """A batch with many calls takes several times as long, and one of them tells as much as three with few."""
    monkeypatch.setattr(batch_look, "ENOUGH_ADDED_NS", enough_ns)
    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 3, False), [], found.append)
    fetcher = _Fetcher(lambda index: sum(map(functools.partial(_plus, index), range(1000))))
    while not look.done:
        look.fetch(_Fetcher.fetch, fetcher, [1, 2])
    assert max(document["seen"] for document in found) == seen


@pytest.mark.parametrize(("most_ns", "looked"), [(1, 1), (3_600_000_000_000, PATIENCE)])
def test_a_slow_batch_is_not_waited_for_at_any_price(monkeypatch, most_ns, looked):
    monkeypatch.setattr(batch_look, "MOST_IN_VAIN_NS", most_ns)
    look = BatchLook(Order(1, 3, True), [Usual(100_000, 100_000, 0)] * 7 + [Usual(60_000_000_000, 1, 0)], _unheard)
    fetcher, made = _Fetcher(lambda index: sum(map(functools.partial(_plus, index), range(1000)))), 0
    while not look.done:
        look.fetch(_Fetcher.fetch, fetcher, [1, 2])
        made += 1
    assert made == looked


def _unheard(document: dict[str, Any]) -> None:
    raise AssertionError(document)


def _plus(one: int, other: int) -> int:
    return one + other


def _loops(index: int) -> int:
    for _ in range(EVENTS // 2):
        index += 1
    return index


def _pads(items: list[int]) -> int:
    total = 0
    for _ in range(2 * EVENTS):
        total += 1
    return sum(items) + total


def test_both_functions_that_hold_the_time_have_their_lines():
    """A batch is looked into for few lines, and the items' loop alone has more than that."""
    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 1, False), [], found.append)
    fetcher = _Fetcher(_loops)
    fetcher.collate_fn = _pads
    while not look.done:
        look.fetch(_Fetcher.fetch, fetcher, [1, 2, 3])
    lines = {
        spot["function"]: spot["line"] - by.__code__.co_firstlineno
        for by in (_loops, _pads)
        for spot in found[-1]["spots"]
        if spot["function"] == by.__name__
    }
    assert lines["_loops"] in (1, 2)
    assert lines["_pads"] in (2, 3)


def test_lines_are_timed_once_more_where_what_is_waited_for_was_there() -> None:
    """Of a lock that others hold now and then, the one batch whose lines are timed may meet nothing."""
    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 2, False), [], found.append)
    lock, asked = threading.Lock(), [0]

    def guarded(index: int) -> int:
        asked[0] += 1
        if asked[0] != 3:  # the batch after those that are looked into
            threading.Timer(0.03, lock.release).start() if lock.acquire() else None
        return _with(lock, index)

    fetcher = _Fetcher(guarded)
    while not look.done:
        look.fetch(_Fetcher.fetch, fetcher, [1])
        time.sleep(0.05)
    assert asked[0] == 4
    [spot] = [spot for spot in found[-1]["spots"] if spot["function"] == "_with"]
    assert spot["line"] == _with.__code__.co_firstlineno + 1


def _with(lock: threading.Lock, index: int) -> int:
    with lock:
        index += 1
    return sum([index])


def test_slow_items_are_told_by_their_index(probe):
    loader = _loader(data.OftenCostly(), 0)
    batches, records, _ = _look(probe, loader, rule="slow-batches")
    assert _same(batches, list(_loader(data.Costly(), 0)))  # the same items
    look = [record for record in records if isinstance(record, CodeLook)][-1]
    assert look.items[0].index % 16 == 7
    assert look.items[0].size_bytes == 16
    spots = {spot.function: spot for spot in look.spots}  # their order is the machine's
    assert "time.sleep" in spots["OftenCostly.spend"].calls


def test_a_batch_that_is_late_by_chance_is_no_slow_one():
    """It takes ten times as long as others, for its CPU was taken away, and a tenth of what slow ones do."""
    found: list[dict[str, Any]] = []
    waits = {1: 0.005, 2: 0.0, 3: 0.4}
    look = BatchLook(
        Order(1, 1, True), [Usual(500_000, 500_000, 0)] * 7 + [Usual(4_000_000_000, 500_000, 0)], found.append
    )
    fetcher = _Fetcher(lambda index: time.sleep(waits[index]) or index)
    for index in waits:
        look.fetch(_Fetcher.fetch, fetcher, [index])
    assert found[0]["seen"] == 1
    assert found[0]["wall_s"] > 0.35


def test_what_collating_takes_without_a_profiler_is_known_first():
    """The batches are the same, nobody's profiler is active in them, and the look goes on after them."""
    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 1, False), [Usual(500_000, 500_000, 0)] * 7, found.append)
    fetcher = _Fetcher(lambda index: sys.getprofile() is not None)
    collate = fetcher.collate_fn
    profiled = [look.fetch(_Fetcher.fetch, fetcher, [index]) for index in range(PLAIN + 1)]
    assert profiled == [False] * PLAIN + [True]
    assert fetcher.collate_fn is collate
    assert [document["seen"] for document in found] == [1]


MS = 1_000_000


@pytest.mark.parametrize(
    ("usual", "waits_s"),
    [
        (Usual(40 * MS, 1 * MS, 5 * MS), 0.034),
        (Usual(9 * MS, 1 * MS, 0), 0.008),  # looked into, it meets a lock at another time
        (Usual(9000 * MS, 1 * MS, None), None),  # perhaps it had no CPU
    ],
)
def test_waits_take_as_long_as_in_batches_that_nobody_looks_into(usual: Usual, waits_s: float | None) -> None:
    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 2, False), [usual] * 16, found.append)
    fetcher = _Fetcher(lambda index: time.sleep(0.02) or index)
    while not look.done:
        look.fetch(_Fetcher.fetch, fetcher, [1])
    told = found[-1]["wall_s"] - found[-1]["cpu_s"]
    if waits_s is None:
        assert 0.04 <= told < 9.0
    else:
        assert told == pytest.approx(found[-1]["seen"] * waits_s, rel=0.01)


def test_a_look_that_meets_none_of_the_usual_waits_tells_nothing() -> None:
    """It goes on for some batches, as those that follow may."""
    found: list[dict[str, Any]] = []
    look = BatchLook(Order(1, 2, False), [Usual(90 * MS, 1 * MS, 0)] * 16, found.append)
    fetcher = _Fetcher()
    while not look.done:
        look.fetch(_Fetcher.fetch, fetcher, [1])
    assert [document["why_not"] for document in found] == [
        "batches wait for something that those that were looked into did not meet"
    ]
    late = BatchLook(Order(1, 2, False), [Usual(90 * MS, 1 * MS, 0)] * 16, found.append)
    waits = iter([0, 0, 0, 0.2, 0.05] + 10 * [0])
    fetcher = _Fetcher(lambda index: time.sleep(next(waits)) or index)
    while not late.done:
        late.fetch(_Fetcher.fetch, fetcher, [1])
    assert found[-1]["spots"]
    assert found[-1]["seen"] > 1


def test_indices_are_only_watched_where_items_are_asked_for_one_by_one():
    assert ItemTimes.of(_Fetcher(), [1, 2]) is None  # no fetcher of torch's


def test_an_order_fits_into_a_word():
    for order in (Order(1, 3, False), Order(3, 1000, True), Order(1, 1, False, True)):
        assert Order.read(order.word) == order


class _Probe:
    """Says what workers saw."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.documents = list(documents)
        self.orders: list[Order] = []
        self.ended = 0
        self.starts = StartOrders("/nowhere/answers", threading.Lock(), lambda: ())
        self.anybody = True

    def look(self, order: Order, loader: int) -> bool:
        if self.anybody:
            self.orders.append(order)
        return self.anybody

    def looked(self) -> list[dict[str, Any]]:
        found, self.documents = self.documents, []
        return found

    def look_no_more(self) -> None:
        self.ended += 1


def test_a_look_is_asked_for_once_and_again_after_another_number_of_workers():
    probe, workers = _Probe(), [2]
    source = WorkerLook(3, probe, lambda: (workers[0], 0))
    source.request("slow-callback", 100)
    source.request("prep-stall", MIN_STEPS - 1)
    assert probe.orders == []
    source.request("prep-stall", MIN_STEPS)
    source.request("prep-stall", 200)
    assert probe.orders == [Order(1, 3, False)]
    probe.documents = [{"order": 1, "why_not": "a debugger is active"}]
    assert [type(record) for record in source.sample(1.0)] == [Event]
    source.request("fetch-stall", 300)
    assert len(probe.orders) == 1
    workers[0] = 4
    source.request("fetch-stall", 400)
    assert probe.orders[1:] == [Order(2, 3, False)]


@pytest.mark.parametrize("known", [True, False])
def test_where_nobody_makes_batches_it_is_asked_for_again(known):
    """As between two epochs: the next verdict comes seconds later, when an epoch of few batches is over."""
    probe = _Probe()
    numbers: list[tuple[int, int] | None] = [(2, 0) if known else None]
    source = WorkerLook(3, probe, lambda: numbers[0])
    probe.anybody = not known
    source.request("prep-stall", MIN_STEPS)
    assert source.sample(1.0) == []
    assert probe.orders == []
    probe.anybody, numbers[0] = True, (2, 0)
    assert source.sample(2.0) == []
    assert source.sample(3.0) == []
    assert probe.orders == [Order(1, 3, False)]


def test_another_cause_takes_it_back():
    """The look would tell nothing of it."""
    probe = _Probe()
    probe.anybody = False
    source = WorkerLook(3, probe, lambda: (2, 0))
    source.request("prep-stall", MIN_STEPS)
    source.request("slow-callback", MIN_STEPS)
    probe.anybody = True
    assert source.sample(1.0) == []
    assert probe.orders == []


def test_where_steps_are_long_a_look_comes_after_fewer():
    """A run of some seconds has a dozen of them."""
    probe = _Probe()
    source = WorkerLook(3, probe, lambda: (2, 0))
    assert source.sample(100.0) == []
    source.request("prep-stall", FEW_STEPS)
    assert source.sample(100.0 + AFTER_S) == []
    source.request("prep-stall", FEW_STEPS - 1)
    assert probe.orders == []
    source.request("prep-stall", FEW_STEPS)
    assert probe.orders == [Order(1, 3, False)]


def test_since_when_batches_may_have_been_looked_into_is_told():
    """Since the order at the latest: they take longer, and what waits for them does."""
    document = {"order": 1, "seen": 1, "done": True, "item_s": None, "items": []}
    times = {"wall_s": 0.1, "cpu_s": 0.1, "added_s": 0.5}
    places: dict[str, Any] = {name: [] for name in ("spots", "stacks", "repeated", "unvarying")}
    probe = _Probe()
    source = WorkerLook(3, probe, lambda: (2, 0))
    assert source.sample(7.0) == []
    source.request("prep-stall", 100)
    probe.documents = [{**document, **times, **places}]
    [look] = source.sample(9.0)
    assert isinstance(look, CodeLook)
    assert (look.since_s, look.time_s) == (7.0, 9.0)


def test_without_an_answer_the_order_is_taken_back():
    probe = _Probe()
    source = WorkerLook(3, probe, lambda: (2, 0))
    source.request("prep-stall", 100)
    assert source.sample(0.0) == []
    assert source.sample(1000.0) == []
    assert probe.ended == 1


class _Sparse(torch.utils.data.Dataset):
    """Items whose size cannot be asked for, or is a question that fails."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> list[Any]:
        return [torch.eye(4).to_sparse(), _Asked()]


class _Asked(np.ndarray):
    def __new__(cls) -> _Asked:
        return np.zeros(2).view(cls)

    @property
    def nbytes(self) -> int:
        raise ValueError("no such thing")


_Asked.__module__ = "numpy.of_a_user"


@pytest.mark.parametrize("workers", [0, 1])
def test_items_of_which_no_size_is_told_do_not_cost_the_batch(probe, workers):
    loader = _loader(_Sparse(), workers, collate_fn=len)
    assert _look(probe, loader, "slow-batches")[0] == [4] * 16
