"""The noise within a run: calibrated, blind to the order of the two runs, and silent where too little is known."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.report.compare.noise import (
    BLOCKS,
    MIN_BLOCK_STEPS,
    MIN_BLOCKS,
    Noise,
    interval_of_difference,
    noise_of_rate,
    noise_of_steps,
    student_t,
)

from ..recordings import ledger


@pytest.mark.parametrize(("freedom", "table"), [(4, 2.776), (5, 2.571), (10, 2.228), (19, 2.093), (38, 2.024)])
def test_students_t(freedom, table):
    """As in the printed tables."""
    assert student_t(freedom) == pytest.approx(table, rel=0.01)


def test_too_few_steps_say_nothing():
    """A spread needs five blocks of five steps."""
    assert noise_of_steps([1.0] * (MIN_BLOCKS * MIN_BLOCK_STEPS - 1), statistics.median) is None
    assert noise_of_steps([1.0] * (MIN_BLOCKS * MIN_BLOCK_STEPS), statistics.median) == Noise(0.0, MIN_BLOCKS)
    assert noise_of_steps([1.0] * 10_000, statistics.median) == Noise(0.0, BLOCKS)


def _series(rng: random.Random, mean: float, correlation: float = 0.0) -> list[float]:
    """Step times that resemble the one before them."""
    value, found = 0.0, []
    for _ in range(400):
        value = correlation * value + rng.gauss(0, 0.1)
        found.append(mean + value)
    return found


@pytest.mark.parametrize("correlation", [0.0, 0.6])
@pytest.mark.parametrize("number", [statistics.median, statistics.fmean])
def test_runs_that_do_not_differ_are_told_to_differ_one_time_in_twenty(correlation, number):
    """The interval leaves out 0 in about 5 % of the pairs, also when neighbouring steps resemble each other."""
    rng = random.Random(7)
    outside, pairs = 0, 500
    for _ in range(pairs):
        a, b = (_series(rng, 1.0, correlation) for _ in range(2))
        low, high = interval_of_difference(
            number(a), noise_of_steps(a, number), number(b), noise_of_steps(b, number)
        )  # fmt: skip
        outside += not low <= 0 <= high
    assert 0.02 <= outside / pairs <= 0.09


def test_a_real_difference_is_seen():
    """Far beyond the noise."""
    rng = random.Random(7)
    a, b = _series(rng, 1.0), _series(rng, 1.2)
    low, high = interval_of_difference(
        statistics.median(a),
        noise_of_steps(a, statistics.median),
        statistics.median(b),
        noise_of_steps(b, statistics.median),
    )
    assert 0 < low < 0.2 < high


def readings(rates):
    """Ledgers a second apart, with so many steps in each second."""
    steps = 1
    found = [ledger(wall_s=3.0, steps=steps, buckets={"start": 3.0})]
    for i, rate in enumerate(rates, 1):
        steps += rate
        found.append(ledger(wall_s=3.0 + i, steps=steps, buckets={"start": 3.0}))
    return found


def test_the_noise_of_a_rate():
    """Equal blocks have none; without the start; too few readings say nothing."""
    assert noise_of_rate(readings([10] * 40), lambda r: r.steps) == Noise(0.0, BLOCKS)
    assert noise_of_rate(readings([10] * 4), lambda r: r.steps) is None
    assert noise_of_rate([], lambda r: r.steps) is None
    assert noise_of_rate(readings([10] * 40), lambda r: None) is None
    found = noise_of_rate(readings([8, 12] * 3), lambda r: r.steps)
    assert found == Noise(pytest.approx(statistics.stdev([8, 12] * 3) / math.sqrt(6)), 6)


@given(
    st.floats(-1e6, 1e6),
    st.floats(-1e6, 1e6),
    st.builds(Noise, st.floats(0, 1e6), st.integers(MIN_BLOCKS, BLOCKS)),
    st.builds(Noise, st.floats(0, 1e6), st.integers(MIN_BLOCKS, BLOCKS)),
)
def test_swapping_mirrors_the_interval(a, b, noise_a, noise_b):
    """To the last bit; and the difference lies in it."""
    low, high = interval_of_difference(a, noise_a, b, noise_b)
    assert (-high, -low) == interval_of_difference(b, noise_b, a, noise_a)
    assert low <= b - a <= high
    assert interval_of_difference(a, None, b, noise_b) is None
