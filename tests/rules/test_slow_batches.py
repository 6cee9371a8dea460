"""slow-batches without workers: a few batches that the loop makes itself take far longer than the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import CodeLook, CodeSpot, WorkerBatch
from stallmeter.records.code import IN_THE_LOOP
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.slow_batches import SlowBatches
from stallmeter.window import Window

from .windows import START_S, fires, hosts, ledger, loader, missing, silent, step, window


def grouped(slow_s: float = 1.0, every: int = 60, steps: int = 600, batch_s: float = 0.001) -> Window:
    """Steps of 20 ms without workers; each so-many-th batch takes apart a group of samples for all that follow."""
    waits = [slow_s if i % every == every - 1 else batch_s for i in range(steps)]
    made = [step(i, total_s=0.02 + wait, compute_s=0.02, data_wait_s=wait) for i, wait in enumerate(waits)]
    batches = [WorkerBatch(worker=-1, time_s=START_S + i, wall_s=w, cpu_s=w, idle_s=None) for i, w in enumerate(waits)]
    spent = {"compute": 0.02 * steps, "data_wait": sum(waits), "start": 0.0, "loop": 0.0}
    record = ledger(wall_s=sum(spent.values()), steps=steps, **spent)
    host = hosts(12, lambda _: {"usable_cpus": 4.0, "others_cpus": 0.0, "job_cpus": 1.0, "main_cpus": 1.0})
    return window(loader(0), *host, *made, *batches, record)


def test_fires() -> None:
    made = grouped()
    found = fires(SlowBatches(), made)
    assert found.title == "A few slow batches hold up the loop"
    assert "the slowest batch took 1000 ms, a typical one 1 ms" in found.summary
    assert found.time_lost_s == pytest.approx(10 * 0.999)
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain == pytest.approx(100.0 * 9.99 / (22.59 - 9.99), rel=0.05)
    assert interval is not None
    assert interval[0] < gain <= interval[1]
    primary = evaluate(ALL_RULES, made).primary
    assert primary is not None
    assert primary.rule == "slow-batches"


def test_the_function_is_that_of_the_loops_own_thread() -> None:
    """Batches that were profiled are usual ones: looks meet the slow ones for as long as they take."""
    made = grouped()
    spot = CodeSpot(file="data.py", line=49, function="group_texts", own=True, wall_s=0.9)
    usual = replace(spot, line=90, function="collate")
    more = {"time_s": START_S, "rule": "", "wall_s": 1.0}
    made.append(CodeLook(place="workers", bucket="", method="profile", seen=3, spots=(usual,), **more))
    made.append(CodeLook(place="loop", bucket=IN_THE_LOOP, method="samples", seen=100, spots=(spot,), **more))
    primary = evaluate(ALL_RULES, made).primary
    assert primary is not None
    assert primary.location is not None
    assert (primary.location.function, primary.location.line) == ("group_texts", 49)
    assert not any("collate" in advice.text for advice in primary.advice)


@pytest.mark.parametrize(
    "made",
    [
        grouped(slow_s=0.1),  # a small part of the time
        grouped(slow_s=0.03, batch_s=0.012),  # hardly uneven
        grouped(every=1, slow_s=0.05),  # all of them are slow
    ],
)
def test_silent(made: Window) -> None:
    assert silent(SlowBatches(), made)


def test_where_workers_win_more_they_are_advised() -> None:
    made = grouped(slow_s=0.3, every=12, batch_s=0.015)
    assert silent(SlowBatches(), made)
    primary = evaluate(ALL_RULES, made).primary
    assert primary is not None
    assert primary.rule == "no-workers"


def test_abstains() -> None:
    assert missing(SlowBatches(), window(loader(0)))
