"""Padding that no sequence of a batch needs."""

from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.timing.padding import MOST_POSITIONS, padding_of

np = pytest.importorskip("numpy")


def mask(*lengths: int, width: int = 10, left: bool = False) -> Any:
    made = np.zeros((len(lengths), width), dtype=np.int64)
    for row, length in enumerate(lengths):
        made[row, slice(width - length, None) if left else slice(length)] = 1
    return made


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ({"attention_mask": mask(3, 7)}, (10, 7)),
        ({"attention_mask": mask(3, 7, left=True)}, (10, 7)),
        ({"attention_mask": mask(3, 10)}, (10, 10)),
        ({"attention_mask": mask(3, 7).astype(bool)}, (10, 7)),
        (UserDict(attention_mask=mask(1)), (10, 1)),
        (({"attention_mask": mask(4)}, [0]), (10, 4)),
        ([[0], {"attention_mask": mask(4)}], (10, 4)),
        ({"input_ids": mask(4)}, None),
        ({"attention_mask": None}, None),
        ({"attention_mask": mask(4)[0]}, None),
        ({"attention_mask": mask(4)[:, :0]}, None),
        ({"attention_mask": np.zeros((2, MOST_POSITIONS))}, None),
        ({"attention_mask": SimpleNamespace(shape=(2, 4), device=SimpleNamespace(type="cuda"))}, None),
        ([], None),
        ("attention_mask", None),
    ],
)
def test_positions(batch: object, found: tuple[int, int] | None) -> None:
    assert padding_of(batch) == found


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    assert padding_of({"attention_mask": torch.from_numpy(mask(3, 7))}) == (10, 7)
    numbers = torch.from_numpy(mask(3, 7)).float()
    assert padding_of({"attention_mask": numbers}) == (10, 7)
    for unread in (numbers.bfloat16(), numbers.to_sparse(), numbers.clone().requires_grad_()):
        assert padding_of({"attention_mask": unread}) is None
