"""Ranks whose own workers take the CPU from their training thread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.job import COST, CPU_WAIT, Job
from stallmeter.records import LoaderInfo
from stallmeter.records.diagnosis import Advice, Diagnosis
from stallmeter.rules.job.evaluation import judge

from .jobs import Known, diagnosis, job, late

LATE_S = 0.030


def prep_stall(lost_s: float = 200 * LATE_S) -> Diagnosis:
    advice = Advice.of("Make items cheaper.", expect="Less CPU.", gain_pct=400.0, interval_pct=(300.0, 500.0))
    return diagnosis("prep-stall", lost_s=lost_s, advice=(advice,))


def crowded(
    cost_s: tuple[float, float] = (0.008, 0.080),
    waits_pct: tuple[float, float] = (10.0, 30.0),
    *,
    workers: int = 1,
    own: str = "prep-stall",
) -> Job:
    """Rank 1's forward pass takes 30 ms longer, beside a worker that computes."""
    said = [replace(prep_stall(), rule=own)]
    known = {rank: Known(said if rank else [], {COST: cost_s[rank], CPU_WAIT: waits_pct[rank]}) for rank in range(2)}
    made = job(late(1, "forward", LATE_S), known=known)
    info = LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=workers)
    return replace(made, ranks=tuple(replace(view, loader=info) for view in made.ranks))


def test_its_data_are_the_cause() -> None:
    made = crowded()
    primary = judge(made).verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks) == ("prep-stall", (1,))
    assert "late with its data" in primary.summary
    assert primary.time_lost_s == pytest.approx(200 * LATE_S, rel=0.05)
    assert "Split the items evenly" in primary.advice[0].text


def test_what_frees_cpus_wins_more_than_the_waits_for_that_rank() -> None:
    """The other rank waits for a CPU a tenth of its time, and may have a part of that."""
    made = crowded()
    primary = judge(made).verdict.primary
    assert primary is not None
    advice = primary.advice[1]
    whole_s, lost_s = made.training_s, primary.time_lost_s
    assert advice.predicted_gain_pct == pytest.approx(
        100 * (whole_s / (whole_s - lost_s - 0.05 * whole_s) - 1), rel=0.02
    )
    interval = advice.gain_interval_pct
    assert interval is not None
    assert interval[0] < 100 * (whole_s / (whole_s - lost_s) - 1)
    assert interval[1] > 100 * (whole_s / (whole_s - lost_s - 0.1 * whole_s) - 1)


@pytest.mark.parametrize(
    "made",
    [
        crowded(cost_s=(0.078, 0.080)),
        crowded(cost_s=(0.001, 0.010)),
        crowded(waits_pct=(28.0, 30.0)),
        crowded(workers=0),
    ],
    ids=["batches cost as much", "they cost too little", "it waits for a CPU as the other", "no workers"],
)
def test_else_it_is_late_with_its_own_work(made: Job) -> None:
    primary = judge(made).verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks) == ("straggler", (1,))


def test_where_its_own_records_say_nothing_of_data_the_rank_is_named_all_the_same() -> None:
    primary = judge(crowded(own="slow-callback")).verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks) == ("straggler", (1,))
    assert "late with its data" in primary.summary
