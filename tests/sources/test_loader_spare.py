"""What is sent with a batch that it does not hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stallmeter.sources.loader.spare import MOST_TENSORS, spare_bytes

PICTURE = 3 * 40 * 40
CROP = 3 * 10 * 10


def crop() -> torch.Tensor:
    return torch.zeros(3, 40, 40, dtype=torch.uint8)[:, :10, :10]


@pytest.mark.parametrize(
    ("batch", "spare"),
    [
        ([crop(), crop()], 2 * (PICTURE - CROP)),
        ([(crop(), 1), (crop(), 2)], 2 * (PICTURE - CROP)),
        ({"picture": [crop()], "label": torch.zeros(4)}, PICTURE - CROP),
        ([crop().clone()], 0),
        (torch.stack([crop(), crop()]), 0),
        (list(torch.zeros(8, 5).unbind()), 0),
        (torch.zeros(1, 5).expand(100, 5), 0),
        ([torch.eye(3).to_sparse()], None),
        (["a", "b"], None),
        ([1, 2], None),
        ([], None),
        (None, None),
        ([torch.zeros(1)] * (MOST_TENSORS + 1), None),
    ],
)
def test_what_storages_have_beyond_their_tensors(batch: Any, spare: int | None) -> None:
    assert spare_bytes(batch) == spare


def test_what_is_shared_already_is_not_sent_again() -> None:
    assert spare_bytes([torch.zeros(1000).share_memory_()[:10], crop()]) == PICTURE - CROP
