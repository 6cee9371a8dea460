"""Steps of torch's optimizers, heard of on the thread that makes them."""

from __future__ import annotations

import torch

from stallmeter.sources.optimizers import has_closure, hear_steps, is_compiling


def test_every_step_is_told_until_the_hooks_are_taken_back() -> None:
    told: list[str] = []
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones(2)
    handles = hear_steps(
        lambda which, *_: told.append(f"before {which is optimizer} {float(parameter.detach()[0]):.1f}"),
        lambda which, *_: told.append(f"after {which is optimizer} {float(parameter.detach()[0]):.1f}"),
    )
    optimizer.step()
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert told == ["before True 1.0", "after True 0.9"]


def test_nothing_is_traced_here() -> None:
    assert is_compiling()() is False


def test_a_step_that_is_given_a_closure_is_known() -> None:
    """By its place or by its name; a step without one has no argument, or None."""
    told: list[bool] = []
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    handles = hear_steps(lambda *step: told.append(has_closure(*step)), lambda *_: None)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = parameter.sum()
        loss.backward()
        return loss

    try:
        optimizer.step(closure)
        optimizer.step(closure=closure)
        optimizer.step()
        optimizer.step(None)
    finally:
        for handle in handles:
            handle.remove()
    assert told == [True, True, False, False]


def test_an_optimizer_that_can_be_called_is_no_closure() -> None:
    class Callable(torch.optim.SGD):
        def __call__(self) -> None:
            self.step()

    optimizer = Callable([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    assert not has_closure(optimizer, (optimizer,), {})
    assert has_closure(optimizer, (optimizer, lambda: 0.0), {})
