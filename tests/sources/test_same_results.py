"""Functions that return the same in each step, heard in real training loops."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from torch import nn

from stallmeter.records import SameResults
from stallmeter.sources.same_results import APART, ASKED, FIRST_STEP, LOOKS, MOST_EVENTS, SameResultSource

from .boundaries import Boundaries

HERE = "tests/sources/test_same_results.py"


class Bench(Boundaries):
    """Hears the functions that are named to it."""

    def __init__(self, *suspects: str) -> None:
        super().__init__(partial(next, count(step=1_000_000)))
        self.errors: list[BaseException] = []
        self.suspects = suspects
        self.asked = 0
        ticks = partial(next, count(step=1_000))
        self.source = SameResultSource(self.register, self.guard, self.wanted, now=ticks)
        whose = self.source._whose
        self.file = whose.code(Model.forward.__code__, __name__).file

    def wanted(self) -> list[tuple[str, str]]:
        self.asked += 1
        return [(self.file, name) for name in self.suspects]

    def guard(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as exc:
            self.errors.append(exc)
            return None


class Model(nn.Module):
    """Makes a table anew in each forward pass; of which kind, a test says."""

    def __init__(self, made: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16, 16))
        self.made = made
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.table()
        return (x @ self.weight).sum()

    def table(self) -> Any:
        return self.inner()

    def inner(self) -> Any:
        return self.made()


STEPS = FIRST_STEP + LOOKS * APART + 2


def train(bench: Bench, model: Model, steps: int = STEPS) -> SameResults | None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found: SameResults | None = None
    for _ in range(steps):
        bench.boundary()
        optimizer.zero_grad()
        model(torch.randn(4, 16)).backward()
        optimizer.step()
        found = next(iter(bench.source.sample(0.0)), found)
    bench.boundary()
    bench.source.close()
    assert sys.getprofile() is None
    assert bench.errors == []
    return next(iter(bench.source.sample(0.0)), found)


def sparse() -> torch.Tensor:
    return torch.eye(64).to_sparse()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.arange(100.0),
        lambda: {"a": [np.arange(50), np.ones((10, 10))], "b": "text"},
        sparse,
        lambda: sparse().to_sparse_csr(),
        lambda: torch.ones(40, 40).t()[::2],
    ],
    ids=["tensor", "arrays", "coordinates", "rows", "a view"],
)
def test_what_is_the_same_each_time_is_told(made):
    """Of the outermost function that returns it: what it calls goes with it."""
    found = train(Bench("Model.inner"), Model(made))
    assert found is not None
    assert found.function == "Model.table"
    assert found.file.endswith("test_same_results.py")
    assert found.line == Model.table.__code__.co_firstlineno
    assert (found.steps, found.calls) == (LOOKS - 1, 1)
    assert found.numbers >= 64
    assert found.call_s > 0.0


VALUES = count()


def changing() -> torch.Tensor:
    return torch.full((100,), float(next(VALUES)))


def moving() -> torch.Tensor:
    """The same numbers, each time in another column."""
    return torch.eye(64).roll(next(VALUES), 1).to_sparse()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    "made",
    [
        changing,
        moving,
        lambda: moving().to_sparse_csr(),
        lambda: torch.rand(100),
        lambda: torch.arange(10.0),
        lambda: None,
        lambda: torch.ones(100, requires_grad=True),
        lambda: (torch.arange(100.0), object()),
        lambda: torch.arange(100.0, device="meta"),
        lambda: [0] * 1000,
    ],
    ids=["another", "moved", "moved rows", "random", "few", "nothing", "learnt", "unknown", "device", "many parts"],
)
def test_what_may_be_another_is_not(made):
    """It is known then that none was found."""
    found = train(Bench("Model.inner"), Model(made))
    assert found is not None
    assert found.function == ""


def test_what_takes_longer_is_told_of_two():
    """With all its calls of a step."""

    class Two(Model):
        def table(self) -> Any:
            self.short()
            return [*(self.inner() for _ in range(3)), torch.rand(100)]

        def short(self) -> Any:
            return torch.arange(70.0)

    found = train(Bench("Model.inner", f"{Two.short.__qualname__}"), Two(lambda: torch.arange(100.0)))
    assert found is not None
    assert (found.function, found.calls) == ("Model.inner", 3)


def test_another_number_of_calls_is_not_the_same():
    """As of texts of other lengths."""

    class Often(Model):
        def table(self) -> Any:
            for _ in range(self.calls):
                self.inner()

    found = train(Bench("Model.inner"), Often(lambda: torch.arange(100.0)))
    assert found is not None
    assert found.function == ""


def test_nobody_is_heard_before_somebody_is_suspected():
    """It is asked a few times, and then it is over."""
    bench = Bench()
    assert train(bench, Model(), steps=100) == replace(SameResults(time_s=0.0, steps=0), time_s=ANY)
    assert 1 < bench.asked < 12
    for index in (10**2, 10**4, *(10**6 * 2**at for at in range(ASKED))):
        bench.boundary(index)
    assert bench.asked == ASKED
    assert bench.is_done


def test_as_long_as_it_is_not_known_nothing_is_told(monkeypatch):
    """The first looks at the stack are too few."""
    bench = Bench()
    monkeypatch.setattr(bench.source, "_suspects", lambda: None)
    assert train(bench, Model(), steps=100) is None


def test_a_program_that_measures_itself_is_left_alone():
    """Its profile function is the one that Python has room for."""
    bench, seen = Bench("Model.inner"), []

    def theirs(frame: Any, event: str, arg: Any) -> None:
        seen.append(event)

    model = Model(lambda: torch.arange(100.0))
    for _ in range(FIRST_STEP - 1):
        bench.boundary()
    sys.setprofile(theirs)
    try:
        for _ in range(20):
            bench.boundary()
            model(torch.randn(4, 16))
            assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert seen


def test_one_that_is_replaced_in_a_step_is_not_put_back():
    """Whoever has replaced it has Python's only place."""
    bench = Bench("Model.inner")
    for _ in range(FIRST_STEP):
        bench.boundary()
    assert sys.getprofile() is not None
    sys.setprofile(None)
    bench.boundary()
    assert bench.is_done
    assert sys.getprofile() is None


def test_a_step_of_very_many_calls_ends_it():
    """Hearing of them would take long."""
    bench = Bench("Model.inner")

    def many() -> Any:
        for _ in range(MOST_EVENTS):
            abs(1)
        return torch.arange(100.0)

    assert train(bench, Model(many), steps=FIRST_STEP + 3) is None
    assert bench.is_done
