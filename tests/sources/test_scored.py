"""For how many positions classes are scored, counted within steps of real models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from stallmeter.records import ScoredPositions
from stallmeter.sources import scored
from stallmeter.sources.scored import ScoredLook
from stallmeter.timing.labels import Labels

HOOKS = torch_modules._global_forward_hooks
IDS = torch.arange(64).reshape(4, 16)
LABELS = Labels(64, 10)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = dict(HOOKS)
    yield
    assert dict(HOOKS) == before


class Model(nn.Module):
    """A small language model: 64 words in, 2,000 classes out, and a layer within that makes more."""

    def __init__(self, picked: Any = None) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 8)
        self.mix = nn.Conv1d(8, 8, 3, padding=1)
        self.wide = nn.Sequential(nn.Linear(8, 4000), nn.ReLU(), nn.Linear(4000, 8))
        self.head = nn.Linear(8, 2000)
        self.picked = picked

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.mix(self.words(ids).transpose(1, 2)).transpose(1, 2)
        x = self.wide(x)
        scores: torch.Tensor = self.head(x if self.picked is None else x[self.picked])
        return scores


def call(name: str, function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def told(work: Callable[[], object]) -> ScoredPositions | None:
    look = ScoredLook(LABELS, call, torch, torch_modules)
    work()
    return look.told()


def test_all_positions_are_scored() -> None:
    found = told(lambda: Model()(IDS))
    assert found is not None
    assert (found.positions, found.labelled, found.scored, found.inputs, found.classes) == (64, 10, 64, 8, 2000)
    wide, mix, head = 2 * 8 * 4000, 8 * 8 * 3, 8 * 2000
    assert found.share == pytest.approx(head / (wide + mix + head))
    assert found.in_vain == pytest.approx(1 - 10 / 64)


def test_those_with_a_label_are_picked_out() -> None:
    picked = torch.arange(64).reshape(4, 16) < LABELS.labelled
    found = told(lambda: Model(picked)(IDS))
    assert found is not None
    assert (found.scored, found.in_vain) == (10, 0.0)


def test_pieces_are_added_up() -> None:
    model = Model()
    found = told(lambda: [model(part) for part in IDS.split(1)])
    assert found is not None
    assert (found.scored, found.in_vain) == (64, pytest.approx(1 - 10 / 64))


def test_an_evaluation_does_not_count() -> None:
    with torch.no_grad():
        assert told(lambda: Model()(IDS)) is None


def test_nor_do_other_threads() -> None:
    def beside() -> None:
        thread = threading.Thread(target=lambda: Model()(IDS))
        thread.start()
        thread.join()

    assert told(beside) is None


def test_a_model_without_such_a_layer() -> None:
    found = told(lambda: nn.LSTM(8, 8)(torch.ones(4, 16, 8)))
    assert found is not None
    assert (found.scored, found.in_vain) == (0, 0.0)


def test_labels_known_afterwards() -> None:
    look = ScoredLook(LABELS, call, torch, torch_modules)
    Model()(IDS)
    found = look.told(Labels(64, 32))
    assert found is not None
    assert found.in_vain == 0.5


def test_many_calls_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "MOST_CALLS", 5)
    assert told(lambda: [Model()(IDS) for _ in range(3)]) is None


def test_closed_within_a_step() -> None:
    ScoredLook(LABELS, call, torch, torch_modules).close()


def test_what_cannot_be_counted_ends_it() -> None:
    look = ScoredLook(LABELS, lambda *_: None, torch, torch_modules)
    before = len(HOOKS)
    Model()(IDS)
    assert len(HOOKS) == before - 1
    assert look.told() is None
