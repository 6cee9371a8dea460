"""When backward passes began and ended."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stallmeter.sources.backward import BackwardPasses


class FakeTorch:
    """Its backward pass takes five nanoseconds of the clock below."""

    def __init__(self) -> None:
        self.ticks = itertools.count(100, 5)
        self.compiles = False
        self.fails = False
        self.autograd: Any = SimpleNamespace(backward=self.own)
        compiler = SimpleNamespace(is_compiling=lambda: self.compiles)
        self.modules = {"torch": SimpleNamespace(compiler=compiler), "torch.autograd": self.autograd}

    def own(self, value: int) -> int:
        if self.fails:
            raise ValueError(value)
        return value + 1

    def passes(self) -> BackwardPasses:
        return BackwardPasses(self.modules, clock=lambda: next(self.ticks))


def test_passes_are_noted_from_begin_on():
    fake = FakeTorch()
    passes = fake.passes()
    assert fake.autograd.backward(1) == 2
    passes.begin()
    passes.begin()
    assert fake.autograd.backward(1) == 2
    fake.fails = True
    with pytest.raises(ValueError):
        fake.autograd.backward(1)
    assert passes.around([99, 100, 103, 105, 106, 110, 115, 116]) == [
        None, (100, 105), (100, 105), (100, 105), None, (110, 115), (110, 115), None,
    ]  # fmt: skip


def test_nothing_is_noted_while_a_graph_is_traced():
    fake = FakeTorch()
    passes = fake.passes()
    passes.begin()
    fake.compiles = True
    assert fake.autograd.backward(1) == 2
    assert passes.around([100]) == [None]


def test_what_was_there_is_put_back_unless_somebody_else_stands_there():
    fake = FakeTorch()
    own = fake.autograd.backward
    passes = fake.passes()
    passes.begin()
    passes.close()
    assert fake.autograd.backward == own
    passes.begin()
    assert fake.autograd.backward == own
    second = fake.passes()
    second.begin()
    ours = fake.autograd.backward
    fake.autograd.backward = theirs = lambda value: ours(value)
    second.close()
    assert fake.autograd.backward is theirs
    assert theirs(1) == 2
    assert second.around([100]) == [None]


def test_without_torch_nothing_happens():
    passes = BackwardPasses({})
    passes.begin()
    passes.close()
    assert passes.around([1]) == [None]


def test_torchs_own_pass():
    passes, own = BackwardPasses(), torch.autograd.backward
    passes.begin()
    try:
        weight = torch.ones(3, requires_grad=True)
        (2 * weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [2.0, 2.0, 2.0]
        assert len(passes._passes) == 1
    finally:
        passes.close()
    assert torch.autograd.backward is own
