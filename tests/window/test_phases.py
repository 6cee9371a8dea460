"""Steps of two numbers of workers are not mixed."""

from __future__ import annotations

import pytest

from stallmeter.records import Event, OptimizerInfo, WorkerBatch, WorkerChange, WorkerTrial
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.input_bound import InputBound
from stallmeter.window import Window
from stallmeter.window.phases import difference

from ..rules.windows import START_S, batches, gpus, hosts, ledger, loader, step


def change(at_s: float, before: int, workers: int) -> WorkerChange:
    return WorkerChange(time_s=START_S + at_s, step=100, before=before, workers=workers)


@pytest.fixture
def first() -> Window:
    """A run with 2 workers that has just got 4."""
    made = Window(samples=64)
    records = (loader(2), *(step(i) for i in range(100)), *batches(20), *hosts(20, lambda i: {"job_cpus": 1.0}))
    for record in (
        *records,
        *gpus(20, lambda i: {"utilization_pct": 50.0}),
        Event(time_s=0.0, name="x"),
        ledger(steps=100),
    ):
        made.append(record)
    assert made.present() is made
    made.append(change(50.0, 2, 4))
    return made


def test_the_past_does_not_change(first):
    """What comes later goes into the whole run and the new phase, not into what was before."""
    past = first.present()
    assert past is not first
    known = (past.steps.step_time_s, past.steps.count, len(past.workers.batches), past.ledger.wall_s)
    for i in range(100, 200):
        first.append(step(i, total_s=0.2))
    first.append(ledger(wall_s=150.0, steps=200))
    for record in (*batches(50), *gpus(30, lambda i: {"utilization_pct": 90.0, "time_s": START_S + 60 + i})):
        first.append(record)
    assert (past.steps.step_time_s, past.steps.count, len(past.workers.batches), past.ledger.wall_s) == known
    assert (past.gpu.utilization_pct, past.loader.num_workers, past.before) == (50.0, 2, None)
    now = first.present()
    assert now.before is past
    assert (now.steps.count, now.ledger.wall_s, now.loader.num_workers) == (100, 50.0, 4)
    assert (now.steps.step_time_s and now.steps.step_time_s.median) == 0.2
    assert now.gpu.utilization_pct == 90.0
    assert (first.steps.count, first.ledger.wall_s) == (197, 150.0)
    assert past.present() is past
    assert now.present() is now


def test_what_the_past_shares(first):
    """Records are shared, containers are not; facts and trials of the run are known to the new phase."""
    past = first.present()
    assert past.steps.steady[0] is first.steps.steady[0]
    assert past.steps.steady is not first.steps.steady
    assert past.events == first.events
    assert past.events is not first.events
    for i in range(100, 120):
        first.append(step(i))
    first.append(ledger(wall_s=150.0, steps=200))
    first.facts["accelerator"] = "CUDAAccelerator"
    trial = WorkerTrial(time_s=START_S, before=2, workers=4, outcome="measuring")
    first.append(trial)
    assert first.present().loader.trials == [trial]
    assert first.present().facts.accelerator == "CUDAAccelerator"


def test_what_is_told_once_is_known_after_each_change():
    """The optimizer is met before the first step, and no more."""
    made, adam = Window(), OptimizerInfo(time_s=START_S, kind="Adam", tensors=6, may_fuse=True)
    for record in (loader(2), adam, change(50.0, 2, 4), change(90.0, 4, 6)):
        made.append(record)
    assert made.present() is not made
    assert made.present().spent.optimizer == adam


def test_batches_of_workers_that_have_gone(first):
    """What was made before the change belongs to the phase before it."""
    for i in range(100, 120):
        first.append(step(i))
    first.append(ledger(wall_s=150.0, steps=200))
    first.append(WorkerBatch(worker=0, time_s=START_S + 50.0, wall_s=9.0, cpu_s=9.0))
    first.append(WorkerBatch(worker=0, time_s=START_S + 50.1, wall_s=1.0, cpu_s=1.0))
    assert [b.wall_s for b in first.present().workers.batches.items] == [1.0]


def test_a_second_change_begins_where_the_first_phase_ends(first):
    """The first phase is the past then, as it is: the whole run goes on."""
    for i in range(100, 120):
        first.append(step(i))
    first.append(ledger(wall_s=150.0, steps=200))
    middle = first.present()
    first.append(change(150.0, 4, 6))
    assert first.present() is middle
    for i in range(120, 140):
        first.append(step(i))
    first.append(ledger(wall_s=250.0, steps=300))
    latest = first.present()
    assert (latest.before, middle.before) == (middle, None)
    assert (middle.steps.count, latest.steps.count) == (20, 20)
    assert (middle.loader.num_workers, latest.loader.num_workers) == (4, 6)
    assert latest.ledger.wall_s == 100.0


def test_the_ledger_since_a_reading():
    """Each number is what came since; what is booked back later is not negative."""
    then = ledger(wall_s=100.0, steps=1000, data_wait=10.0, callbacks={"A": 2.0})
    since = difference(ledger(wall_s=300.0, steps=1500, data_wait=8.0, callbacks={"A": 5.0, "B": 1.0}), then)
    assert (since.wall_s, since.steps, since.epochs, since.samples) == (200.0, 500, 0, 500 * 32)
    assert since.buckets["data_wait"] == 0.0
    assert since.callbacks == {"A": 3.0, "B": 1.0}


def test_warm_up_of_before_is_none_since():
    """What was booked as warm-up after the change came from steps before it."""
    base = ledger(wall_s=20.0, steps=20, start=0.0, data_wait=0.0, forward=15.0, backward=5.0, optimizer=0.0, loop=0.0)
    spent = {"start": 0.0, "data_wait": 0.0, "backward": 15.0, "optimizer": 0.0, "loop": 0.0}
    since = difference(ledger(wall_s=40.0, steps=120, **spent, forward=13.0, warmup=12.0), base)
    assert since.buckets["warmup"] == pytest.approx(10.0)
    assert since.buckets["forward"] == 0.0
    assert sum(since.buckets.values()) == pytest.approx(since.wall_s)


def test_a_share_is_one_of_the_run_whatever_part_of_it_was_judged(first):
    """Seconds since the change are compared with the run: that is what reports say."""
    for i in range(100, 200):
        first.append(step(i, total_s=0.5, data_wait_s=0.4))
    first.append(ledger(wall_s=150.0, steps=200, data_wait=40.0))
    verdict = evaluate([InputBound()], first)
    assert first.present().ledger.wall_s == 50.0
    assert [found.share_pct for found in verdict.diagnoses] == [
        pytest.approx(100.0 * found.time_lost_s / 150.0) for found in verdict.diagnoses
    ]
    assert verdict.diagnoses
