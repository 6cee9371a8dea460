"""Whether a series rises."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.window.trends import trend


@given(
    count=st.integers(16, 400),
    slope=st.floats(-1e3, 1e3),
    start=st.floats(0, 1e6),
    wild=st.integers(0, 3),
)
def test_a_line_is_found(count, slope, start, wild):
    """A straight line is found exactly, a few wild values or not."""
    points = [(float(i), start + slope * i) for i in range(count)]
    for i in range(wild):
        points[(i + 1) * count // 5] = (points[(i + 1) * count // 5][0], 1e12)
    found = trend(points)
    assert found is not None
    tolerance = 1e-6 * max(1.0, abs(start)) if not wild else 0.5 * abs(slope) + 1e-3
    assert found.per_s == pytest.approx(slope, abs=tolerance)


def test_a_trend_leaves_the_warm_up_out():
    """The first quarter does not count: neither for the slope nor for the growth."""
    found = trend([(float(i), 1e9 if i < 25 else 2.0 * i) for i in range(100)])
    assert found is not None
    assert found.per_s == pytest.approx(2.0)
    assert found.growth == pytest.approx(2.0 * 74)
    assert found.start == pytest.approx(50.0)
    assert found.noise == pytest.approx(0.0, abs=1e-9)
    assert found.lasts


def test_noise_of_a_trend():
    """The scatter around the line is about its standard deviation."""
    draw = random.Random(1)
    found = trend([(float(i), 3.0 * i + draw.gauss(0, 10)) for i in range(60)])
    assert found is not None
    assert 5 < found.noise < 15


def test_a_trend_that_ends():
    """What has stopped to rise does not last, nor does what falls."""
    levelled = trend([(float(i), float(min(i, 60))) for i in range(100)])
    assert levelled is not None
    assert not levelled.lasts
    falling = trend([(float(i), -float(i)) for i in range(100)])
    assert falling is not None
    assert not falling.lasts


@pytest.mark.parametrize("clusters", [3, 4, 6])
def test_long_pauses(clusters):
    """Many readings at a few times, hours apart, as between validations: no line goes through so few."""
    points = [(3600.0 * part + i, 1e6 * part + i) for part in range(clusters) for i in range(60)]
    assert trend(points) is None


def test_no_trend():
    """Too few points, or all at one time, have none."""
    assert trend([(float(i), 1.0) for i in range(8)]) is None
    assert trend([(0.1 * i, 1.0) for i in range(50)]) is None
    assert trend([(5.0, float(i)) for i in range(100)]) is None


def test_any_intervals():
    """Five readings a second at first and one a second later are one line."""
    times = [0.2 * i for i in range(50)] + [10.0 + i for i in range(90)]
    found = trend([(time_s, 3.0 * time_s) for time_s in times])
    assert found is not None
    assert found.per_s == pytest.approx(3.0)
    assert found.growth == pytest.approx(3.0 * (99 - 25), rel=0.02)
    assert found.is_sure
    assert found.lasts


def test_few_points_are_enough_where_each_rises():
    """Seven in a row are no chance; with one of them out of order they may be."""
    assert trend([(float(i), float(i)) for i in range(9)]).is_sure  # type: ignore[union-attr]
    values = [0, 1, 2, 3, 4, 6, 5, 7, 8]
    assert not trend([(float(i), float(v)) for i, v in enumerate(values)]).is_sure  # type: ignore[union-attr]


def test_few_jumps_are_no_trend():
    """Each fifth must rise: what jumps twice may never jump again."""
    jumps = trend([(float(i), 100.0 * (i // 45)) for i in range(100)])
    assert jumps is not None
    assert not jumps.is_sure
