"""Ranks whose items are dearer than those of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.job import COST, cost_of
from stallmeter.records import LoaderInfo, WorkerBatch
from stallmeter.rules.job.evaluation import judge

from ..windows import check_fix
from .jobs import Known, diagnosis, job, late

# Rank 1 waits 60 ms longer for its data than the others, whose steps take 20 ms.
WAITS = diagnosis("prep-stall", lost_s=12.0)


def first_advice(*cost_s: float | None, bucket: str = "data_wait") -> str:
    known = {
        rank: Known([WAITS] if rank == 1 else [], {} if each_s is None else {COST: each_s})
        for rank, each_s in enumerate(cost_s)
    }
    primary = judge(job(late(1, bucket, 0.060), ranks=len(cost_s), known=known)).verdict.primary
    assert primary is not None
    assert primary.ranks == (1,)
    return primary.advice[0].text if primary.advice else ""


def test_dearer_items_are_dealt_out_evenly() -> None:
    known = {0: Known([], {COST: 0.010}), 1: Known([WAITS], {COST: 0.080})}
    primary = judge(job(late(1, "data_wait", 0.060), known=known)).verdict.primary
    assert primary is not None
    (advice, *others) = primary.advice
    check_fix(advice.fix)
    assert advice.fix.do.startswith("Split the items evenly over the ranks")
    assert advice.fix.expect == "A batch costs rank 1 80 ms of CPU, the others 10 ms; split evenly the mean."
    # Of 80 ms for a step 60 were waited; evenly dealt both ranks take 50.
    assert advice.predicted_gain_pct == pytest.approx(100 * (80 / 50 - 1), rel=0.05)
    assert [one.text for one in others][:1] == [WAITS.advice[0].text] if WAITS.advice else True


@pytest.mark.parametrize(
    "cost_s",
    [(0.079, 0.080), (None, 0.080), (0.010, None), (0.002, 0.006)],
    ids=["alike", "others not known", "not known", "explains too little of its lateness"],
)
def test_else_nothing_is_said_of_it(cost_s: tuple[float | None, ...]) -> None:
    assert not first_advice(*cost_s).startswith("Split the items")


@pytest.mark.parametrize(("kind", "told"), [("DataLoaderDispatcher", True), ("DataLoaderShard", False)])
def test_one_rank_that_reads_for_all_is_told_to_stop(kind: str, told: bool) -> None:
    made = job(late(0, "data_wait", 0.060), known={0: Known([WAITS])})
    loader = LoaderInfo(time_s=1.0, kind=kind, num_workers=0, probed=True)
    views = tuple(replace(view, loader=loader) for view in made.ranks)
    primary = judge(replace(made, ranks=views)).verdict.primary
    assert primary is not None
    split = [one for one in primary.advice if "leave its loader out of accelerator.prepare" in one.text]
    assert bool(split) is told
    for advice in split:
        check_fix(advice.fix)
        assert advice.fix.expect == "Rank 0 reads for all ranks now; then each reads its own share."
        # Of 80 ms for a step 60 were waited; where each of the two ranks reads for itself it is half of that.
        assert advice.predicted_gain_pct == pytest.approx(100 * (80 / 50 - 1), rel=0.05)
    assert not told or primary.advice[0] in split


def batch(**more: int) -> WorkerBatch:
    return WorkerBatch(worker=more.pop("worker", 0), time_s=1.0, wall_s=0.080, cpu_s=0.01, process_cpu_s=0.03, **more)


def test_the_cost_of_a_batch() -> None:
    assert cost_of([batch()] * 10) == {COST: pytest.approx(0.03)}  # with the threads of a decoder
    assert cost_of([batch(worker=-1)] * 10) == {COST: pytest.approx(0.01)}  # the loop has other threads
    assert cost_of([batch()] * 3) == {}
    assert cost_of([batch()] * 5 + [batch(loader=1)] * 5) == {}


@pytest.mark.parametrize(("others", "told"), [(0.0, True), (0.5, False)])
def test_a_rank_that_evaluates_for_all_is_to_share_that_out(others: float, told: bool) -> None:
    def work(rank: int, step: int) -> dict[str, float]:
        return {"validation": 0.060 if rank == 0 else 0.060 * others}

    heavy = diagnosis("validation-heavy", 11.0)
    primary = judge(job(work, known={0: Known([heavy])})).verdict.primary
    assert primary is not None
    split = [one for one in primary.advice if one.text.startswith("Split validation over all ranks")]
    assert bool(split) is told
    for advice in split:
        assert advice == primary.advice[0]
        check_fix(advice.fix)
        assert advice.fix.expect == "Rank 0 evaluates alone now; then each of 2 ranks does its part."
        # Of 80 ms for a step 60 are waited for; shared out it is half of that.
        assert advice.predicted_gain_pct == pytest.approx(100 * (80 / 50 - 1), rel=0.05)
