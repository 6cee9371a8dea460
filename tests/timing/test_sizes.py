"""Batches smaller than many before them."""

from __future__ import annotations

import pytest

from stallmeter.timing.sizes import ALIKE, Sizes


def falls(sizes: list[int | None]) -> list[int]:
    """Which of some batches are told, by their number."""
    known = Sizes()
    return [at for at, size in enumerate(sizes) if known.falls(size)]


def test_the_last_of_each_epoch_is_told() -> None:
    epoch: list[int | None] = [16] * ALIKE + [9]
    assert falls(epoch * 3) == [ALIKE, 2 * ALIKE + 1, 3 * ALIKE + 2]


@pytest.mark.parametrize(
    "sizes",
    [
        [16] * 40,
        [9] * 20 + [16] * 20,
        [16, 9] * 20,
        [None] * 20 + [9],
        [16] * (ALIKE - 1) + [9],
        [16] * 20 + [None],
    ],
    ids=["one size", "larger ones", "in turn", "not known", "few of them", "not known at last"],
)
def test_others_are_not(sizes: list[int | None]) -> None:
    assert falls(sizes) == []
