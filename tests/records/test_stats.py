"""What describes a series, against its definition."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records.stats import deviation, percentile, weighted_percentile, weighted_sum

WEIGHTED = st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 64)), min_size=1, max_size=30)


@given(WEIGHTED, st.floats(0, 1))
def test_a_weight_is_how_often_a_value_is_there(weighted: list[tuple[float, int]], share: float) -> None:
    values, weights = [value for value, _ in weighted], [weight for _, weight in weighted]
    whole = [value for value, weight in weighted for _ in range(weight)]
    assert weighted_percentile(values, weights, share) == pytest.approx(percentile(sorted(whole), share))
    assert weighted_sum(values, weights) == pytest.approx(sum(whole))


def test_the_deviation_of_a_normal_series_is_not_widened_by_one_large_value() -> None:
    values = statistics.NormalDist(5.0, 2.0).samples(1001, seed=0)
    assert deviation(values, 5.0) == pytest.approx(2.0, rel=0.1)
    assert deviation([*values, 1e6], 5.0) == pytest.approx(2.0, rel=0.1)
