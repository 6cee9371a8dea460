"""How full of sequences a batch is, with a mask and without one, and what is no padding though it looks like it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.timing.filling import LEAST_ROWS, MOST_NUMBERS, MOST_ROWS, Filling, filling_of

np = pytest.importorskip("numpy")

LENGTHS = (40, 12, 7, 21, 5, 9, 30, 16)
SHARE = sum(LENGTHS) / (40 * len(LENGTHS))


def randoms(seed: int = 0) -> Any:
    return np.random.default_rng(seed)


def ids(lengths: tuple[int, ...] = LENGTHS, *, left: bool = False, pad: int = 0, least: int = 1) -> Any:
    """Sequences of ids, padded to the longest."""
    made = np.full((len(lengths), max(lengths)), pad, dtype=np.int64)
    for row, length in enumerate(lengths):
        place = slice(max(lengths) - length, None) if left else slice(length)
        made[row, place] = randoms(row).integers(least, 5000, length)
    return made


def marked(made: Any, place: int) -> Any:
    """Sequences that all begin, or end, with the same mark."""
    made[:, place] = 4999
    return made


def signals(lengths: tuple[int, ...] = LENGTHS, *features: int) -> Any:
    """Sequences of numbers, or of features, padded with zeros to the longest."""
    made = np.zeros((len(lengths), max(lengths), *features), dtype=np.float32)
    for row, length in enumerate(lengths):
        made[row, :length] = randoms(row).standard_normal((length, *features))
    return made


def mask(width: int = 50) -> Any:
    return np.array([[int(place < length) for place in range(width)] for length in LENGTHS])


@pytest.mark.parametrize(
    ("batch", "positions", "used", "by"),
    [
        (ids(), 40, 40, "ids"),
        (ids(left=True), 40, 40, "ids"),
        (ids(pad=1, least=2), 40, 40, "ids"),
        (marked(ids(), 0), 40, 40, "ids"),
        (marked(ids(left=True), -1), 40, 40, "ids"),
        (ids(pad=-100), 40, 40, "ids"),
        (ids().T, 40, 40, "ids"),
        (np.pad(ids(), ((0, 0), (0, 88))), 128, 40, "ids"),
        ((ids(), np.arange(8)), 40, 40, "ids"),
        ({"input_ids": ids(), "token_type_ids": np.zeros((8, 40), np.int64)}, 40, 40, "ids"),
        (signals(), 40, None, "signal"),
        ([signals(), np.arange(8)], 40, None, "signal"),
        (signals(LENGTHS, 13), 40, None, "signal"),
        (signals(LENGTHS, 13).transpose(0, 2, 1), 40, None, "signal"),
        (signals(LENGTHS, 13).transpose(1, 0, 2), 40, None, "signal"),
        ({"attention_mask": mask()}, 50, 40, "mask"),
        ([{"attention_mask": mask()}, signals()], 50, 40, "mask"),
    ],
)
def test_the_share_that_is_filled(batch: object, positions: int, used: int | None, by: str) -> None:
    found = filling_of(batch)
    assert found is not None
    assert tuple(found) == (positions, used, pytest.approx(SHARE), by)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    found = filling_of((torch.from_numpy(ids()), torch.zeros(8)))
    assert found is not None
    assert tuple(found) == (40, 40, pytest.approx(SHARE), "ids")
    made = torch.from_numpy(signals())
    for unread in (made.bfloat16(), made.to_sparse(), made.clone().requires_grad_()):
        assert filling_of(unread) is None


def test_a_large_batch_is_sampled() -> None:
    long = tuple(500 * length for length in LENGTHS)
    for batch in (signals(long), signals(long, 8)):
        assert batch.size > MOST_NUMBERS
        found = filling_of(batch)
        assert found is not None
        assert tuple(found) == (20_000, None, pytest.approx(SHARE, rel=0.01), "signal")
    many = ids(LENGTHS * MOST_ROWS)[::3]  # where every eighth is looked at, each length is met
    found = filling_of(many)
    assert found is not None
    assert tuple(found) == (40, 40, pytest.approx(SHARE, rel=0.02), "ids")


def test_a_mask_counts_alone() -> None:
    """All sequences are as long, by the mask; what their ids end in tells nothing."""
    whole = np.ones((8, 40), np.int64)
    assert filling_of({"input_ids": ids(), "attention_mask": whole}) == Filling(40, 40, 1.0, "mask")
    assert filling_of({"input_ids": ids(), "attention_mask": whole[:, :0]}) is None
    assert filling_of({"input_ids": ids()[:1], "attention_mask": whole[:1]}) is None


def pictures(number: int = 64, width: int = 28) -> Any:
    """Strokes within a black border of varying width, as of handwritten digits."""
    made = np.zeros((number, width, width), dtype=np.float32)
    for row in range(number):
        random = randoms(row)
        top, left = random.integers(2, 8, 2)
        height, across = random.integers(8, 20, 2)
        ink = random.random((height, across)) * (random.random((height, across)) < 0.6)
        made[row, top : top + height, left : left + across] = ink[: width - top, : width - left]
    return made


def cut_off(number: int = 64) -> Any:
    """Pictures whose upper left corner has no border, and the longest no border at all."""
    made = pictures(number)
    made[:, 0, :] = made[:, :, 0] = 0.5
    made[0] = np.maximum(made[0], 0.1)
    return made


def one_hot(rows: int = 32, width: int = 20) -> Any:
    return np.eye(width, dtype=np.float32)[randoms().integers(0, width, rows)]


def sparse(rows: int = 64, width: int = 100) -> Any:
    made = randoms().standard_normal((rows, width)).astype(np.float32)
    return made * (randoms(1).random((rows, width)) < 0.1)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(pictures(), id="pictures"),
        pytest.param(pictures().reshape(64, -1), id="pictures in rows"),
        pytest.param((255 * pictures()).astype(np.uint8).reshape(64, -1), id="pictures of bytes"),
        pytest.param((255 * pictures()).astype(np.int64).reshape(64, -1), id="pictures of integers"),
        pytest.param(cut_off(), id="pictures without an upper border"),
        pytest.param(cut_off().reshape(64, -1), id="pictures in rows without an upper border"),
        pytest.param(pictures()[:, None], id="pictures with channels"),
        pytest.param(one_hot(), id="one-hot codes"),
        pytest.param(one_hot().astype(np.int64), id="one-hot codes of integers"),
        pytest.param(one_hot(640).reshape(32, 20, 20), id="one-hot codes of sequences"),
        pytest.param(sparse(), id="sparse columns"),
        pytest.param(np.ceil(sparse()).astype(np.int64), id="sparse counts"),
        pytest.param(np.tril(np.ones((32, 32), np.int64)), id="a causal mask"),
        pytest.param(np.tril(np.ones((32, 32), np.float32)), id="a causal mask of floats"),
        pytest.param(mask(40), id="a mask of another name"),
        pytest.param(mask(40).astype(bool), id="a mask of truth values"),
        pytest.param(randoms().integers(0, 10, 64), id="labels"),
        pytest.param(randoms().integers(0, 5, (64, 40)), id="columns of few values"),
        pytest.param(randoms().standard_normal((64, 40)), id="dense columns"),
        pytest.param(randoms().integers(1, 5000, (64, 40)), id="texts of one length"),
        pytest.param(ids((40, 40, 40, 12, 40, 40, 40, 40)), id="hardly any padding"),
        pytest.param(ids((40, 20, 20, 20, 20, 20, 20, 20)), id="two lengths"),
        pytest.param(np.pad(signals(), ((0, 0), (0, 20))), id="no row of a signal is full"),
        pytest.param(ids(LENGTHS[: LEAST_ROWS - 1]), id="few rows"),
        pytest.param(ids((7, 2, 3, 4, 1, 5)), id="few positions"),
        pytest.param((ids(), np.ones((8, 3, 32, 32))), id="captions of pictures"),
        pytest.param(ids().astype(str), id="texts"),
        pytest.param([], id="nothing"),
        pytest.param([np.zeros((8, 0))], id="empty"),
        pytest.param(np.zeros((8, 40)), id="zeros"),
        pytest.param(np.zeros((8, 40), np.int64), id="zeros of integers"),
        pytest.param(
            SimpleNamespace(dtype=1, shape=(8, 40), device=SimpleNamespace(type="cuda")), id="on an accelerator"
        ),
    ],
)
def test_what_is_no_padding_or_not_sure_to_be(batch: object) -> None:
    assert filling_of(batch) is None
