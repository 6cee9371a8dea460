"""What steps change is put back in place, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stallmeter.errors import SettingError
from stallmeter.probing.snapshot import Snapshot, generators_in, random_state


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.tied = self.layers[0].weight
        self.seen = 0
        self.history: list[float] = [1.0]
        self.best: dict[str, Any] = {"loss": torch.tensor(3.0)}
        self.register_buffer("positions", torch.arange(3).expand(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.frozen(self.layers(x))


def train(network: Network, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = network(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_training_goes_on_as_if_nothing_had_been(kind: Any, warm: int) -> None:
    """The same losses with and without the steps between, whether the optimizer has a state already or not."""
    losses = []
    for probed in (False, True):
        torch.manual_seed(7)
        network = Network()
        optimizer = kind(network.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        train(network, optimizer, warm)
        if probed:
            put_back, kept = random_state(), Snapshot(network, optimizer, scheduler)
            train(network, optimizer, 4)
            scheduler.step()
            kept.restore()
            put_back()
        losses.append([*train(network, optimizer, 5), optimizer.param_groups[0]["lr"]])
    assert losses[0] == losses[1]


def test_everything_in_its_place() -> None:
    """Identity, storage, modes, gradients, counters and containers."""
    network = Network().train()
    network.layers[1].eval()
    network(torch.randn(8, 4)).sum().backward()
    weight = network.layers[0].weight
    storage, values, grad = weight.data_ptr(), weight.detach().clone(), weight.grad
    grads = grad.clone()
    history, best = network.history, network.best
    running = network.layers[1].running_mean.clone()
    kept = Snapshot(network)

    train(network, torch.optim.SGD(network.parameters(), lr=1.0), 2)
    network.eval()
    network.requires_grad_(True)
    network.layers[1].train()(torch.randn(8, 3))
    network.history.append(2.0)
    network.best["loss"].fill_(9.0)
    network.best["new"] = 1
    network.fresh = nn.Linear(1, 1)
    network.layers[0].weight = nn.Parameter(torch.zeros(3, 4))
    network.double()
    kept.restore()

    assert network.layers[0].weight is weight
    assert weight.data_ptr() == storage
    assert weight.dtype == torch.float32
    assert torch.equal(weight, values)
    assert weight.grad is grad
    assert torch.equal(grad, grads)
    assert network.tied is weight
    assert not network.frozen.weight.requires_grad
    assert network.training
    assert not network.layers[1].training
    assert torch.equal(network.layers[1].running_mean, running)
    assert network.seen == 1
    assert network.history is history
    assert history == [1.0]
    assert network.best is best
    assert list(best) == ["loss"]
    assert best["loss"] == 3.0
    assert not hasattr(network, "fresh")
    assert torch.equal(network.positions, torch.arange(3).expand(5, 3))


def test_restored_more_than_once() -> None:
    network = Network()
    optimizer = torch.optim.Adam(network.parameters())
    before = [p.detach().clone() for p in network.parameters()]
    kept = Snapshot(network, optimizer)
    for _ in range(3):
        train(network, optimizer, 2)
        kept.restore()
        assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
        assert not optimizer.state
        assert all(p.grad is None for p in network.parameters())


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


KINDS = {
    "coordinates": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "mkldnn": lambda: torch.ones(3, 3).to_mkldnn(),
}


def values_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.is_nested:
        return [part.clone() for part in tensor.unbind()]
    return [tensor.to_dense() if tensor.layout is not torch.strided else tensor.clone()]


def _skip_without(operation: Callable[[], object]) -> None:
    try:
        operation()
    except NotImplementedError as exc:
        pytest.skip(f"this torch has no {exc} for such tensors")


@pytest.mark.filterwarnings("ignore:.*(Sparse|nested tensors)")
@pytest.mark.parametrize("change", ["mul_", "zero_"])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_every_layout(kind: str, change: str) -> None:
    """Also where places are dropped, and more than once."""
    module = nn.Module()
    tensor = KINDS[kind]()
    module.register_buffer("odd", tensor)
    before = values_of(tensor)
    kept = Snapshot(module)
    if kind == "jagged" and change == "zero_":
        _skip_without(tensor.clone().zero_)
    for _ in range(2):
        tensor.mul_(3) if change == "mul_" else tensor.zero_()
        kept.restore()
        assert module.odd is tensor
        assert all(map(torch.equal, before, values_of(tensor)))


def test_sparse_gradients() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([1, 3])).sum().backward()
    grad, weight = embedding.weight.grad, embedding.weight.detach().clone()
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    before = grad.to_dense()
    kept = Snapshot(embedding, optimizer)
    for _ in range(2):
        embedding(torch.tensor([2, 3])).sum().backward()
        optimizer.step()
        embedding.weight.grad.zero_()
        kept.restore()
        assert embedding.weight.grad is grad
        assert torch.equal(grad.to_dense(), before)
        assert torch.equal(embedding.weight, weight)
        assert not optimizer.state


def test_memory_that_elements_share() -> None:
    """Expanded and overlapping tensors; NaN is not equal to itself, and minus zero is equal to zero."""
    module = nn.Module()
    mask, row, zeros = torch.full((1, 1), float("nan")), torch.arange(5.0), torch.tensor([0.0, -0.0])
    for name, buffer in (("mask", mask.expand(3, 3)), ("rows", row.unfold(0, 3, 1)), ("zeros", zeros)):
        module.register_buffer(name, buffer)
    module.register_buffer("empty", torch.zeros(0, 5)[:, 0])
    kept = Snapshot(module)
    kept.restore()
    mask.zero_()
    row.zero_()
    zeros.neg_()
    kept.restore()
    assert module.mask.isnan().all()
    assert row.tolist() == [0, 1, 2, 3, 4]
    assert zeros.signbit().tolist() == [False, True]


def test_changed_in_inference_mode() -> None:
    module = nn.Module()
    with torch.inference_mode():
        module.register_buffer("seen", torch.ones(3))
    kept = Snapshot(module)
    with torch.inference_mode():
        module.seen.add_(1)
    kept.restore()
    assert module.seen.tolist() == [1, 1, 1]


def test_transposed_in_place() -> None:
    module = nn.Linear(2, 2)
    before = module.weight.detach().clone()
    kept = Snapshot(module)
    module.weight.data = module.weight.data.t()
    kept.restore()
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize("lazy", [nn.LazyLinear(2), nn.LazyBatchNorm1d()])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_not_initialised(lazy: nn.Module) -> None:
    with pytest.raises(SettingError, match="send one batch through it first"):
        Snapshot(nn.Sequential(lazy))


def test_one_that_fails_does_not_stop_the_others() -> None:
    class Stubborn(random.Random):
        def setstate(self, state: Any) -> None:
            raise ZeroDivisionError("no")

    lists = [[1], [2]]
    kept = Snapshot([lists[0], Stubborn(), lists[1]])
    for each in lists:
        each.clear()
    with pytest.raises(ZeroDivisionError):
        kept.restore()
    assert lists == [[1], [2]]


def test_nan_and_meta() -> None:
    module = nn.Module()
    module.register_buffer("bad", torch.tensor([float("nan"), 1.0]))
    module.register_buffer("none", None)
    module.weight = nn.Parameter(torch.empty(2, device="meta"))
    kept = Snapshot(module)
    module.bad.zero_()
    kept.restore()
    assert module.bad[0].isnan()
    assert module.bad[1] == 1


class Rooms:
    """A dataset with generators in several places."""

    def __init__(self) -> None:
        self.python = random.Random(1)
        self.transforms = [{"noise": np.random.default_rng(2)}, np.random.RandomState(3)]
        self.torch = torch.Generator().manual_seed(4)
        self.items = list(range(10_000))

    def draw(self) -> tuple[float, ...]:
        return (
            self.python.random(),
            self.transforms[0]["noise"].random(),
            self.transforms[1].rand(),
            torch.rand(1, generator=self.torch).item(),
        )


def test_generators_of_a_dataset() -> None:
    rooms = Rooms()
    subset = torch.utils.data.Subset(rooms, [0, 1])
    found = generators_in(subset)
    assert len(found) == 4
    kept = Snapshot(*found)
    first = rooms.draw()
    assert rooms.draw() != first
    kept.restore()
    assert rooms.draw() == first
    kept.restore()
    assert rooms.draw() == first


def test_global_generators() -> None:
    def draw() -> tuple[float, ...]:
        return random.random(), np.random.rand(), torch.rand(1).item()

    put_back = random_state()
    first = draw()
    assert draw() != first
    put_back()
    assert draw() == first
