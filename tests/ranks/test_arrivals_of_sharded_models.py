"""Sharded models have many collectives in a step, and each rank is the last in some."""

from __future__ import annotations

import random

import pytest

from stallmeter.ranks.arrivals import late_in_exchanges
from stallmeter.ranks.steps import RankSteps
from stallmeter.records import Arrivals

STEPS, COLLECTIVES, STEP_S, LATE_S = 60, 8, 0.040, 0.012


def job(late: int, seed: int) -> tuple[dict[int, list[Arrivals]], list[RankSteps]]:
    """Two ranks of one host: one is late with the third collective of each step, and all shake by a millisecond."""
    draw = random.Random(seed)
    began: dict[int, list[int]] = {0: [], 1: []}
    now_s = 1000.0
    for _ in range(STEPS):
        for number in range(COLLECTIVES):
            asked = [now_s + draw.uniform(0.0, 0.001) for _ in range(2)]
            asked[late] += LATE_S if number == 2 else 0.0
            for rank in (0, 1):
                began[rank].append(round((asked[rank] - 1000.0) * 1e6))
            now_s = max(asked) + 0.002
        now_s += 0.001
    count = STEPS * COLLECTIVES
    arrivals = {
        rank: [
            Arrivals(
                time_s=now_s,
                group="0:default_pg",
                base_s=1000.0,
                sequence=tuple(range(count)),
                began_us=tuple(began[rank]),
                took_us=(-1,) * count,
                sent_bytes=(1000,) * count,
            )
        ]
        for rank in (0, 1)
    }
    length_s = (now_s - 1000.0) / STEPS
    ends = [1000.0 + length_s * (at + 1) for at in range(STEPS)]
    steps = [
        RankSteps(rank, list(range(STEPS)), ends, {"compute": [length_s] * STEPS}, [None] * STEPS, "host")
        for rank in (0, 1)
    ]
    return arrivals, steps


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_the_rank_that_most_is_waited_for_is_the_late_one_of_a_step(late: int, seed: int) -> None:
    found = late_in_exchanges(*job(late, seed))
    assert found is not None
    assert found.late_steps.get(late, 0) >= 0.9 * STEPS
    assert found.late_steps.get(1 - late, 0) <= 0.1 * STEPS
    assert found.lost_s[late] == pytest.approx(STEPS * LATE_S, rel=0.3)
