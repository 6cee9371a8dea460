"""Rows of batches that are known again, however they are padded and ordered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stallmeter.timing.rows import MOST_RESULTS, MOST_ROWS, are_alike, results_of, rows_of


def marks(given: Any) -> list[tuple[int, ...]]:
    found = rows_of(given)
    assert found is not None
    return found[1]


def are_known(one: Any, other: Any) -> list[bool]:
    """Whether each row of one batch is the row of the other that stands at its place."""
    return [bool(set(a) & set(b)) for a, b in zip(marks(one), marks(other), strict=True)]


PICTURES = torch.rand(6, 3, 40, 40, generator=torch.Generator().manual_seed(1))


def test_the_same_pictures_in_another_order() -> None:
    first, again = marks(PICTURES), marks(PICTURES.flip(0))
    assert first == again[::-1]
    assert len({mark for one in first for mark in one}) == 3 * 6
    assert marks(PICTURES.contiguous(memory_format=torch.channels_last)) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.flip(-1),
        lambda x: x + 1e-6 * torch.rand_like(x),
        lambda x: x.roll(1, -1),
        lambda x: x * 1.01,
    ],
    ids=["flipped", "noise", "moved", "brighter"],
)
def test_a_changed_picture_is_another(change: Any) -> None:
    assert not any(are_known(PICTURES, change(PICTURES)))


def padded(texts: list[list[int]], *, left: bool = False) -> dict[str, torch.Tensor]:
    longest = max(map(len, texts))
    fill = [[0] * (longest - len(text)) for text in texts]
    rows = [none + text if left else text + none for text, none in zip(texts, fill, strict=True)]
    return {"input_ids": torch.tensor(rows), "labels": torch.ones(len(texts), dtype=torch.long)}


TEXTS = [[101, *range(200 + 10 * i, 205 + 10 * i + i), 102] for i in range(5)]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_texts_are_known_whatever_they_are_padded_to(left: bool) -> None:
    short, long = padded(TEXTS[:4], left=left), padded([*TEXTS[:4], [*range(300, 340)]], left=left)
    assert all(are_known(short["input_ids"], long["input_ids"][:4]))
    assert not any(are_known(short["input_ids"], padded(TEXTS[1:5], left=left)["input_ids"]))


def test_of_several_tensors_the_largest_tells() -> None:
    batch = padded(TEXTS)
    assert marks(batch) == marks(batch["input_ids"]) == marks((batch["labels"], batch["input_ids"]))


def test_rows_that_tell_nothing() -> None:
    assert marks(torch.zeros(3, 50)) == [(), (), ()]
    assert marks(torch.arange(6).reshape(3, 2)) == [(), (), ()]
    assert rows_of(torch.arange(50)) is None
    assert rows_of(torch.tensor(1.0)) is None
    assert rows_of(["a", "b"]) is None
    assert rows_of(torch.rand(4, 8).to_sparse()) is None
    assert rows_of(torch.rand(4, 8, dtype=torch.bfloat16)) is None
    assert rows_of(torch.rand(0, 8)) is None
    assert rows_of(torch.rand(4, 8, device="meta")) is None


def test_of_a_large_batch_the_first_ones() -> None:
    rows, known = rows_of(np.random.default_rng(0).random((1000, 8))) or (0, [])
    assert (rows, len(known)) == (1000, MOST_ROWS)


def test_results_are_compared_beyond_rounding() -> None:
    made = torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(2))
    rows = results_of({"loss": torch.tensor(1.0), "hidden": made}, 4)
    assert rows is not None
    assert [len(row) for row in rows] == [MOST_RESULTS] * 4
    other = results_of(made * (1.0 + 1e-6), 4)
    changed = results_of(made * 1.001, 4)
    assert other is not None
    assert changed is not None
    assert all(map(are_alike, rows, other))
    assert not any(map(are_alike, rows, changed))
    assert not are_alike(rows[0], rows[1])
    assert not are_alike(rows[0], rows[0][:4])
    assert not are_alike(np.full(4, np.nan), np.full(4, np.nan))


def test_half_as_many_bits_round_more() -> None:
    one = np.linspace(1.0, 2.0, 16).astype(np.float16)
    assert are_alike(one, (one * np.float16(1.003)).astype(np.float16))
    assert not are_alike(one, (one * np.float16(1.05)).astype(np.float16))


def test_results_that_cannot_be_read() -> None:
    assert results_of(torch.rand(3, 8), 4) is None
    assert results_of(torch.rand(4), 4) is None
    assert results_of(torch.rand(4, 8, requires_grad=True), 4) is None
    assert results_of(None, 4) is None
