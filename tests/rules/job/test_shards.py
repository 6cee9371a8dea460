"""Ranks whose share of the data is longer than the others'."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.job import Job
from stallmeter.records.diagnosis import Diagnosis
from stallmeter.rules.job.evaluation import judge
from stallmeter.rules.job.rank_imbalance import RankImbalance
from stallmeter.rules.job.shards import uneven_shards

from ..windows import check_fix
from .jobs import Known, job

STEP_S = 0.020


def with_shards(*steps: int, ended: str | None = "end") -> Job:
    """Ranks of healthy steps of 20 ms, of which each takes as many as it has."""
    longest = max(steps)
    cut = {rank: count for rank, count in enumerate(steps) if count < longest}
    return job(ranks=len(steps), steps=longest, cut=cut, known={r: Known(ended=ended) for r in range(len(steps))})


def said(made: Job) -> list[Diagnosis]:
    return RankImbalance().check(made, [])


@pytest.mark.parametrize(
    ("steps", "ranks", "saved"),
    [((90, 210), (1,), 60), ((210, 90, 90, 90), (0,), 90), ((100, 100, 200, 200), (2, 3), 50)],
)
def test_even_shards_save_what_is_above_their_mean(steps: tuple[int, ...], ranks: tuple[int, ...], saved: int) -> None:
    made = with_shards(*steps)
    (found,) = said(made)
    assert found.ranks == ranks
    assert found.time_lost_s == pytest.approx(saved * STEP_S, rel=0.01)
    assert str(max(steps)) in found.summary
    (advice,) = found.advice
    check_fix(advice.fix)
    training_s = made.training_s
    gain_pct = 100 * (training_s / (training_s - saved * STEP_S) - 1)
    assert advice.predicted_gain_pct == pytest.approx(gain_pct, rel=0.02)


@pytest.mark.parametrize(
    "made",
    [
        with_shards(200, 200),
        with_shards(200, 204),
        with_shards(90, 210, ended=None),
        with_shards(90, 210, ended="exception: RuntimeError"),
    ],
    ids=["even", "a sampler's rounding", "goes on", "one has failed"],
)
def test_silent(made: Job) -> None:
    assert uneven_shards(made) is None
    assert said(made) == []


def test_a_rank_that_is_not_known_may_have_as_many() -> None:
    made = with_shards(90, 210, 210)
    assert uneven_shards(replace(made, ranks=made.ranks[:2])) is None


def test_it_is_the_jobs_cause_and_no_straggler_beside_it() -> None:
    verdict = judge(with_shards(90, 210)).verdict
    assert verdict.primary is not None
    assert (verdict.primary.rule, verdict.primary.ranks) == ("rank-imbalance", (1,))
    assert "straggler" not in {one.rule for one in verdict.diagnoses}
