"""Numbers next to zero, found in whatever a loader yields."""

from __future__ import annotations

from itertools import chain, cycle

import numpy as np
import pytest
import torch

from stallmeter.timing import subnormal
from stallmeter.timing.subnormal import MOST_TENSORS, SAMPLE, are_slow, subnormal_in, subnormal_share

NORMAL = torch.randn(4, 1000)
TINY = torch.rand(4, 1000) * 1e-39 + 1e-40


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that is slow with them, whatever the tests run on."""
    monkeypatch.setattr(subnormal, "are_slow", lambda: True)


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


@pytest.mark.parametrize(("times", "slow"), [(1.0, False), (1.2, False), (2.0, True), (30.0, True)])
def test_a_cpu_is_slow_with_them_or_not(times: float, slow: bool) -> None:
    """Other numbers and these are computed with in turn."""
    taken = chain.from_iterable((0, 1000 if other else round(1000 * times)) for other in cycle((True, False)))
    assert are_slow(lambda: next(taken)) is slow


def test_one_trial_that_was_held_up_is_no_slow_cpu() -> None:
    taken = chain([0, 1000, 0, 50_000], chain.from_iterable((0, 1000) for _ in range(100)))
    assert are_slow(lambda: next(taken)) is False


def test_where_the_cpu_is_as_quick_with_them_they_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subnormal, "are_slow", lambda: False)
    assert subnormal_share(TINY) == 0.0
    assert subnormal_in([TINY]) == 0.0


def test_this_cpu_is_tried_once() -> None:
    assert are_slow() is are_slow()
    assert are_slow.cache_info().hits


def test_the_larger_tensor_counts_for_more() -> None:
    assert subnormal_in([torch.ones(30), torch.full((10,), 1e-40)]) == pytest.approx(0.25)
    assert subnormal_in([torch.ones(30), torch.zeros(10, dtype=torch.int64)]) == 0.0
    small = [torch.full((2,), 1e-40) for _ in range(3)]
    assert subnormal_in([*small, *(torch.ones(4) for _ in range(MOST_TENSORS))]) == 0.0
    assert subnormal_in([]) is None
    assert subnormal_in([torch.ones(4).requires_grad_()]) is None
