"""How full the batches are, from those that were looked at."""

from __future__ import annotations

import pytest

from stallmeter.records import BatchContent
from stallmeter.window.filled import MIN_BATCHES, Filled


def looked(*contents: tuple[float | None, int | None, str]) -> float | None:
    """What is said of batches that are so full, so long, and known by that."""
    made = Filled()
    for share, positions, by in contents:
        made.add(BatchContent(time_s=0.0, tensors=1, bytes=8, positions=positions, filled=share, filled_by=by))
    return made.share


def test_the_longer_ones_count_more() -> None:
    assert looked(*[(0.5, 100, "ids"), (0.2, 200, "ids")] * 3) == pytest.approx(0.3)


def test_beyond_the_longest_sequence_nothing_is_counted() -> None:
    made = Filled()
    for used in (10, 30) * MIN_BATCHES:
        content = BatchContent(time_s=0.0, tensors=1, bytes=8, positions=99, used_positions=used, filled=used / 100.0)
        made.add(content)
    assert made.share == pytest.approx(0.25)


def test_most_batches_agree() -> None:
    known, unknown = (0.5, 100, "ids"), (None, None, "")
    assert looked() is None
    assert looked(*[known] * (MIN_BATCHES - 1)) is None
    assert looked(*[known] * 8, *[unknown] * 2) == pytest.approx(0.5)
    assert looked(*[known] * 8, *[unknown] * 3) is None
    assert looked(*[unknown] * 20) is None


def test_signals_of_one_length_may_be_columns() -> None:
    assert looked(*[(0.5, 100, "signal")] * 8) is None
    assert looked(*[(0.5, 100, "signal")] * 8, (0.5, 90, "signal")) == pytest.approx(0.5)
    assert looked(*[(0.5, 100, "mask")] * 8) == pytest.approx(0.5)
