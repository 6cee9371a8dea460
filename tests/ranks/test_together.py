"""Whether ranks train together is told by how far their sums drift apart."""

from __future__ import annotations

import random

import pytest

from stallmeter.ranks.steps import RankSteps
from stallmeter.ranks.together import STEPS, Drift, accumulation


def walked(steps: int, seconds: list[list[float]], each: int = 10**9) -> float | None:
    """Return the drift of ranks that spend the same in each step, cut after so many."""
    drift = Drift(len(seconds[0]))
    for step in range(steps):
        for spent in seconds:
            drift.spent(spent)
        drift.exchanged()
        if (step + 1) % each == 0:
            drift.cut()
    drift.cut()
    return drift.value


@pytest.mark.parametrize("each", [1, 8, 10**9])
def test_who_meets_and_who_does_not(each: int) -> None:
    assert walked(64, [[0.03, 0.0], [0.0, 0.03]], each) == pytest.approx(0.0)
    assert walked(64, [[0.03, 0.0], [0.001, 0.001]], each) == pytest.approx(1.0)
    assert walked(64, [[0.03, 0.0, 0.0], [0.0, 0.03, 0.03]], each) == pytest.approx(0.0)
    assert walked(64, [[0.01, 0.01], [0.02, 0.02]], each) is None


def test_chance_makes_less_than_what_never_meets() -> None:
    draw = random.Random(3)
    alone, meeting = Drift(4), Drift(4)
    for _ in range(640):
        own = [draw.gauss(0.02, 0.003) for _ in range(4)]
        for drift in (alone, meeting):
            drift.spent(own)
        meeting.spent([max(own) - seconds for seconds in own])
        alone.spent([draw.gauss(0.02, 0.003) for _ in range(4)])
        for drift in (alone, meeting):
            drift.exchanged()
    assert (alone.value or 0.0) > 0.4
    assert (meeting.value or 1.0) < 0.01


def test_what_is_late_at_the_edge_now_and_then() -> None:
    """A checkpoint just before a row of steps ends is waited for in the next one."""
    drift = Drift(2)
    for row in range(20):
        for step in range(STEPS):
            drift.spent([0.01, 0.01 + 0.5 * (step == 0 and row % 5 == 1)])
            drift.spent([0.003, 0.0])
            drift.spent([0.0, 0.003])
            drift.exchanged()
            drift.spent([0.5 * (step == STEPS - 1 and row % 5 == 0), 0.0])
        drift.cut()
    assert drift.value == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("index", "updates", "expected"),
    [
        (range(9), [0, 0, 0, 1, 1, 1, 1, 2, 2], 4),
        (range(4), [1, 2, 3, 4], 1),
        (range(4), [None, None, 3, 3], 1),
        (range(4), [5, 5, 5, 5], 1),
        ([], [], 1),
        (range(0, 40, 4), [step // 2 for step in range(0, 40, 4)], 2),
        ([0, 10**6], [0, 1], 1),
    ],
)
def test_steps_of_an_update(index: list[int], updates: list[int | None], expected: int) -> None:
    rank = RankSteps(0, list(index), [0.0] * len(list(index)), {}, updates)
    assert accumulation(rank) == expected
