"""Hooks of gradients, as torch calls them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from stallmeter.machine.frames import stack_of
from stallmeter.sources.code.beside import model_and_gradients_s
from stallmeter.sources.code.fold import Frame, Seen
from stallmeter.sources.code.hooks import in_functions, in_hooks_of_gradients
from stallmeter.sources.code.whose import Whose

WHOSE = Whose([Path(__file__).parent])


class Net(torch.nn.Module):
    """Two layers; the second one is called through a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        self.called: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.again, Doubled.apply(self.first(x), self), use_reentrant=False)

    def again(self, x: torch.Tensor) -> torch.Tensor:
        self.called()
        return self.second(x)


class Doubled(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, net: Net) -> torch.Tensor:
        ctx.net = net
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        ctx.net.called()
        return grad * 2, None


def looks_in(register: Callable[[Net, Callable[..., None]], object], *, own: bool = True) -> list[Seen]:
    """The stacks at which a hook stands, and what the net itself calls in the backward pass, with ``own=False``."""
    net, found = Net(), []

    def look(*_: object) -> None:

        stack = stack_of(threading.get_ident())
        frames = [Frame(WHOSE.code(code), 1) for code, _ in stack if code is not look.__code__]
        at = next(i for i, frame in enumerate(frames) if frame.function.name.endswith("looks_in"))
        found.append(Seen(tuple(frames[at:]), 0.1))

    def hook(*given: object) -> None:
        look()

    register(net, hook)
    loss = net(torch.randn(2, 3)).sum()
    if not own:
        net.called = look
    loss.backward()
    assert found
    return found


KINDS: dict[str, Callable[[Net, Callable[..., None]], object]] = {
    "of a tensor": lambda net, hook: net.first.weight.register_hook(hook),
    "of a parameter": lambda net, hook: net.first.weight.register_post_accumulate_grad_hook(hook),
    "of a module": lambda net, hook: net.first.register_full_backward_hook(hook),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_is_found_whatever_it_hangs_on(kind: str) -> None:
    seen = looks_in(KINDS[kind])
    assert in_hooks_of_gradients(seen) == seen
    assert model_and_gradients_s(seen) == (0, 0)


def test_what_computes_gradients_itself_is_no_hook() -> None:
    """The backward of a function of one's own, and a forward pass that a checkpoint makes again."""
    seen = looks_in(lambda net, hook: None, own=False)
    assert len(seen) >= 2
    assert in_hooks_of_gradients(seen) == []
    assert model_and_gradients_s(seen)[1] == pytest.approx(0.1 * len(seen))


def test_an_optimizer_that_follows_each_gradient_is_the_training() -> None:
    stack = looks_in(KINDS["of a parameter"])[0].stack
    step = WHOSE.code(torch.optim.SGD.step.__wrapped__.__code__)  # type: ignore[attr-defined]
    assert in_hooks_of_gradients([Seen((*stack, Frame(step, 1)), 0.1)]) == []


def test_without_a_backward_pass_nothing_is_a_hook() -> None:
    here = Frame(WHOSE.code(sys._getframe().f_code), 1)
    assert in_hooks_of_gradients([Seen((here,), 0.1), Seen((), 0.1)]) == []


class _Seen(torch.autograd.Function):
    """Notes where it stands, forward and backward."""

    stacks: list[tuple[Any, ...]] = []  # noqa: RUF012 - torch calls the class, and no instance

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _Seen.stacks.append(stack_of(threading.get_ident()))
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        _Seen.stacks.append(stack_of(threading.get_ident()))
        return grad * 2


def test_autograd_functions_of_ones_own_are_found_forward_and_backward() -> None:
    _Seen.stacks = []
    _Seen.apply(torch.ones(3, requires_grad=True)).sum().backward()
    seen = [Seen(tuple(Frame(WHOSE.code(code)) for code, _ in stack), 0.1) for stack in _Seen.stacks]
    found = [next(f.function.name for f in one.stack if "_Seen." in f.function.name) for one in in_functions(seen)]
    assert found == ["_Seen.forward", "_Seen.backward"]


def test_what_a_module_of_ones_own_does_is_none() -> None:
    stacks: list[tuple[Any, ...]] = []
    net = Net()
    net.called = lambda: stacks.append(stack_of(threading.get_ident()))
    net.again(torch.ones(3))
    seen = [Seen(tuple(Frame(WHOSE.code(code)) for code, _ in stack), 0.1) for stack in stacks]
    assert len(seen) == 1
    assert in_functions(seen) == []
