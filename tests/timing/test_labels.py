"""Labels of a batch that the loss leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.timing.labels import MOST_POSITIONS, MOST_TENSORS, Labels, labels_of, reads_all

np = pytest.importorskip("numpy")

CLASSES = np.arange(64).reshape(4, 16)
MASKED = np.where(CLASSES % 4, -100, CLASSES)


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": CLASSES, "labels": MASKED},
        (CLASSES, MASKED),
        [{"ids": CLASSES, "target": np.where(CLASSES % 4, -1, CLASSES)}],
        (CLASSES.astype("float32"), MASKED.reshape(-1).astype("int32")),
    ],
)
def test_labels(batch: Any) -> None:
    assert labels_of(batch) == Labels(64, 16)


@pytest.mark.parametrize(
    "batch",
    [
        (CLASSES, CLASSES),
        (CLASSES, np.where(CLASSES % 4, -7, CLASSES)),
        (CLASSES, np.where(CLASSES % 4, -100, -1)),
        (CLASSES, MASKED.astype("float32")),
        (CLASSES, MASKED[0]),
        (CLASSES, MASKED.reshape(4, 4, 4)),
        np.full(MOST_POSITIONS + 1, -100),
        "text",
        None,
    ],
    ids=[
        "all are classes",
        "another number",
        "two numbers",
        "no whole numbers",
        "few",
        "pictures",
        "many",
        "text",
        "-",
    ],
)
def test_none_that_are_left_out(batch: Any) -> None:
    assert labels_of(batch) is None


def test_labels_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert labels_of({"labels": torch.from_numpy(MASKED)}) == Labels(64, 16)
    assert labels_of({"labels": torch.from_numpy(MASKED).to("meta")}) is None


def test_whether_all_of_a_batch_was_looked_at() -> None:
    torch = pytest.importorskip("torch")
    assert reads_all({"ids": CLASSES, "labels": [MASKED, torch.ones(3)]})
    assert not reads_all(["a text", 3])
    assert not reads_all([CLASSES] * (MOST_TENSORS + 1))
    assert not reads_all([CLASSES, torch.ones(3, device="meta")])
