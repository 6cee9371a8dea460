"""Loaders that are too slow, though their rank waits for another one instead."""

from __future__ import annotations

import pytest

from stallmeter.ranks.job import SUPPLY, supply_of
from stallmeter.records import LoaderInfo, WorkerBatch
from stallmeter.rules.job.evaluation import judge
from stallmeter.rules.job.starved import as_slow, starved

from .jobs import Known, diagnosis, in_turn, job, late

# Rank 1 waits 60 ms longer for its data than a healthy rank: its batches come 80 ms apart. Others need 19 ms a step.
WAITS = diagnosis("fetch-stall", lost_s=12.0)


def known(*supply_s: float | None, says: tuple[int, ...] = (1,)) -> dict[int, Known]:
    return {
        rank: Known([WAITS] if rank in says else [], {} if each_s is None else {SUPPLY: each_s})
        for rank, each_s in enumerate(supply_s)
    }


@pytest.mark.parametrize(
    ("supply_s", "named"),
    [
        ((0.080, 0.080), ()),
        ((0.070, 0.080), ()),
        ((0.050, 0.080), (1,)),  # it is too slow for its own steps, but rank 1 is slower
        ((0.019, 0.080), (1,)),
        ((None, 0.080), (1,)),
        ((0.080, None), ()),
        ((0.080, 0.080, 0.010), (0, 1)),
        ((0.080, 0.080, 0.080), ()),
    ],
)
def test_a_loader_that_is_as_slow_is_named_too(supply_s, named):
    made = job(late(1, "data_wait", 0.060), ranks=len(supply_s), known=known(*supply_s))
    primary = judge(made).verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks) == ("fetch-stall", named)
    assert ("would be as late" in primary.summary) is (named != (1,))
    assert primary.time_lost_s == pytest.approx(12.0, rel=0.05)


def test_another_late_work_has_nothing_to_do_with_loaders():
    made = job(late(1, "forward", 0.060), known=known(0.080, 0.080, says=()))
    primary = judge(made).verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks) == ("straggler", (1,))


def test_loaders_that_starve_all_ranks_are_no_imbalance():
    work = in_turn(2, "data_wait", 0.060)
    alike = judge(job(work, known=known(0.050, 0.050, says=(0, 1)))).verdict.primary
    assert alike is not None
    assert (alike.rule, alike.ranks) == ("fetch-stall", ())
    uneven = judge(job(work, known=known(None, None, says=(0, 1)))).verdict.primary
    assert uneven is not None
    assert uneven.rule == "rank-imbalance"


def test_who_waits_for_nobody_does_not_starve():
    made = job(late(1, "data_wait", 0.060), known=known(0.080, 0.080))
    assert starved(made) == {0, 1}
    assert as_slow(made, (1,)) == (0,)
    assert as_slow(made, (0, 1)) == ()
    assert starved(job(only=(0,), known=known(0.080, 0.080))) == frozenset()


def batch(worker: int = 0, **more: float) -> WorkerBatch:
    return WorkerBatch(worker=worker, time_s=1.0, wall_s=0.080, cpu_s=0.01, **more)  # type: ignore[arg-type]


INFO = LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=2)


def test_the_supply_of_a_loader():
    assert supply_of([batch()] * 10, INFO) == {SUPPLY: pytest.approx(0.040)}
    assert supply_of([batch(run_queue_s=0.02)] * 10, INFO) == {SUPPLY: pytest.approx(0.030)}
    regrouped = LoaderInfo(time_s=0.0, kind="WebLoader", num_workers=2, batches_per_step=2.0)
    assert supply_of([batch()] * 10, regrouped) == {SUPPLY: pytest.approx(0.080)}


@pytest.mark.parametrize(
    ("batches", "info"),
    [
        ([batch()] * 3, INFO),  # too few
        ([batch(worker=-1)] * 10, INFO),  # made in the loop
        ([batch()] * 5 + [batch(loader=1)] * 5, INFO),  # of two loaders
        ([batch()] * 10, None),
        ([batch()] * 10, LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=0)),
        ([batch()] * 10, LoaderInfo(time_s=0.0, kind="Other")),
    ],
)
def test_a_supply_that_is_not_known(batches, info):
    assert supply_of(batches, info) == {}
