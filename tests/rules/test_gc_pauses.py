"""gc-pauses: Python's garbage collector holds training up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import GarbagePauses
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.gc_pauses import GcPauses
from stallmeter.rules.step_outliers import StepOutliers
from stallmeter.window import Window

from .windows import START_S, fires, ledger, loader, missing, run, silent, step, window


def paused(seconds: float, *records: Any, **changes: Any) -> Window:
    """A run of 100 s whose training thread was held up so long, in two records; its ledger is changed."""
    known = {"passes": 5, "pause_s": seconds / 2, "training_s": seconds / 2, "longest_s": 0.3, "blocks": 4_000_000}
    known["passes"] = changes.pop("passes", known["passes"])
    of_collector = {key: changes.pop(key) / 2 for key in ("waiting_s", "validation_s") if key in changes}
    pauses = [GarbagePauses(time_s=START_S + i, **(known | of_collector)) for i in (10, 50)]
    automatic = changes.pop("automatic", True)
    pauses.append(GarbagePauses(time_s=START_S + 60, passes=0, pause_s=0.5, training_s=0.0, automatic=automatic))
    return run(*records, *pauses, **changes)


def test_fires():
    """Every pause is counted, and the seconds are exact."""
    found = fires(GcPauses(), paused(12.0))
    assert found.time_lost_s == 12.0
    assert found.summary == (
        "Garbage collections took 12.0 s of the training thread, 12 % of the training time; the longest took 300 ms."
    )
    assert {e.name: e.value for e in found.evidence}["blocks on the heap"] == 4.0
    assert {e.name: e.value for e in found.evidence}["on other threads and before training"] == 0.5
    assert "gc.freeze()" in found.advice[0].text
    assert fires(GcPauses(), paused(25.0)).severity is Severity.CRITICAL


def test_threshold():
    """From 5 % of the 99 s of training on."""
    assert silent(GcPauses(), paused(4.9))
    assert fires(GcPauses(), paused(5.0))
    assert silent(GcPauses(warn_pct=10.0), paused(8.0))


def test_a_short_run():
    """Little time counts where its passes come regularly: they go on in a long run."""
    few = paused(12.0, passes=2)
    assert silent(GcPauses(min_lost_s=13.0), few)
    assert fires(GcPauses(min_lost_s=12.0), few)
    assert fires(GcPauses(min_lost_s=13.0, regular=4.0), few)
    assert fires(GcPauses(min_lost_s=13.0), paused(12.0))


def test_hidden_behind_the_wait():
    """Workers that set the pace make up for a pause of the loop; a wait that is the pause is no such wait."""
    assert silent(GcPauses(), paused(12.0, loader(2), data_wait=40.0))
    assert fires(GcPauses(), paused(12.0, loader(2), data_wait=12.5, waiting_s=11.0))
    assert fires(GcPauses(), paused(12.0, loader(0), data_wait=40.0)), "without workers nothing goes on meanwhile"


def test_a_collector_that_the_program_calls():
    """Where it does not run by itself, disabling it is no advice."""
    found = fires(GcPauses(), paused(12.0, automatic=False))
    assert "less often" in found.advice[0].text
    assert "gc.disable()" not in found.advice[0].text


def test_where_the_program_calls_it_is_named():
    """From half of the collections on they are its own."""
    at = {"called_file": "train.py", "called_line": 44, "called_function": "Fit.step"}
    found = fires(GcPauses(), paused(12.0, called(7.0, **at)))
    assert found.summary.endswith("The program itself calls gc.collect().")
    assert (
        found.advice[0].fix.do
        == "Call gc.collect() less often than Fit.step does (train.py:44), and gc.freeze() once after set-up."
    )
    assert found.location is not None
    assert (found.location.function, found.location.line, found.location.call) == ("Fit.step", 44, "gc.collect")
    assert found.location.share_pct == pytest.approx(100 * 7 / 12)
    assert fires(GcPauses(), paused(12.0, called(5.0, **at))).location is None
    assert fires(GcPauses(), paused(12.0, called(0.0))).location is None
    assert fires(GcPauses(), paused(12.0, called(7.0, **{**at, "called_function": ""}))).location is None


def called(seconds: float, **at: Any) -> GarbagePauses:
    return GarbagePauses(time_s=START_S + 55, passes=0, pause_s=0.0, training_s=0.0, called_s=seconds, **at)


def test_step_outliers_leave_these_seconds():
    """What the collector explains is not told twice."""

    def slow(*records: Any) -> Window:
        steps = [step(i, **({"forward_s": 1.03, "total_s": 1.1} if i % 25 == 3 else {})) for i in range(100)]
        return window(
            *steps,
            *records,
            ledger(
                wall_s=14.0, steps=100, data_wait=0.2, optimizer=1.5, forward=7.0, backward=5.0, loop=0.1, start=0.0
            ),
        )

    made = slow()
    lost_s = fires(StepOutliers(), made).time_lost_s
    assert lost_s == pytest.approx(4.0, rel=0.1)
    pause = GarbagePauses(time_s=START_S + 5, passes=4, pause_s=3.9, training_s=3.9, longest_s=1.0)
    assert silent(StepOutliers(), slow(pause))
    half = GarbagePauses(time_s=START_S + 5, passes=4, pause_s=2.0, training_s=2.0, waiting_s=0.5, longest_s=1.0)
    assert fires(StepOutliers(), slow(half)).time_lost_s == pytest.approx(lost_s - 1.5)
    # Each is a small part of a long step: they come with what runs there, and go with it.
    short = replace(half, passes=8, longest_s=0.3)
    assert fires(StepOutliers(), slow(short)).time_lost_s == pytest.approx(lost_s)


def test_abstains():
    """Nobody asked the collector."""
    assert missing(GcPauses(), run()) == ("host.garbage.training_s", "host.garbage.waiting_s")
