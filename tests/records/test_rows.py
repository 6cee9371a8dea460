"""Rows of steps are chosen evenly, by index alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records.rows import ROW, is_kept

STEPS = 200_000


@given(st.integers(0, 10**9), st.integers(0, 20), st.integers(0, 20))
def test_whole_rows_and_some_of_those_that_are_kept_of_more(index: int, few: int, many: int) -> None:
    few, many = sorted((few, many))
    assert is_kept(index, 1)
    assert is_kept(index, 1 << few) or not is_kept(index, 1 << many)
    assert len({is_kept(index // ROW * ROW + i, 1 << few) for i in range(ROW)}) == 1


@pytest.mark.parametrize("every", [2, 4, 16, 64])
@pytest.mark.parametrize("period", [1, 2, 3, 8, 10, 16, 20, 50, 64, 100, 128, 256, 1000])
def test_what_comes_periodically_is_kept_as_often_as_it_comes(period: int, every: int) -> None:
    for at in (0, period // 2, period - 1):
        kept = sum(is_kept(index, every) for index in range(at, STEPS, period))
        assert kept == pytest.approx(STEPS / period / every, rel=0.1, abs=4)
