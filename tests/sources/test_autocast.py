"""Autocast on a CPU, asked within the steps of real modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from stallmeter.sources.autocast import DUE, MOST_CALLS, AutocastSource, _asks

from .boundaries import Boundaries

HOOKS = torch_modules._global_forward_pre_hooks


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = dict(HOOKS)
    yield
    assert dict(HOOKS) == before


class Bench(Boundaries):
    """Steps of a loop, and what is called between them."""

    def __init__(self, **modules: Any) -> None:
        super().__init__()
        known = {"torch": torch, "torch.nn.modules.module": torch_modules, **modules}
        self.source = AutocastSource(self.register, known, lambda: {"bfloat16": False})

    def step(self, index: int, work: Callable[[], object]) -> str | None:
        """Do a step's work; returns what is told of it."""
        for at in (index, index + 1):
            self.boundary(at)
            if at == index:
                work()
        told = self.source.sample(0.0)
        return told[0].kind if told else None


LAYER = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
BATCH = torch.ones(1, 2)


def plain() -> None:
    LAYER(BATCH)


def around() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        LAYER(BATCH)


class Within(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return LAYER(x)


def test_around_the_model() -> None:
    bench = Bench()
    assert bench.step(3, around) is None
    assert bench.step(DUE[0], around) == "bfloat16"
    assert bench.calls == []


def test_within_the_model() -> None:
    assert Bench().step(DUE[0], lambda: Within()(BATCH)) == "bfloat16"


def test_without_it_is_asked_three_times() -> None:
    bench = Bench()
    assert [bench.step(at, plain) for at in DUE] == ["", "", ""]
    assert bench.calls == []


def test_begun_late() -> None:
    bench = Bench()
    assert [bench.step(DUE[0], plain), bench.step(DUE[1], around)] == ["", "bfloat16"]


def test_disabled() -> None:
    def off() -> None:
        with torch.autocast("cpu", enabled=False):
            LAYER(BATCH)

    assert Bench().step(DUE[0], off) == ""


def test_a_step_that_calls_no_module_tells_nothing() -> None:
    assert Bench().step(DUE[0], lambda: None) is None


def test_many_calls_are_not_all_asked() -> None:
    def many() -> None:
        for _ in range(MOST_CALLS):
            plain()
        assert len(HOOKS) == 0

    assert Bench().step(DUE[0], many) == ""


def test_what_is_compiled_is_left_alone() -> None:
    bench = Bench(**{"torch._dynamo.convert_frame": SimpleNamespace(FRAME_COMPILE_COUNTER={0: 1})})
    assert [bench.step(at, around) for at in DUE] == [None, None, None]


def test_without_torch() -> None:
    assert Bench(torch=None).step(DUE[0], plain) is None


def test_closed_within_a_step() -> None:
    bench = Bench()
    bench.clock.index = DUE[0]
    bench.calls[0](bench.clock)
    assert len(HOOKS) == 1
    bench.source.close()
    bench.source.close()


def test_up_to_torch_2_3() -> None:
    torch_2_2 = SimpleNamespace(is_autocast_cpu_enabled=lambda: True, get_autocast_cpu_dtype=lambda: torch.float16)
    is_on, kind = _asks(torch_2_2)
    assert is_on()
    assert kind() is torch.float16


@pytest.mark.parametrize("computes", [None, {}])
def test_nobody_asks_where_it_would_tell_nothing(computes: dict[str, bool] | None) -> None:
    calls: list[object] = []
    source = AutocastSource(lambda _, call: calls.append(call), {}, lambda: computes)
    assert calls == []
    assert source.sample(0.0) == ()
    source.close()
