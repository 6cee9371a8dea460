"""Embedding tables whose gradient is dense though few of their rows are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stallmeter.records import DenseEmbeddings
from stallmeter.timing.tables import LEAST_ROWS, dense_embeddings, name_inside

ROWS = 4 * LEAST_ROWS


class Net(nn.Module):
    """A table and what is computed of its rows."""

    def __init__(self, table: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.parts = nn.ModuleList([table])
        self.head = nn.Linear(width, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.parts[0](ids)).square().mean()
        return out


def spread(number: int, rows: int = ROWS) -> torch.Tensor:
    """So many different rows, those that are looked at among them."""
    return torch.arange(0, rows, rows // number)[:number].reshape(-1, 1)


def looked(*models: nn.Module) -> DenseEmbeddings | None:
    named = [(f"model{place}" if place else "model", model) for place, model in enumerate(models)]
    return dense_embeddings(named, {id(p): p for model in models for p in model.parameters()}, nn)


def after_a_step(table: nn.Module, ids: torch.Tensor) -> Net:
    model = Net(table)
    model(ids).backward()
    return model


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_few_of_many_rows(kind: Any) -> None:
    model = after_a_step(kind(ROWS, 8), spread(ROWS // 100))
    found = looked(model)
    assert found is not None
    assert (found.part, found.kind, found.tables) == ("model.parts[0]", kind.__name__, 1)
    assert (found.rows, found.numbers, found.trained_numbers) == (ROWS, 8 * ROWS, 8 * ROWS + 9)
    assert found.share == pytest.approx(1.0, abs=1e-4)
    assert found.used_share == pytest.approx(0.01, abs=0.01)


def test_the_model_itself_is_a_table() -> None:
    table = nn.Embedding(ROWS, 8)
    table(torch.arange(ROWS - ROWS // 10, ROWS)).sum().backward()
    found = looked(table)
    assert found is not None
    assert found.part == "model"
    assert found.used_share == pytest.approx(0.1, abs=0.02)


def test_several_tables_count_together_and_the_largest_has_the_name() -> None:
    small, large = after_a_step(nn.Embedding(ROWS, 8), spread(40)), after_a_step(nn.Embedding(2 * ROWS, 8), spread(40))
    found = looked(small, large)
    assert found is not None
    assert (found.tables, found.part, found.numbers) == (2, "model1.parts[0]", 3 * 8 * ROWS)
    assert found.also == ("model.parts[0]",)


def test_two_names_of_one_model() -> None:
    model = after_a_step(nn.Embedding(ROWS, 8), spread(40))
    found = looked(model, model)
    assert found is not None
    assert (found.tables, found.part, found.also) == (1, "model.parts[0]", ())


def test_rows_that_the_sample_misses() -> None:
    """Another gradient tells that these were not cleared; where there is no other, more rows are looked at."""
    model = after_a_step(nn.Embedding(ROWS, 8), torch.tensor([[1], [2]]))
    found = looked(model)
    assert found is not None
    assert (found.tables, found.used_share) == (1, 0.0)
    table = nn.Embedding(ROWS, 8)
    table(torch.tensor([3])).sum().backward()
    assert looked(table) is None
    every = -(-ROWS // 2048)
    table(torch.tensor([every])).sum().backward()
    assert looked(table) is not None


@pytest.mark.parametrize(
    "table",
    [
        nn.Embedding(ROWS, 8, sparse=True),
        nn.Embedding(LEAST_ROWS - 1, 8),
        nn.Embedding(ROWS, 8, scale_grad_by_freq=True),
        nn.EmbeddingBag(ROWS, 8, mode="max"),
        nn.Embedding(ROWS, 8).requires_grad_(False),
    ],
    ids=["sparse", "few rows", "scaled", "the largest", "frozen"],
)
def test_tables_that_cannot_or_need_not_be_sparse(table: nn.Module) -> None:
    found = looked(after_a_step(table, spread(100, LEAST_ROWS - 100)))
    assert found is not None
    assert (found.tables, found.part, found.share) == (0, "", 0.0)


def test_a_table_that_is_used_all_over() -> None:
    """As one that gives the outputs as well: of each row something is wanted."""
    model = after_a_step(nn.Embedding(ROWS, 8), torch.arange(ROWS).reshape(-1, 1))
    found = looked(model)
    assert found is not None
    assert found.tables == 0


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_cleared_tell_nothing(set_to_none: bool) -> None:
    model = after_a_step(nn.Embedding(ROWS, 8), spread(40))
    model.zero_grad(set_to_none=set_to_none)
    assert looked(model) is None


def test_gradients_that_are_not_read() -> None:
    model = after_a_step(nn.Embedding(ROWS, 8), spread(40))
    table: Any = model.parts[0]
    table.weight.grad.requires_grad_()
    assert looked(model) is None
    elsewhere = nn.Embedding(ROWS, 8, device="meta")
    elsewhere.weight.grad = torch.zeros(ROWS, 8, device="meta")
    assert looked(elsewhere) is None


def test_without_a_table() -> None:
    model = nn.Linear(3, 3)
    model(torch.ones(2, 3)).sum().backward()
    found = looked(model)
    assert found is not None
    assert (found.tables, found.trained_numbers) == (0, 12)


def test_nothing_random_is_drawn() -> None:
    model = after_a_step(nn.Embedding(ROWS, 8), spread(40))
    before = torch.get_rng_state()
    looked(model)
    assert torch.equal(before, torch.get_rng_state())


def test_names() -> None:
    assert name_inside("model", "module") == "model"
    assert name_inside("model", "table") == "model.table"
    assert name_inside("model", "0") == "model[0]"
