"""What a checkpoint computes again: in stacks made by hand, and in those of real backward passes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from stallmeter.machine.frames import Stack, stack_of
from stallmeter.sources.code.fold import Frame, Seen
from stallmeter.sources.code.recomputed import FILE, recomputed
from stallmeter.sources.code.whose import Function, Whose

WHOSE = Whose([Path(__file__).parent])
MAIN = Function("main", "train.py", True)
NET = Function("Net.forward", "train.py", True)


def of_torch(name: str, file: str = FILE) -> Function:
    return Function(name, file, False, package="torch")


BACKWARD = of_torch("backward", "torch/autograd/__init__.py")
REENTRANT = of_torch("CheckpointFunction.backward")
UNPACKS = of_torch("_checkpoint_hook.__init__.<locals>.unpack_hook")
AGAIN = of_torch("_checkpoint_without_reentrant_generator.<locals>.recompute_fn")


def seen(*functions: Function) -> Seen:
    return Seen(tuple(Frame(function, 1) for function in functions), 0.1)


@pytest.mark.parametrize(
    "stack",
    [
        (MAIN, BACKWARD, UNPACKS, AGAIN, NET),
        (MAIN, BACKWARD, UNPACKS),
        (MAIN, BACKWARD, REENTRANT, NET),
        (MAIN, BACKWARD, REENTRANT),
        (MAIN, BACKWARD, REENTRANT, BACKWARD, REENTRANT, NET),
        (MAIN, BACKWARD, REENTRANT, NET, BACKWARD),  # a model that needs gradients of its own: all of it is made again
    ],
)
def test_a_second_computation(stack: tuple[Function, ...]) -> None:
    assert recomputed([seen(*stack)])


@pytest.mark.parametrize(
    "stack",
    [
        (MAIN, NET),
        (MAIN, BACKWARD),
        (MAIN, of_torch("checkpoint"), NET),
        (MAIN, of_torch("CheckpointFunction.forward"), NET),
        (MAIN, of_torch("_checkpoint_hook.__init__.<locals>.pack_hook")),
        (MAIN, BACKWARD, REENTRANT, BACKWARD),
        (MAIN, BACKWARD, Function("unpack_hook", "train.py", True)),  # the user's own way to keep less
    ],
)
def test_no_second_computation(stack: tuple[Function, ...]) -> None:
    assert not recomputed([seen(*stack)])


class Part(torch.nn.Module):
    """Tells when it computes forward, and when its gradient is."""

    def __init__(self, looks: Callable[[], None]) -> None:
        super().__init__()
        self.layer, self.looks = torch.nn.Linear(2, 2), looks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.looks()
        return Watched.apply(torch.tanh(self.layer(x)), self.looks)


class Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, looks):
        ctx.looks = looks
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, given):
        assert len(ctx.saved_tensors) == 1  # by which a checkpoint is asked
        ctx.looks()
        return given, None


@pytest.mark.parametrize("reentrant", [True, False])
def test_real_checkpoints(reentrant: bool) -> None:
    """Forward, once more forward in the backward pass, and backward: only the second one is made again."""
    stacks: list[Stack] = []
    me = threading.get_ident()
    part = Part(lambda: stacks.append(stack_of(me)))
    made = checkpoint(part, torch.ones(1, 2, requires_grad=True), use_reentrant=reentrant)
    made.sum().backward()
    told = [Seen(tuple(Frame(WHOSE.code(code), 1) for code, _ in stack), 1.0) for stack in stacks]
    assert [bool(recomputed([one])) for one in told] == [False, True, False]
