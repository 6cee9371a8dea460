"""bound-process: the program has fewer CPUs than it began with, and needs them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from stallmeter.machine.budget import Budget
from stallmeter.machine.thread_settings import ThreadSettings
from stallmeter.rules import ALL_RULES
from stallmeter.rules.bound_process import BoundProcess
from stallmeter.rules.evaluation import evaluate
from stallmeter.window import Window

from .windows import device_steps, fires, hosts, loader, missing, run, silent, window


def bound(
    now: int = 1, began: int | None = 2, used: float = 1.0, *records: Any, waits_pct: float = 12.0, **facts: Any
) -> Window:
    """A run of 100 s whose process may run on so many CPUs, and could on more."""
    quota, variables = facts.pop("quota", None), facts.pop("variables", {})
    known = {
        "budget": asdict(Budget(host_cpus=8, affinity_cpus=now, quota_cpus=quota)),
        "threads": asdict(ThreadSettings(cores=now, variables=variables, cpus_at_start=began)),
        **facts,
    }
    samples = hosts(20, lambda i: {"usable_cpus": float(now), "job_cpus": used, "loop_cpu_wait_pct": waits_pct})
    return run(loader(0), *samples, *records, facts=known)


def test_fires() -> None:
    made = bound()
    found = fires(BoundProcess(), made)
    assert found.title == "The program bound itself to 1 of its 2 CPUs"
    training_s = made.ledger.training_s
    assert training_s is not None
    assert found.time_lost_s == pytest.approx(0.5 * 0.519 * training_s)
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_what_the_training_thread_waits_is_won_at_the_least() -> None:
    low, high = (fires(BoundProcess(), bound(waits_pct=pct)).advice[0].gain_interval_pct for pct in (0.0, 40.0))
    assert low is not None
    assert high is not None
    assert low[0] < 5.0 < 50.0 < high[0]


def test_it_is_the_cause_and_not_the_steps() -> None:
    primary = evaluate(ALL_RULES, bound()).primary
    assert primary is not None
    assert primary.rule == "bound-process"


@pytest.mark.parametrize(
    "made",
    [
        bound(2, 2, 2.0),
        bound(used=0.5),
        bound(quota=1.0),
        bound(variables={"OMP_PROC_BIND": "true"}),
        bound(world_size=2),
        bound(1, 2, 1.0, *device_steps()),
    ],
    ids=["as it began", "idle CPUs", "a quota", "bound by OpenMP", "ranks", "a GPU"],
)
def test_nothing_to_be_said(made: Window) -> None:
    assert silent(BoundProcess(), made)


def test_abstains() -> None:
    assert "facts.cpus_at_start" in missing(BoundProcess(), bound(began=None))
    assert "facts.budget" in missing(BoundProcess(), window())
