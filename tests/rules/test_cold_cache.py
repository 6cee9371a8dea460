"""cold-cache: only the first epoch waits for its data."""

from __future__ import annotations

import random

import pytest

from stallmeter.records import CodeLook, WorkerBatch
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.cold_cache import ColdCache
from stallmeter.rules.evaluation import evaluate
from stallmeter.window import Window

from .windows import START_S, fires, ledger, missing, silent, step, window


def epochs(
    *waits_s: float, steps: int = 50, service_s: tuple[float, ...] = (), read_bytes: int | None = None, seed: int = 0
) -> Window:
    """Epochs of 50 steps that wait for so long on the average, in bursts: every second batch is there already."""
    rng, made = random.Random(seed), Window()
    for epoch, wait_s in enumerate(waits_s):
        for i in range(steps):
            wait = 2 * wait_s * (i % 2) * rng.uniform(0.5, 1.5)
            index = epoch * steps + i
            first = {"epoch": epoch, "epoch_start": i == 0}
            made.append(step(index, **first, data_wait_s=wait, total_s=0.1 + wait))
            if service_s:
                at_s, wall_s = START_S + 1.0 + 0.1 * (index + 1), service_s[min(epoch, len(service_s) - 1)]
                made.append(
                    WorkerBatch(worker=0, time_s=at_s, wall_s=wall_s, cpu_s=0.01, run_queue_s=0.0,
                                read_bytes=0 if epoch else read_bytes)
                )  # fmt: skip
    spent = sum(steps * w for w in waits_s)
    total = len(waits_s) * steps
    made.append(
        ledger(wall_s=1.0 + 0.1 * total + spent, steps=total, start=1.0, data_wait=spent, backward=0.05 * total,
               forward=0.03 * total, optimizer=0.015 * total, loop=0.0)
    )  # fmt: skip
    return made


def test_fires():
    """What the first epoch waited beyond later ones, and that nothing has to be changed."""
    found = fires(ColdCache(), epochs(0.2, 0.005, 0.005, service_s=(0.4, 0.05), read_bytes=5_000_000))
    assert found.severity is Severity.INFO
    assert found.summary.startswith("A step of the first epoch waited 2")
    assert "and read 5.0 MB a batch then" in found.summary
    assert found.time_lost_s == pytest.approx(0.195 * 50, rel=0.2)


@pytest.mark.parametrize("looks", [False, True])
def test_what_a_look_into_batches_holds_up_is_no_first_epochs(looks):
    """A batch that is looked into takes several times as long, and the loop waits for it: that is our own doing."""
    made = Window()
    for index in range(100):
        wait = 1.3 if index in (33, 35, 37) else 0.008
        made.append(step(index, epoch=index // 50, epoch_start=index % 50 == 0, data_wait_s=wait, total_s=0.1, every=1))
    made.append(ledger(wall_s=20.0, steps=100, start=1.0, data_wait=5.0, backward=5.0))
    if looks:
        ended_s = START_S + 1.0 + 0.1 * 39
        look = {"wall_s": 0.8, "cpu_s": 0.7, "added_s": 3.6}
        made.append(
            CodeLook(time_s=ended_s, place="workers", rule="prep-stall", method="profile", seen=3,
                     since_s=ended_s - 1.0, **look)
        )  # fmt: skip
    first = made.steps.epochs.first_wait_s
    assert first is not None
    assert (first > 0.05) is not looks


def test_the_first_epochs_steps_are_counted_beside_a_look():
    """Also where the look falls into the begin of the second one."""
    made = epochs(0.2, 0.005)
    began_s = next(s.time_s for s in made.steps.steady if s.epoch == 1)
    before = made.steps.epochs.first_steps
    made.append(
        CodeLook(time_s=began_s + 1.0, place="workers", rule="prep-stall", method="profile", seen=1, wall_s=0.1,
                 since_s=began_s - 0.05)
    )  # fmt: skip
    assert made.steps.epochs.first_steps == before


def test_one_epoch():
    """In the first epoch nobody can know what the second will be."""
    assert missing(ColdCache(), epochs(0.2)) == ColdCache.needs


@pytest.mark.parametrize(
    "waits_s", [(0.2, 0.2, 0.2), (0.2, 0.15), (0.005, 0.2), (0.008, 0.002, 0.002), (0.0, 0.0), (0.1, 0.02, 0.1)]
)
def test_other_runs(waits_s):
    """Data that do not fit into memory are read in each epoch; short waits are no matter."""
    for seed in range(5):
        assert silent(ColdCache(), epochs(*waits_s, seed=seed))


def test_not_where_batches_took_as_long():
    """Then it was no cache: a neighbour had the CPUs, say."""
    assert silent(ColdCache(), epochs(0.2, 0.005, service_s=(0.05, 0.05)))
    assert fires(ColdCache(), epochs(0.2, 0.005, service_s=(0.4, 0.05)))


def test_it_is_no_warning():
    """What loses time in all of the run comes before it; compute-bound does not."""
    verdict = evaluate(ALL_RULES, epochs(0.2, *[0.005] * 40))
    assert verdict.primary is not None
    assert verdict.primary.rule == "cold-cache"


def test_later_epochs_for_other_rules():
    """Their share of waiting, without the first epoch."""
    made = epochs(0.2, 0.0, 0.0).steps.epochs
    assert (made.first_steps, made.later_wait_share_pct) == (51, 0.0)
    assert epochs(0.2).steps.epochs.later_wait_share_pct is None


def test_abstains():
    """Without steps there is nothing to judge."""
    assert missing(ColdCache(), window(ledger())) == ColdCache.needs


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(ColdCache(factor=100.0), epochs(0.2, 0.005))
