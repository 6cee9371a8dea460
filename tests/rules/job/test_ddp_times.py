"""Where collectives were not noted, DDP's own times tell what no ledger shows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from stallmeter.ranks.job import Job, RankView, assemble
from stallmeter.ranks.steps import RankSteps
from stallmeter.recording import Header
from stallmeter.records import DdpTimes, LedgerRecord
from stallmeter.rules.job.communication_bound import CommunicationBound
from stallmeter.rules.job.evaluation import judge
from stallmeter.rules.job.losses import losses

STEPS = 1000


def view(rank: int, mean_s: Mapping[str, float], ddp: Sequence[DdpTimes] = (), seed: int = 0) -> RankView:
    draw = random.Random(100 * seed + rank)
    seconds = {name: [mean * draw.uniform(0.99, 1.01) for _ in range(STEPS)] for name, mean in mean_s.items()}
    ends, now_s = [], 0.0
    for at in range(STEPS):
        now_s += sum(values[at] for values in seconds.values())
        ends.append(now_s)
    # Of different hosts, so that no clock tells.
    steps = RankSteps(rank, list(range(STEPS)), ends, seconds, list(range(STEPS)), f"host{rank}")
    buckets = {name: sum(values) for name, values in seconds.items()}
    ledger = LedgerRecord(time_s=now_s, wall_s=now_s, steps=STEPS, epochs=1, buckets=buckets)
    header = Header(run_id="r", rank=rank, world_size=2, started_s=0.0, host=f"host{rank}")
    return RankView(rank=rank, header=header, steps=steps, ledger=ledger, ended="end", ddp=ddp)


def times(backward_s: float, exposed_s: float, batches: int = 1) -> list[DdpTimes]:
    return [
        DdpTimes(
            time_s=float(i),
            iteration=100 * i,
            step=batches * 100 * i + 10,
            backward_s=backward_s,
            exchange_s=exposed_s,
            overlap_s=0.0,
            sent_bytes=4_000_000,
            buckets=1,
        )
        for i in range(1, 9)
    ]


def both(mean_s: Mapping[str, float], *ddp: Sequence[DdpTimes]) -> Job:
    return assemble(view(rank, mean_s, noted) for rank, noted in enumerate(ddp))


BACKWARD = {"data_wait": 0.001, "forward": 0.004, "backward": 0.040, "optimizer": 0.002}
"""What all ranks show when one computes 30 ms longer in its backward pass."""


def test_a_slow_backward_pass_is_named() -> None:
    job = both(BACKWARD, times(0.008, 0.032), times(0.038, 0.002))
    (loss,) = [loss for loss in losses(job) if loss.share > 0.05]
    assert (loss.ranks, loss.bucket, loss.seen_by) == ((1,), "compute", "DDP's own times")
    assert loss.lost_s == pytest.approx(0.030 * STEPS, rel=0.05)
    primary = judge(job).verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks, primary.culprit) == ("straggler", (1,), "its backward pass")
    assert any(
        "DDP's own times" in one.name and one.value == pytest.approx(100.0, rel=0.01) for one in primary.evidence
    )


def test_without_them_nothing_is_said() -> None:
    assert not [loss for loss in losses(both(BACKWARD, (), ())) if loss.share > 0.05]


def test_slow_work_of_another_kind_is_not_called_backward() -> None:
    """A plain loop's body: the backward passes themselves are alike."""
    job = both({"data_wait": 0.001, "compute": 0.046}, times(0.008, 0.032), times(0.008, 0.002))
    primary = judge(job).verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks, primary.culprit) == ("straggler", (1,), "its own work before the exchange")


def test_what_the_ledgers_show_is_counted_once() -> None:
    slow = {"data_wait": 0.031, "forward": 0.004, "backward": 0.010, "optimizer": 0.002}
    waits = {"data_wait": 0.001, "forward": 0.004, "backward": 0.040, "optimizer": 0.002}
    job = assemble([view(0, waits, times(0.008, 0.032)), view(1, slow, times(0.008, 0.002))])
    found = [loss for loss in losses(job) if loss.share > 0.01]
    assert [(loss.bucket, loss.ranks, loss.seen_by) for loss in found] == [("data_wait", (1,), "")]
    assert found[0].lost_s == pytest.approx(0.030 * STEPS, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_healthy_ranks(seed: int) -> None:
    draw = random.Random(seed)
    noted = [times(0.008, draw.uniform(0.0015, 0.0025)) for _ in range(2)]
    job = assemble(view(rank, BACKWARD, noted[rank], seed) for rank in range(2))
    verdict = judge(job).verdict
    assert not [d for d in verdict.diagnoses if d.rule in ("straggler", "rank-imbalance", "communication-bound")]


def test_an_exchange_that_nothing_hides() -> None:
    job = both(BACKWARD, times(0.010, 0.030), times(0.011, 0.029))
    (found,) = CommunicationBound().check(job, losses(job))
    assert found.confidence == 0.8
    assert found.evidence[0].name.startswith("exchange of gradients that nothing hides, by DDP's own times")
    assert found.evidence[0].value == pytest.approx(100.0 * 0.029 / 0.047, rel=0.05)
    values = {one.name: one.value for one in found.evidence}
    assert values["exchanged by a rank in a step"] == 4_000_000
    assert not [loss for loss in losses(job) if loss.share > 0.05]


def test_a_wait_for_a_late_rank_is_no_exchange() -> None:
    job = both(BACKWARD, times(0.008, 0.032), times(0.038, 0.002))
    assert not CommunicationBound().check(job, losses(job))


def test_accumulated_gradients_are_exchanged_more_rarely() -> None:
    """One exchange of 30 ms in four batches of 47 ms."""
    steps = [
        RankSteps(v.rank, v.steps.index, v.steps.ends_s, v.steps.seconds, [i // 4 for i in range(STEPS)], v.steps.host)
        for v in (view(rank, BACKWARD) for rank in range(2))
    ]
    views = [
        RankView(rank=s.rank, header=view(s.rank, BACKWARD).header, steps=s, ledger=view(s.rank, BACKWARD).ledger,
                 ended="end", ddp=times(0.010, 0.030, batches=4))
        for s in steps
    ]  # fmt: skip
    (found,) = CommunicationBound(warn_pct=10.0).check(assemble(views), ())
    assert found.evidence[0].value == pytest.approx(100.0 * 0.030 / (4 * 0.047), rel=0.05)
