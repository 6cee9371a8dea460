"""Modules through which nothing is trained, called in the steps of several epochs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from stallmeter.engine.guard import Guard
from stallmeter.records import FixedFeatures
from stallmeter.sources import fixed
from stallmeter.sources.fixed import EPOCHS, STEPS, FixedSource
from stallmeter.timing.ledger import COMPUTE, DATA_WAIT

from .boundaries import Boundaries

HOOKS = torch_modules._global_forward_hooks
ITEMS = torch.rand(96, 3, 8, 8, generator=torch.Generator().manual_seed(1))
SIZE = 8


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = dict(HOOKS)
    yield
    assert dict(HOOKS) == before


class Backbone(nn.Module):
    """Makes features of pictures."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), *more, nn.Flatten(), nn.Linear(144, 16))

    def forward(self, x: torch.Tensor | None = None, *, pictures: torch.Tensor | None = None) -> Any:
        return self.layers(x if pictures is None else pictures)


class Bench(Boundaries):
    """Epochs of a loop that trains a head on what a backbone makes.

    Args:
        backbone: What comes before the head; frozen, as a rule.
        call: Makes features of a batch.
        ranks: Among which the items are shared out.
    """

    def __init__(
        self, backbone: nn.Module | None = None, call: Callable[[Any], torch.Tensor] | None = None, ranks: int = 1
    ) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.backbone = (backbone or Backbone()).requires_grad_(False)
        self.head = nn.Linear(16, 2)
        self.call = call or self.backbone
        self.ticks = count(0, 10_000)  # each reading of the time 10 us after the one before
        self.failed: list[object] = []
        self.source = FixedSource(self.register, Guard(self.failed.append), ranks, now=lambda: next(self.ticks))
        self.told: FixedFeatures | None = None
        self.looked = 0
        self.batches = torch.Generator().manual_seed(3)

    def take(self, batch: torch.Tensor) -> None:
        """Train with a batch."""
        self.clock.ledger.enter(COMPUTE)
        self.looked += len(HOOKS) > 0
        self.head(self.call(batch)).sum().backward()
        self.clock.ledger.exit(COMPUTE)

    def epoch(self, items: torch.Tensor = ITEMS, *, in_order: bool = False, size: int = SIZE) -> None:
        """Go once through some items."""
        self.clock.new_epoch(self.clock.epochs)
        order = torch.arange(len(items)) if in_order else torch.randperm(len(items), generator=self.batches)
        for start in range(0, len(items), size):
            self.clock.open = True
            self.take(items[order[start : start + size]])
            self.boundary()
        self.clock.open = False
        self.boundary(self.clock.index)
        found = self.source.sample(0.0)
        self.told = found[-1] if found else self.told

    def epochs(self, number: int, items: torch.Tensor = ITEMS, **how: Any) -> FixedFeatures | None:
        """Go through some items so often; returns what is told."""
        for _ in range(number):
            self.epoch(items, **how)
        assert not self.failed
        return self.told


def is_the_same(found: FixedFeatures | None) -> bool:
    """Whether nearly all was met again and made anew."""
    return found is not None and found.expected >= 20 and found.again >= 0.8 * found.expected and found.call_s > 0.0


def test_a_frozen_backbone_makes_the_same_in_each_epoch() -> None:
    bench = Bench()
    found = bench.epochs(4)
    assert is_the_same(found)
    assert found is not None
    assert (found.name, found.modules) == ("Backbone", 1)
    assert found.function == "Bench.take"
    assert bench.is_done


@pytest.mark.parametrize("in_order", [False, True], ids=["another order", "the same order"])
def test_half_of_the_items_are_flipped(in_order: bool) -> None:
    random = torch.Generator().manual_seed(4)

    def flipped(batch: torch.Tensor) -> torch.Tensor:
        chosen = torch.rand(len(batch), generator=random) < 0.5
        return bench.backbone(torch.where(chosen[:, None, None, None], batch.flip(-1), batch))

    bench = Bench(call=flipped)
    found = bench.epochs(4, in_order=in_order)
    assert found is not None
    assert found.expected >= 20
    assert 0.3 <= found.again / found.expected <= 0.75


def test_the_same_order_needs_no_chance() -> None:
    """Of many items few are looked at, and each of them is met again at its place."""
    many = torch.rand(4000, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    found = Bench().epochs(2, many, in_order=True)
    assert is_the_same(found)
    assert found is not None
    assert found.again > 40


def test_of_many_items_in_another_order_few_are_met() -> None:
    many = torch.rand(4000, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    bench = Bench()
    found = bench.epochs(2, many)
    assert bench.looked <= 2 * STEPS
    assert found is None or found.expected < 100


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.BatchNorm2d(4)],
    ids=["drops at random", "of each batch's statistics"],
)
def test_what_it_makes_changes(layer: nn.Module) -> None:
    found = Bench(Backbone(layer)).epochs(4)
    assert found is not None
    assert found.again >= 20
    assert found.call_s == 0.0


def test_weights_that_follow_the_trained_ones() -> None:
    def follow(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for weight in bench.backbone.parameters():
                weight.mul_(1.001)
            made: torch.Tensor = bench.backbone(batch)
        return made

    bench = Bench(call=follow)
    found = bench.epochs(4)
    assert found is not None
    assert found.call_s == 0.0


def test_without_gradients_and_by_name() -> None:
    def called(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            made: torch.Tensor = bench.backbone(pictures=batch)
        return made

    bench = Bench(call=called)
    bench.backbone.requires_grad_()
    assert is_the_same(bench.epochs(4))


def test_layers_that_are_called_one_by_one() -> None:
    def each(batch: torch.Tensor) -> torch.Tensor:
        for layer in bench.backbone.layers:
            batch = layer(batch)
        return batch

    bench = Bench(call=each)
    found = bench.epochs(4)
    assert is_the_same(found)
    assert found is not None
    assert found.modules == 3
    assert found.name.endswith("each")  # the function: layers of torch's have names that say little


def test_a_network_that_is_trained() -> None:
    bench = Bench()
    bench.backbone.requires_grad_()
    assert bench.epochs(3) == FixedFeatures(time_s=bench.told.time_s if bench.told else 0.0)
    assert bench.is_done
    assert bench.looked == fixed.TRIES


def test_layers_above_trained_ones_pass_gradients_on() -> None:
    first = nn.Linear(8, 8)
    bench = Bench(call=lambda batch: bench.backbone(pictures=first(batch)))
    found = bench.epochs(3)
    assert found is not None
    assert found.call_s == 0.0


def test_what_a_loader_calls_is_no_step() -> None:
    def made(batch: torch.Tensor) -> torch.Tensor:
        bench.clock.ledger.enter(DATA_WAIT)
        features: torch.Tensor = bench.backbone(batch)
        bench.clock.ledger.exit(DATA_WAIT)
        return features

    bench = Bench(call=made)
    found = bench.epochs(3)
    assert found is not None
    assert (found.expected, found.call_s) == (0.0, 0.0)


def test_other_items_in_each_epoch() -> None:
    bench = Bench()
    for epoch in range(EPOCHS + 1):
        bench.epoch(torch.rand(96, 3, 8, 8, generator=torch.Generator().manual_seed(10 + epoch)))
    assert bench.told is not None
    assert (bench.told.again, bench.told.call_s) == (0, 0.0)
    assert bench.is_done


def test_items_that_are_there_several_times_tell_nothing() -> None:
    found = Bench().epochs(4, ITEMS[:4].repeat(24, 1, 1, 1))
    assert found is None or found.expected < 20


def test_ranks_share_the_items_out() -> None:
    """Each has half of them, other ones in each epoch."""
    bench = Bench(ranks=2)
    for _ in range(5):
        half = torch.randperm(len(ITEMS), generator=bench.batches)[: len(ITEMS) // 2]
        bench.epoch(ITEMS[half])
    found = bench.told
    assert is_the_same(found)
    assert found is not None
    assert found.again <= 1.3 * found.expected


def test_two_calls_in_a_step_each_have_their_rows() -> None:
    def twice(batch: torch.Tensor) -> torch.Tensor:
        half = len(batch) // 2
        return torch.cat([bench.backbone(batch[:half]), bench.backbone(batch[half:])])

    bench = Bench(call=twice)
    found = bench.epochs(4)
    assert is_the_same(found)


def test_what_is_given_other_rows_before_it() -> None:
    """An embedding of the task, say, which is one row in each step."""
    table = nn.Embedding(4, 16).requires_grad_(False)

    def told(batch: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = bench.backbone(batch) + table(torch.tensor([[0, 1, 2, 3, 1]])).mean()
        return made

    def before(batch: torch.Tensor) -> torch.Tensor:
        shift = table(torch.tensor([[0, 1, 2, 3, 1]])).mean()
        made: torch.Tensor = bench.backbone(batch) + shift
        return made

    for call in (told, before):
        bench = Bench(call=call)
        assert is_the_same(bench.epochs(4))


def test_an_error_within_it_is_the_programs() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("odd")

    def fails(batch: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(ValueError):
            odd(batch)
        made: torch.Tensor = bench.backbone(batch)
        return made

    odd = Odd()
    bench = Bench(call=fails)
    bench.epochs(3)
    assert not bench.failed


def test_results_of_a_type_that_cannot_be_read() -> None:
    bench = Bench(Backbone().to(torch.bfloat16), call=lambda batch: bench.backbone(batch.bfloat16()).float())
    assert bench.epochs(3) is None
    assert bench.is_done


def test_it_lets_go_in_the_midst_of_a_step() -> None:
    bench = Bench()
    bench.boundary(9)
    assert len(HOOKS) == 1
    bench.source.close()


def test_where_models_are_compiled_nothing_is_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "hooked", lambda _: None)
    bench = Bench()
    assert bench.epochs(3) is None
    assert bench.is_done


def test_its_own_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "MOST_OWN_NS", 100_000)
    bench = Bench()
    bench.epochs(4)
    assert bench.is_done
    assert bench.looked < 12
