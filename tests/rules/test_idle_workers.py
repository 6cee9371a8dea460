"""Workers that have nothing to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stallmeter.records import WorkerBatch
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.idle_workers import IdleWorkers
from stallmeter.window import Window

from .waiting import waiting


def idle(made: int = 60, *, busy: bool = True, **options: Any) -> Window:
    """A window of 4 workers; two of them made all the batches."""
    window = waiting(workers=4, loader={"iterable": True, "shards_itself": True}, **{"probed": False, **options})
    info = window.loader.info
    assert info is not None
    window.append(replace(info, num_workers=4, probed=True))
    for i in range(made):
        window.append(
            WorkerBatch(
                worker=i % 2,
                time_s=1.7e9 + i,
                wall_s=0.2,
                cpu_s=0.0,
                run_queue_s=0.0,
                idle_s=0.0 if busy else 0.5,
            )
        )
    return window


def test_the_loop_waits_for_those_that_have_shards() -> None:
    """Shards for the others would feed it: 0.1 s a step, of two workers that take 0.2 s each."""
    found = IdleWorkers().check(idle())
    assert found is not None
    assert (found.severity, found.summary.split(":")[0]) == (Severity.WARNING, "2 of 4 workers made all batches")
    assert "4 shards" in found.advice[0].text
    gain = found.advice[0].predicted_gain_pct
    assert gain is not None
    assert 60 < gain < 110
    assert 0 < found.time_lost_s <= 50.5


def test_nothing_waits() -> None:
    """They cost memory alone; the cause of a wait, if there is one, is still to be found."""
    for window in (idle(wait_s=0.0005, ready=4, head_ready=True), idle(busy=False)):
        found = IdleWorkers().check(window)
        assert found is not None
        assert found.severity is Severity.INFO
        assert found.time_lost_s == 0
        assert "num_workers=2" in found.advice[0].text


def test_information_leaves_the_family_open() -> None:
    verdict = evaluate(ALL_RULES, idle(busy=False))
    assert verdict.primary is not None
    assert verdict.primary.rule != "idle-workers"
    assert "idle-workers" in {d.rule for d in verdict.diagnoses}


def test_silent() -> None:
    """With few batches, and where all workers have batches."""
    assert IdleWorkers().check(idle(made=20)) is None
    assert IdleWorkers().check(waiting(workers=4)) is None
