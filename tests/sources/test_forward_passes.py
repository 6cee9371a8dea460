"""Numbers of 64 bits, looked for within the steps of real modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from stallmeter.engine.guard import Guard
from stallmeter.records import Convolutions, MadeWeights, WideNumbers
from stallmeter.sources import forward_passes
from stallmeter.sources.forward_passes import DUE, ForwardLook, ForwardSource

from .boundaries import Boundaries

HOOKS = torch_modules._global_forward_hooks

TELLS = hasattr((torch.ones(1, requires_grad=True) + 1.0).grad_fn, "_input_metadata")
tells = pytest.mark.skipif(not TELLS, reason="torch 2.2 does not tell what operations made")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = dict(HOOKS)
    yield
    assert dict(HOOKS) == before


class Bench(Boundaries):
    """Steps of a loop, and what is called in them."""

    def __init__(self, **modules: Any) -> None:
        super().__init__()
        known = {"torch": torch, "torch.nn.modules.module": torch_modules, **modules}
        self.failed: list[object] = []
        self.source = ForwardSource(self.register, Guard(self.failed.append), known)

    def told(self, index: int, work: Callable[[], object]) -> list[WideNumbers | MadeWeights | Convolutions]:
        """Do a step's work; returns what is told of it."""
        for at in (index, index + 1):
            self.boundary(at)
            if at == index:
                work()
        return list(self.source.sample(0.0))

    def step(self, index: int, work: Callable[[], object]) -> WideNumbers | None:
        """Return what is told of the types of numbers in a step."""
        return next((one for one in self.told(index, work) if isinstance(one, WideNumbers)), None)

    def made(self, work: Callable[[], object]) -> MadeWeights | None:
        """Return what is told of weights that are made in a step."""
        return next((one for one in self.told(DUE[0], work) if isinstance(one, MadeWeights)), None)

    def convolutions(self, work: Callable[[], object]) -> Convolutions | None:
        """Return what is told of convolutions in a step."""
        return next((one for one in self.told(DUE[0], work) if isinstance(one, Convolutions)), None)


class Attention(nn.Module):
    """Adds a bias to its scores, made by NumPy or as torch makes it."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.values = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("bias", torch.zeros(4, 4, dtype=kind))
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> Any:
        scores = x @ x.transpose(1, 2) * self.scale + self.bias
        return self.drop(scores.softmax(-1)).type_as(x) @ self.values(x)


BATCH = torch.ones(2, 4, 8)


@tells
def test_a_buffer_makes_wide_what_is_computed_with_it() -> None:
    found = Bench().step(DUE[0], lambda: Attention(torch.float64)(BATCH.clone().requires_grad_()))
    assert found is not None
    # Of 32 numbers each: the sum with the bias, the softmax and the dropout.
    assert found.wide >= 3 * 32
    assert 0.1 < found.share < 0.7
    assert not found.trained_wide
    assert (found.buffer, found.buffer_numbers) == ("Attention.bias", 16)
    assert found.operation in ("AddBackward0", "SoftmaxBackward0", "MulBackward0", "NativeDropoutBackward0")


@tells
def test_a_single_number_makes_nothing_wide() -> None:
    found = Bench().step(DUE[0], lambda: Attention(torch.float32)(BATCH.clone().requires_grad_()))
    assert found is not None
    assert (found.wide, found.operation, found.buffer) == (0, "", "")
    assert found.numbers > 0


@tells
def test_a_model_of_64_bits_is_told_as_one() -> None:
    found = Bench().step(DUE[0], lambda: nn.Linear(8, 8).double()(BATCH.double()))
    assert found is not None
    assert (found.trained_wide, found.share) == (True, 1.0)


@tells
def test_operations_are_counted_once() -> None:
    """Where the loop calls one layer after the other, each is asked for the graph so far."""
    layers = [nn.Linear(8, 8) for _ in range(3)]
    found = Bench().step(DUE[0], lambda: layers[2](layers[1](layers[0](BATCH))))
    once = Bench().step(DUE[0], lambda: nn.Sequential(*layers)(BATCH))
    assert found is not None
    assert once is not None
    assert found.numbers == once.numbers


@tells
def test_it_is_looked_again_and_no_more() -> None:
    bench = Bench()
    found = [bench.step(at, lambda: Attention(torch.float64)(BATCH.clone().requires_grad_())) for at in DUE]
    assert all(one is not None and one.wide for one in found)
    assert bench.calls == []


def test_an_evaluation_and_other_tensors_do_not_count() -> None:
    class Own(torch.Tensor):
        pass

    with torch.no_grad():
        assert Bench().step(DUE[0], lambda: Attention(torch.float64)(BATCH)) is None
    own = BATCH.double().as_subclass(Own).requires_grad_()
    assert Bench().step(DUE[0], lambda: nn.ReLU()(own)) is None


def test_what_is_compiled_is_left_alone() -> None:
    compiled = SimpleNamespace(FRAME_COMPILE_COUNTER={0: 1})
    bench = Bench(**{"torch._dynamo.convert_frame": compiled})
    assert bench.step(DUE[0], lambda: Attention(torch.float64)(BATCH)) is None


def test_without_torch() -> None:
    assert Bench(torch=None).step(DUE[0], lambda: None) is None


@tells
def test_many_calls_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_passes, "MOST_CALLS", 2)
    found = Bench().step(DUE[0], lambda: [nn.Linear(8, 8)(BATCH) for _ in range(3)])
    assert found is not None
    assert found.numbers == 2 * 64


def test_what_cannot_be_read_does_not_reach_the_program() -> None:
    class Odd(dict[str, Any]):
        def values(self) -> Any:
            raise RuntimeError("not now")

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Odd:
            return Odd(x=x)

    bench = Bench()
    assert bench.told(DUE[0], lambda: [Model()(BATCH) for _ in range(3)]) == []
    assert len(bench.failed) == 1
    assert bench.told(DUE[1], lambda: nn.Linear(8, 8)(BATCH)) == []


def test_closed_within_a_step() -> None:
    bench = Bench()
    bench.clock.index = DUE[0]
    bench.calls[0](bench.clock)
    bench.source.close()


class Recurrent(nn.Module):
    """A cell that is called six times, with a weight that is made each time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
        self.given = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(6):
            x = self.cell(x)
        return self.given(x)


def test_weights_that_are_made_at_each_use() -> None:
    found = Bench().made(lambda: Recurrent()(BATCH))
    assert found is not None
    assert (found.weights, found.made, found.passes, found.kind) == (1, 6, 1, "Orthogonal")
    assert 0.0 < found.share < 1.0


def test_weights_that_are_kept_are_made_once() -> None:
    def kept() -> None:
        model = Recurrent()
        with nn.utils.parametrize.cached():
            model(BATCH)

    found = Bench().made(kept)
    assert found is not None
    assert (found.weights, found.made) == (1, 1)


def test_weights_that_are_there() -> None:
    found = Bench().made(lambda: [nn.Linear(8, 8)(BATCH) for _ in range(3)])
    assert found is not None
    assert (found.weights, found.made, found.passes, found.kind, found.share) == (0, 0, 3, "", 0.0)


def test_a_weight_that_no_module_reads() -> None:
    """The clock moves by one whenever it is asked: once before, once after, and at both ends of the making."""
    cell = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
    look = ForwardLook(torch, torch_modules, lambda _, call, *given: call(*given), count().__next__)
    for _ in range(4):
        assert (BATCH @ cell.weight).requires_grad
    look.remove()
    found = look.made()
    assert found is not None
    assert (found.weights, found.made, found.passes, found.share) == (1, 4, 0, pytest.approx(1 / 3))


@pytest.mark.parametrize(("last", "part"), [(False, 0.0), (True, 1.0)])
def test_convolutions_of_pictures_and_how_these_lie(last: bool, part: float) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 2))
    pictures = torch.rand(2, 3, 8, 8)
    if last:
        model, pictures = model.to(memory_format=torch.channels_last), pictures.to(memory_format=torch.channels_last)
    found = Bench().convolutions(lambda: model(pictures))
    assert found is not None
    assert 0.0 < found.share < 1.0
    assert found.forward_s > 0.0
    assert found.channels_last == part


def test_convolutions_of_sounds_lie_in_one_way() -> None:
    found = Bench().convolutions(lambda: nn.Conv1d(1, 4, 3)(torch.rand(2, 1, 16)))
    assert found is not None
    assert (found.share > 0.9, found.channels_last) == (True, None)


def test_no_convolutions() -> None:
    found = Bench().convolutions(lambda: nn.Linear(4, 2)(torch.rand(2, 4)))
    assert found is not None
    assert (found.share, found.channels_last) == (0.0, None)
