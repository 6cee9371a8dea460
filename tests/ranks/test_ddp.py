"""Who is late, and what the exchange itself takes, from what DDP timed on each rank."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stallmeter.ranks.ddp import MIN_TIMES, ddp_exchange
from stallmeter.ranks.job import RankView, read_job
from stallmeter.ranks.posts import LARGEST, MOST_DDP, decode_post, encode_post, joined
from stallmeter.ranks.steps import RankSteps
from stallmeter.recording import Header, find_recording
from stallmeter.records import DdpTimes, LedgerRecord
from stallmeter.rules.job.evaluation import judge

from ..ports import free_port
from ..warm import Forks

LONGER_S = 0.006
"""By so much the backward pass of rank 1 takes longer in `ddp_ranks.py`."""


def steps_of(rank: int, count: int = 1000, updates_every: int | None = 1) -> RankSteps:
    indices = list(range(count))
    updates = [None if updates_every is None else i // updates_every for i in indices]
    return RankSteps(rank, indices, [0.01 * i for i in indices], {"backward": [0.01] * count}, updates, "host")


def times(
    exposed_s: Callable[[int], float],
    count: int = 8,
    *,
    backward_s: float = 0.002,
    size: int = 4000,
    first: int = 100,
    batches: int = 1,
) -> list[DdpTimes]:
    """Iterations of one rank, of so many batches; each has a millisecond of the exchange under its backward pass."""
    return [
        DdpTimes(
            time_s=float(i),
            iteration=first + 100 * i,
            step=batches * (first + 100 * i) + 30,
            backward_s=backward_s,
            exchange_s=exposed_s(i) + 0.001,
            overlap_s=0.001,
            sent_bytes=size,
            buckets=2,
        )
        for i in range(count)
    ]


def job(*ranks: list[DdpTimes], updates_every: int | None = 1):
    return ddp_exchange(dict(enumerate(ranks)), [steps_of(r, updates_every=updates_every) for r in range(len(ranks))])


def test_the_one_that_does_not_wait_is_late() -> None:
    found = job(times(lambda _: 0.032), times(lambda _: 0.002, backward_s=0.031))
    assert found is not None
    assert (found.late, found.times, found.per_step) == (1, 8, 1.0)
    assert found.loss_s == pytest.approx(0.030)
    assert found.exposed_s == pytest.approx(0.002)
    assert found.backward_s == {0: 0.002, 1: 0.031}
    assert (found.sent_bytes, found.buckets) == (4000, 2)


def test_other_iterations_on_each_rank() -> None:
    found = job(times(lambda _: 0.032), times(lambda _: 0.002, first=200))
    assert found is not None
    assert found.late == 1


def test_of_many_ranks_the_median_waits() -> None:
    waits = [0.030, 0.028, 0.031, 0.0, 0.029]
    found = job(*(times(lambda _, s=s: s) for s in waits))
    assert found is not None
    assert found.late == 3
    assert found.loss_s == pytest.approx(0.029)


def test_lateness_that_goes_round_is_nobodys() -> None:
    """Each second exchange finds the other rank late; the exchange itself is still what the last one sees."""
    found = job(times(lambda i: 0.030 * (i % 2) + 0.003), times(lambda i: 0.030 * (1 - i % 2) + 0.003))
    assert found is not None
    assert (found.late, found.loss_s) == (None, 0.0)
    assert found.exposed_s == pytest.approx(0.003)


def test_of_eight_that_take_turns_the_exchange_is_that_of_the_last() -> None:
    found = job(*(times(lambda i, r=r: 0.004 if i % 8 == r else 0.034, 40) for r in range(8)))
    assert found is not None
    assert found.late is None
    assert found.exposed_s == pytest.approx(0.004)


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_healthy_job_has_no_late_rank_worth_a_word(seed: int) -> None:
    draw = random.Random(seed)
    found = job(*(times(lambda _: draw.lognormvariate(-6.2, 0.5), 12) for _ in range(2)))
    assert found is not None
    assert found.loss_s < 0.001


def test_one_start_of_the_other_rank_is_no_lateness() -> None:
    found = job(times(lambda i: 0.9 if not i else 0.002), times(lambda _: 0.002))
    assert found is not None
    assert found.late is None


@pytest.mark.parametrize(
    "ranks",
    [
        [times(lambda _: 0.03)],
        [times(lambda _: 0.03), []],
        [times(lambda _: 0.03), times(lambda _: 0.001, size=10)],
    ],
    ids=["one rank", "one is silent", "other modules"],
)
def test_too_little_is_known(ranks: list[list[DdpTimes]]) -> None:
    assert job(*ranks) is None


@pytest.mark.parametrize("count", range(1, MIN_TIMES + 1))
def test_few_give_an_idea_and_name_nobody(count: int) -> None:
    found = job(times(lambda _: 0.03), times(lambda _: 0.001, count))
    assert found is not None
    assert found.is_known is (count >= MIN_TIMES)
    assert (found.late is None, found.loss_s == 0.0) == (not found.is_known,) * 2


def test_accumulated_gradients() -> None:
    by_updates = job(times(lambda _: 0.03, batches=4), times(lambda _: 0.001, batches=4), updates_every=4)
    assert by_updates is not None
    assert by_updates.per_step == pytest.approx(0.25, rel=0.01)


def test_gradients_that_are_exchanged_with_each_of_the_batches_of_an_update() -> None:
    """The loop counts a quarter of the updates, and DDP as many exchanges as there are steps."""
    in_vain = job(times(lambda _: 0.03), times(lambda _: 0.001), updates_every=4)
    assert in_vain is not None
    assert in_vain.per_step == 1.0


def test_a_model_that_is_called_twice_for_one_update_exchanges_once() -> None:
    """DDP counts each call of the model."""
    twice = [replace(one, iteration=2 * one.iteration) for one in times(lambda _: 0.03)]
    found = job(twice, twice)
    assert found is not None
    assert found.per_step == 1.0


@pytest.mark.parametrize(("batches", "per_step"), [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.125)])
def test_a_loop_that_counts_no_updates(batches: int, per_step: float) -> None:
    """DDP tells its hundreds; up to 99 exchanges have come since."""
    draw = random.Random(batches)
    seen = [
        DdpTimes(
            time_s=0.0,
            iteration=100 * i,
            step=batches * (100 * i + draw.randrange(100)),
            backward_s=0.001,
            exchange_s=0.004,
            overlap_s=0.0,
            sent_bytes=8,
            buckets=1,
        )
        for i in range(1, 12)
    ]
    found = job(seen, seen, updates_every=None)
    assert found is not None
    assert found.per_step == per_step


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="gloo between two processes, as tested")
def test_two_real_ranks(forks: Forks, tmp_path: Path) -> None:
    """No ledger shows a slow backward pass; without the flight recorder, as before torch 2.9, DDP's own times do."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("STALLMETER", "SLURM", "TORCHELASTIC"))}
    started = [
        forks.start(
            Path(__file__).with_name("ddp_ranks.py"),
            tmp_path / "rec",
            340,
            cwd=tmp_path,
            env={**clean, **address, "RANK": str(rank), "LOCAL_RANK": str(rank), "TORCH_FR_BUFFER_SIZE": "0"},
        )
        for rank in (0, 1)
    ]
    for program in started:
        assert program.wait() == 0, program.read("stderr")[-3000:]
    job = read_job(find_recording(tmp_path / "rec"))
    assert job.exchanges is None
    assert job.ddp is not None
    assert (job.ddp.late, job.ddp.per_step) == (1, 1.0)
    assert job.ddp.backward_s[1] >= LONGER_S
    assert job.ddp.loss_s > LONGER_S / 2
    primary = judge(job).verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks, primary.culprit) == ("straggler", (1,), "its backward pass")


def posted(noted: list[DdpTimes], most: int) -> RankView:
    header = Header(run_id="r", rank=1, world_size=2, started_s=0.0)
    ledger = LedgerRecord(time_s=1.0, wall_s=1.0, steps=1, epochs=1, buckets={})
    return decode_post(encode_post(header, ledger, None, [], facts={}, ddp=noted, most=most))


def test_a_post_carries_the_newest() -> None:
    noted = times(lambda i: 0.001 * (1 + i % 2), 40)
    whole = posted(noted, LARGEST)
    assert list(whole.ddp) == noted[-30:]
    assert len(posted(noted, 1000).ddp) <= 2
    both = joined(whole, posted(times(lambda _: 0.5, 40, first=5000), LARGEST), 1000)
    assert list(both.ddp)[: -len(whole.ddp)] == noted[-30:]
    third = posted(times(lambda _: 0.25, 40, first=9000), LARGEST)
    assert len(joined(both, third, 1000).ddp) == MOST_DDP
