"""What stallmeter costs is held against the run, and it holds back in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stallmeter.engine.overhead_limiter import (
    EASE_PCT,
    FIRST_LIMIT_PCT,
    LIMIT_PCT,
    MOST,
    PERIOD_S,
    SETTLE_S,
    OverheadLimiter,
)


def run(limiter: OverheadLimiter, *shares_pct: float, start_s: float = SETTLE_S) -> list[int]:
    """Let whole periods pass at these costs and return the level after each."""
    wall_s = start_s
    cost_s = 0.0
    limiter.note(wall_s, cost_s)
    levels = []
    for share in shares_pct:
        wall_s += PERIOD_S
        cost_s += PERIOD_S * share / 100
        limiter.note(wall_s, cost_s)
        levels.append(limiter.level)
    return levels


def test_it_holds_back_while_it_costs_too_much_and_comes_back() -> None:
    assert run(OverheadLimiter(), 0.4, 0.9, 0.9, 0.4, 0.1, 0.1, 0.1) == [1, 2, 4, 4, 2, 1, 1]


def test_it_never_stops_watching() -> None:
    assert run(OverheadLimiter(), *[50.0] * 20)[-1] == MOST


def test_the_beginning_is_watched_closely_unless_that_costs_much() -> None:
    assert run(OverheadLimiter(), 0.9 * FIRST_LIMIT_PCT, 0.9 * FIRST_LIMIT_PCT, start_s=0.0) == [1, 1]
    assert run(OverheadLimiter(), 1.1 * FIRST_LIMIT_PCT, 1.1 * FIRST_LIMIT_PCT, start_s=0.0) == [2, 4]


def test_a_part_of_a_period_says_nothing() -> None:
    limiter = OverheadLimiter()
    assert not limiter.note(SETTLE_S - 1, 0.0)
    assert not limiter.note(SETTLE_S, 20.0)
    assert limiter.level == 1


@given(st.lists(st.floats(0, 5), max_size=60))
def test_the_level_is_a_small_power_of_two_and_moves_the_right_way(shares: list[float]) -> None:
    limiter = OverheadLimiter()
    before = 1
    for share, level in zip(shares, run(limiter, *shares), strict=True):
        assert level in (1, 2, 4, 8, 16)
        assert level <= before or share > LIMIT_PCT - 1e-6
        assert level >= before or share < EASE_PCT + 1e-6
        before = level
