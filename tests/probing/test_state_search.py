"""Models and optimizers behind a step function are found wherever it names them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from stallmeter.probing.state_search import find_stateful

NETWORK = nn.Linear(2, 1)
OPTIMIZER = torch.optim.SGD(NETWORK.parameters(), lr=0.1)
PARTS = {"both": [NETWORK, OPTIMIZER]}


def by_global(batch: Any) -> None:
    NETWORK(batch).sum().backward()
    OPTIMIZER.step()


def by_helper(batch: Any) -> None:
    by_global(batch)


def by_container(batch: Any) -> None:
    for part in PARTS["both"]:
        part(batch)


def by_inner_function(batch: Any) -> None:
    def closure() -> Any:
        return NETWORK(batch).sum()

    OPTIMIZER.step(closure)


def by_argument(batch: Any, network: Any = NETWORK, *, optimizer: Any = OPTIMIZER) -> None:
    network(batch)
    optimizer.step()


def by_closure() -> Any:
    network, optimizer = NETWORK, OPTIMIZER

    def step(batch: Any) -> None:
        network(batch)
        optimizer.step()

    return step


class Owner:
    def __init__(self) -> None:
        self.parts = {"network": NETWORK}
        self.optimizer = OPTIMIZER

    def step(self, batch: Any) -> None:
        self.parts["network"](batch)
        self.optimizer.step()

    __call__ = step


def decorated() -> Any:
    @functools.wraps(by_global)
    def step(batch: Any) -> None:
        by_global(batch)

    return step


@pytest.mark.parametrize(
    "function",
    [
        by_global,
        by_helper,
        by_container,
        by_inner_function,
        by_argument,
        by_closure(),
        Owner().step,
        Owner(),
        functools.partial(lambda batch, parts: parts[0](batch), parts=(NETWORK, OPTIMIZER)),
        functools.partial(by_global),
        decorated(),
    ],
)
def test_found(function: Any) -> None:
    assert {id(thing) for thing in find_stateful(function)} == {id(NETWORK), id(OPTIMIZER)}


def test_nothing_to_find() -> None:
    assert find_stateful(lambda batch: batch) == []
    assert find_stateful(print) == []


def test_a_class_that_is_named_is_no_object() -> None:
    assert find_stateful(lambda: nn.Linear(1, 1)) == []
