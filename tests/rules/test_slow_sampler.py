"""slow-sampler: the next indices are made on the training thread, and take long."""

from __future__ import annotations

import pytest

from stallmeter.records import CodeLook, CodeSpot
from stallmeter.records.diagnosis import Location
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.slow_sampler import SlowSampler
from stallmeter.window import Window

from .windows import START_S, fires, loader, run, silent


def waited(share: float, seen: int = 100, wait_s: float = 30.0) -> Window:
    """A run whose wait for data is the sampler's for a share."""
    spot = CodeSpot(file="train.py", line=12, function="HardFirst.rank", own=True, wall_s=share, calls=("sorted",))
    look = CodeLook(
        time_s=START_S,
        place="loop",
        bucket="data_wait",
        rule="slow-sampler",
        method="samples",
        seen=seen,
        wall_s=1.0,
        spots=(spot,) if share else (),
    )
    return run(loader(), look, data_wait=wait_s)


def test_fires():
    found = fires(SlowSampler(), waited(0.9))
    assert found.time_lost_s == pytest.approx(27.0)
    assert found.location == Location("train.py", 12, "HardFirst.rank", 90.0, "sorted")


def test_a_wait_for_workers_is_none_of_it_and_neither_is_a_short_one():
    assert silent(SlowSampler(), waited(0.0))
    assert silent(SlowSampler(), waited(0.3))
    assert silent(SlowSampler(), waited(0.9, wait_s=5.0))
    assert silent(SlowSampler(), waited(0.9, seen=10))


def test_no_number_of_workers_is_recommended_for_it():
    verdict = evaluate(ALL_RULES, waited(0.9))
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-sampler"
    assert verdict.num_workers is None or verdict.num_workers.recommended <= verdict.num_workers.current
