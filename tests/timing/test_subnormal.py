"""Numbers next to zero, found in whatever a loader yields."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stallmeter.timing.subnormal import MOST_TENSORS, SAMPLE, subnormal_in, subnormal_share

NORMAL = torch.randn(4, 1000)
TINY = torch.rand(4, 1000) * 1e-39 + 1e-40


@pytest.mark.parametrize(
    ("batch", "share"),
    [
        (NORMAL, 0.0),
        (TINY, 1.0),
        ((NORMAL, TINY), 0.5),
        ({"x": TINY, "more": [NORMAL, {"y": NORMAL}]}, 1 / 3),
        (torch.zeros(8), 0.0),
        (-TINY, 1.0),
        (TINY.double(), 0.0),
        (NORMAL.double() * 1e-309, 1.0),
        (TINY.numpy(), 1.0),
        ([NORMAL] * MOST_TENSORS + [TINY], 0.0),
    ],
)
def test_their_share_of_all_numbers(batch: object, share: float) -> None:
    assert subnormal_share(batch) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(8),
        NORMAL.half(),
        NORMAL.clone().requires_grad_(),
        NORMAL.t(),
        NORMAL.to_sparse(),
        torch.empty(0),
        np.array(["a", "b"]),
        "text",
        None,
        [],
        [[[[[NORMAL]]]]],
    ],
)
def test_where_nothing_can_be_read(batch: object) -> None:
    assert subnormal_share(batch) is None


def test_a_large_tensor_is_sampled() -> None:
    """Also where they recur with a power of two."""
    large = torch.ones(64 * SAMPLE)
    large[::16] = 1e-40
    assert subnormal_share(large) == pytest.approx(1 / 16, rel=0.1)


def test_where_they_are_flushed_they_cost_nothing() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot")
    try:
        assert subnormal_share(TINY) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert subnormal_share(TINY) == 1.0


def test_the_larger_tensor_counts_for_more() -> None:
    assert subnormal_in([torch.ones(30), torch.full((10,), 1e-40)]) == pytest.approx(0.25)
    assert subnormal_in([torch.ones(30), torch.zeros(10, dtype=torch.int64)]) == 0.0
    small = [torch.full((2,), 1e-40) for _ in range(3)]
    assert subnormal_in([*small, *(torch.ones(4) for _ in range(MOST_TENSORS))]) == 0.0
    assert subnormal_in([]) is None
    assert subnormal_in([torch.ones(4).requires_grad_()]) is None
