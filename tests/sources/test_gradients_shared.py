"""Backward passes through one graph, found in real training loops."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from stallmeter.records import RepeatedBackward
from stallmeter.sources.gradients.shared import FIRST_STEP, LOOKS, MOST_NODES, TRIES, SharedGraphSource

from .boundaries import Boundaries


class Bench(Boundaries):
    """Each question for the time is a second later."""

    def __init__(self) -> None:
        super().__init__(partial(next, count(step=1_000_000)))
        self.errors: list[BaseException] = []
        self.source = SharedGraphSource(self.register, self.guard, now=lambda: float(next(self.seconds)))
        self.seconds = count()

    def guard(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as exc:
            self.errors.append(exc)
            return None

    def told(self) -> RepeatedBackward | None:
        found = self.source.sample(0.0)
        assert len(found) < 2
        return found[0] if found else None


USUAL = torch.autograd.backward


@pytest.fixture
def bench() -> Any:
    made = Bench()
    yield made
    made.source.close()
    assert torch.autograd.backward is USUAL
    assert made.errors == []


class Model(nn.Module):
    """A trunk of eight layers and two heads of one."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.Tanh())]
        self.trunk, self.a, self.b = nn.Sequential(*layers), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: Any) -> tuple[Any, Any]:
        made = self.trunk(x)
        return self.a(made).pow(2).mean(), self.b(made).abs().mean()


Step = Callable[[Model, torch.optim.Optimizer], object]


def train(bench: Bench, step: Step, steps: int = FIRST_STEP + LOOKS + 2) -> RepeatedBackward | None:
    """Train as the program does; the newest that was told."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = None
    for _ in range(steps):
        bench.boundary()
        step(model, optimizer)
        found = bench.told() or found
    bench.boundary()
    return bench.told() or found


def losses(model: Model) -> tuple[Any, Any]:
    a, b = model(torch.randn(4, 8))
    return a, b


def one_after_the_other(model: Model, optimizer: torch.optim.Optimizer) -> None:
    a, b = losses(model)
    optimizer.zero_grad()
    a.backward(retain_graph=True)
    b.backward()
    optimizer.step()


def by_name(model: Model, optimizer: torch.optim.Optimizer) -> None:
    a, b = losses(model)
    optimizer.zero_grad()
    torch.autograd.backward([a], retain_graph=True)
    torch.autograd.backward(tensors=b)
    optimizer.step()


def in_a_loop(model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for loss in losses(model):
        loss.backward(retain_graph=True)
    optimizer.step()


@pytest.mark.parametrize("step", [one_after_the_other, by_name, in_a_loop])
def test_what_both_go_through_is_gone_through_again(bench, step):
    """Of two passes: a second, one until the second gets there, and one from there on."""
    found = train(bench, step)
    assert found is not None
    assert (found.steps, found.passes) == (LOOKS, 2)
    assert found.backward_s == pytest.approx(3.0)
    assert found.again_s == pytest.approx(1.0)
    assert found.file.endswith("test_gradients_shared.py")
    assert found.function == step.__name__


def at_once(model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    sum(losses(model)).backward()  # type: ignore[attr-defined]
    optimizer.step()


def of_two_batches(model: Model, optimizer: torch.optim.Optimizer) -> None:
    (a, _), (_, b) = losses(model), losses(model)
    optimizer.zero_grad()
    a.backward(retain_graph=True)
    b.backward()
    optimizer.step()


def the_second_is_made_later(model: Model, optimizer: torch.optim.Optimizer) -> None:
    made = model.trunk(torch.randn(4, 8))
    optimizer.zero_grad()
    model.a(made).mean().backward(retain_graph=True)
    model.b(made).mean().backward()
    optimizer.step()


def cleared_in_between(model: Model, optimizer: torch.optim.Optimizer, *, to_none: bool = True) -> None:
    a, b = losses(model)
    a.backward(retain_graph=True)
    optimizer.zero_grad(set_to_none=to_none)
    b.backward()
    optimizer.step()


@pytest.mark.parametrize(
    "step",
    [
        at_once,
        of_two_batches,
        the_second_is_made_later,
        cleared_in_between,
        partial(cleared_in_between, to_none=False),
    ],
    ids=["their sum", "two batches", "made later", "cleared", "made zero"],
)
def test_what_one_pass_could_not_do_is_none(bench, step):
    """Other graphs, a loss that was not there yet, and gradients that are wanted apart."""
    found = train(bench, step)
    assert found is not None
    assert found.steps == LOOKS
    assert found.again_s == 0.0
    assert found.file == ""


def test_gradients_are_the_same(bench):
    """And torch's own function is called outside the steps that are looked at."""

    def trained(bench: Bench | None) -> list[Any]:
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(FIRST_STEP + LOOKS):
            if bench is not None:
                bench.boundary()
            one_after_the_other(model, optimizer)
        return [*model.parameters()]

    assert all(map(torch.equal, trained(None), trained(bench)))
    bench.boundary()
    assert torch.autograd.backward is USUAL


def test_a_graph_that_is_too_large_is_left_alone(bench):
    """Nothing is known of it then."""

    def large(model: Model, optimizer: torch.optim.Optimizer) -> None:
        a, b = losses(model)
        for _ in range(MOST_NODES):
            a = a + 0.0
        a.backward(retain_graph=True)
        b.backward()

    found = train(bench, large, FIRST_STEP + 2)
    assert found is not None
    assert found.again_s == 0.0


def test_nothing_is_kept_alive(bench):
    """A graph that is kept holds what the forward pass has made."""

    class Kept:
        pass

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.kept = Kept()
            kept.append(weakref.ref(ctx.kept))
            return 2.0 * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 2.0 * grad

    kept: list[weakref.ref[Kept]] = []

    def step(model: Model, optimizer: torch.optim.Optimizer) -> None:
        a, b = (Doubled.apply(loss) for loss in losses(model))
        a.backward(retain_graph=True)
        b.backward()
        del a, b
        gc.collect()
        assert kept[-1]() is None

    assert train(bench, step) is not None


def test_a_loop_without_a_backward_pass_is_asked_so_often(bench):
    """Then it is over, and nothing is told."""
    assert train(bench, lambda model, optimizer: losses(model), FIRST_STEP + TRIES + 2) is None
    assert torch.autograd.backward is USUAL


def test_who_has_put_another_one_around_it_keeps_it(bench):
    """Ours stays in it and does nothing."""
    for _ in range(FIRST_STEP + 1):
        bench.boundary()
    ours = torch.autograd.backward
    assert ours is not USUAL
    calls: list[object] = []

    def around(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return ours(*args, **kwargs)

    torch.autograd.backward = around
    try:
        bench.boundary()
        assert torch.autograd.backward is around
        weight = torch.ones(1, requires_grad=True)
        weight.sum().backward()
        assert calls
        assert weight.grad is not None
    finally:
        bench.source.close()
        torch.autograd.backward = USUAL
