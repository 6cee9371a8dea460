"""Handlers of an engine, each with a span of its own; the engine is a stand-in with Ignite's lists."""

from __future__ import annotations

import copy
import functools
import pickle
import weakref
from collections import defaultdict
from typing import Any

import pytest

from stallmeter.engine.guard import Guard
from stallmeter.ignite.handlers import Timed, in_handler, runs_of_neptune, time_handlers
from stallmeter.timing.ledger import CALLBACKS, CHECKPOINT, LOGGING, Ledger, Span

from ..conftest import FakeTime


class Engine:
    """Fires an event as Ignite does."""

    def __init__(self) -> None:
        self._event_handlers: dict[str, list[Any]] = defaultdict(list)

    def on(self, event: str, handler: Any, *args: Any) -> None:
        self._event_handlers[event].append((handler, args, {}))

    def fire(self, event: str) -> None:
        for handler, args, kwargs in self._event_handlers[event]:
            handler(*args, **kwargs)


class BaseLogger:
    """As Ignite's."""


class MLflowLogger(BaseLogger):
    pass


class NeptuneLogger(BaseLogger):
    experiment = "their run"


class ProgressBar(BaseLogger):
    pass


class Saver:
    def __init__(self, time: FakeTime) -> None:
        self.time = time

    def __call__(self) -> None:
        self.time.sleep(1.0)


Saver.__module__ = "ignite.handlers.checkpoint"


class Metric:
    def __init__(self, time: FakeTime) -> None:
        self.time = time

    def completed(self) -> None:
        self.time.sleep(2.0)


@pytest.fixture
def ledger(fake_time: FakeTime) -> Ledger:
    return Ledger(now=fake_time)


def seconds(ledger: Ledger) -> dict[tuple[int, str | None], float]:
    ledger.settle()
    return {ledger.slots[slot]: spent / 1e9 for slot, spent in enumerate(ledger.acc) if spent}


def test_each_handler_stands_under_its_name(fake_time: FakeTime, ledger: Ledger) -> None:
    def plain() -> None:
        fake_time.sleep(4.0)

    @functools.wraps(plain)
    def every_second() -> None:
        plain()

    every_second._parent = weakref.ref(plain)  # type: ignore[attr-defined]
    report = functools.partial(fake_time.sleep, 8.0)
    engine = Engine()
    for handler in (every_second, Metric(fake_time).completed, Saver(fake_time)):
        engine.on("done", handler)
    engine.on("done", lambda _: report(), MLflowLogger())
    engine.on("done", lambda _: fake_time.sleep(0.5), ProgressBar())
    time_handlers(engine, lambda: ledger, Guard(lambda _: None))
    engine.fire("done")
    assert seconds(ledger) == {
        (CALLBACKS, "plain"): 4.0,
        (CALLBACKS, "Metric"): 2.0,
        (CHECKPOINT, "Saver"): 1.0,
        (LOGGING, "MLflowLogger"): 8.0,
        (CALLBACKS, "<lambda>"): 0.5,
    }


def test_where_the_ledger_is_not_ours_to_move_nothing_is_timed(fake_time: FakeTime, ledger: Ledger) -> None:
    engine = Engine()
    engine.on("done", lambda: fake_time.sleep(4.0))
    time_handlers(engine, lambda: None, Guard(lambda _: None))
    engine.fire("done")
    assert list(seconds(ledger)) == [(0, None)]


def test_a_handler_that_cannot_be_named_is_called(fake_time: FakeTime, ledger: Ledger) -> None:
    class Proxy:
        called = 0

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("not for you")

        def __call__(self) -> None:
            Proxy.called += 1

    engine = Engine()
    engine.on("done", Proxy())
    time_handlers(engine, lambda: ledger, Guard(lambda _: None))
    engine.fire("done")
    engine.fire("done")
    assert Proxy.called == 2


def test_an_exception_closes_the_span(fake_time: FakeTime, ledger: Ledger) -> None:
    engine = Engine()
    engine.on("done", lambda: 1 / 0)
    time_handlers(engine, lambda: ledger, Guard(lambda _: None))
    with pytest.raises(ZeroDivisionError) as raised:
        engine.fire("done")
    del raised
    assert len(ledger.stack) == 1


def test_what_undoes_it_leaves_plain_lists(ledger: Ledger) -> None:
    engine = Engine()
    engine.on("done", print)
    engine.on("begun", print)
    undo = time_handlers(engine, lambda: ledger, Guard(lambda _: None))
    assert all(type(found) is Timed for found in engine._event_handlers.values())
    engine.on("done", repr)  # by a handler, while it runs
    engine._event_handlers["begun"] = others = []  # as Ignite does when one is removed
    assert type(copy.deepcopy(engine._event_handlers["done"])) is list
    assert type(pickle.loads(pickle.dumps(engine._event_handlers["done"]))) is list
    undo()
    assert type(engine._event_handlers["done"]) is list
    assert [handler for handler, _, _ in engine._event_handlers["done"]] == [print, repr]
    assert engine._event_handlers["begun"] is others


def test_an_engine_of_another_kind_is_left_alone(ledger: Ledger) -> None:
    time_handlers(object(), lambda: ledger, Guard(lambda _: None))()


def test_what_is_inside_a_handler(ledger: Ledger) -> None:
    assert not in_handler(ledger)
    with Span(ledger, ledger.slot(CALLBACKS, "run_validation")):
        assert in_handler(ledger)


def test_neptunes_runs_are_found_once() -> None:
    engine, logger = Engine(), NeptuneLogger()
    engine.on("done", print, logger)
    engine.on("begun", print, logger, MLflowLogger())
    assert runs_of_neptune(engine) == ["their run"]
