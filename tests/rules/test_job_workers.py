"""The job's number of workers, from recordings of ranks of which one is late for its data."""

from __future__ import annotations

from stallmeter.ranks.job import RankView, assemble
from stallmeter.ranks.steps import RankSteps
from stallmeter.recording import Header
from stallmeter.records import LedgerRecord
from stallmeter.records.diagnosis import Verdict, WorkerAdvice
from stallmeter.rules.job.evaluation import judge

STEPS = 200
STEP_S = 0.05


def advice(recommended: int, most: int | None = None) -> WorkerAdvice:
    return WorkerAdvice(
        current=2,
        recommended=recommended,
        predicted_step_time_s=0.02,
        predicted_gain_pct=0.0 if recommended == 2 else 150.0,
        limited_by="compute",
        reason=f"{recommended} it is",
        confidence=0.9,
        most=most,
    )


def view(rank: int, data_wait_s: float, backward_s: float, own: WorkerAdvice) -> RankView:
    """A rank whose backward holds its wait for the others."""
    forward_s = STEP_S - data_wait_s - backward_s
    seconds = {"data_wait": data_wait_s, "forward": forward_s, "backward": backward_s}
    buckets = {name: STEPS * each_s for name, each_s in seconds.items()}
    return RankView(
        rank=rank,
        header=Header(run_id="run", rank=rank, world_size=3, started_s=0.0, host="node"),
        steps=RankSteps(
            rank,
            list(range(STEPS)),
            [STEP_S * (index + 1) for index in range(STEPS)],
            {name: [each_s] * STEPS for name, each_s in seconds.items()},
            [None] * STEPS,
            "node",
        ),
        ledger=LedgerRecord(time_s=STEPS * STEP_S, wall_s=STEPS * STEP_S, steps=STEPS, epochs=1, buckets=buckets),
        verdict=Verdict(primary=None, num_workers=own),
    )


def test_the_number_of_the_rank_that_is_late_for_its_data_is_the_jobs() -> None:
    waiting = view(0, 0.001, 0.039, advice(2)), view(2, 0.001, 0.039, advice(0))
    found = judge(assemble([*waiting, view(1, 0.035, 0.005, advice(6))])).verdict.num_workers
    assert found is not None
    assert (found.recommended, found.reason) == (6, "rank 1 sets the pace: 6 it is")


def test_what_no_rank_is_late_for_is_decided_by_most() -> None:
    alike = [view(rank, 0.025, 0.01, advice(6 if rank else 5)) for rank in range(3)]
    found = judge(assemble(alike)).verdict.num_workers
    assert found is not None
    assert (found.recommended, found.reason) == (6, "6 it is")


def test_every_rank_needs_room_for_it() -> None:
    waiting = view(0, 0.001, 0.039, advice(2, most=3)), view(2, 0.001, 0.039, advice(2, most=9))
    found = judge(assemble([*waiting, view(1, 0.035, 0.005, advice(6, most=9))])).verdict.num_workers
    assert found is not None
    assert (found.recommended, found.limited_by) == (3, "memory")
