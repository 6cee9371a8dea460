"""pinned-workers: workers share fewer CPUs than the process has."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import WorkerMemory
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.pinned_workers import PinnedWorkers
from stallmeter.window import Window

from .test_input_family import CASES
from .waiting import waiting
from .windows import START_S, fires, missing, silent


def tied(**changes: Any) -> Window:
    """Two workers and the loop on one of four CPUs."""
    made = waiting(**{**CASES["pinned-workers"], **changes})
    made.facts.update(threads={"cores": 4, "variables": {"OMP_PROC_BIND": "true"}})
    return made


def test_fires() -> None:
    found = fires(PinnedWorkers(), tied())
    assert found.summary == (
        "2 workers may run on 1 of the 4 CPUs of the process (OMP_PROC_BIND is set), "
        "and 62 % of the training time was spent waiting for data."
    )
    assert found.culprit == "OMP_PROC_BIND"
    assert found.advice[0].fix.do == "Leave OMP_PROC_BIND unset where the program is started."
    assert found.advice[1].fix.do == "Call os.sched_setaffinity(0, cpus) in worker_init_fn."
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_no_more_workers_are_recommended() -> None:
    """As many more would share the one CPU."""
    verdict = evaluate(ALL_RULES, tied())
    assert verdict.primary is not None
    assert verdict.primary.rule == "pinned-workers"
    assert verdict.num_workers is not None
    assert verdict.num_workers.recommended == verdict.num_workers.current == 2


def test_without_a_variable_only_the_workers_are_helped() -> None:
    made = tied()
    made.facts.update(threads={"cores": 4, "variables": {"OMP_PROC_BIND": "false"}})
    found = fires(PinnedWorkers(), made)
    assert found.culprit is None
    assert found.advice[0].fix.do == "Call os.sched_setaffinity(0, cpus) in worker_init_fn."


@pytest.mark.parametrize(
    "changes",
    [
        {"pinned": (4, 4)},
        {"pinned": (3, 4)},
        {"wait_s": 0.002},
        {"batch_s": 0.05, "cpu_share": 0.05, "queue_share": 0.0},
    ],
    ids=["all of them", "more of them than workers", "nobody waits", "they wait for storage"],
)
def test_silent(changes: dict[str, Any]) -> None:
    assert silent(PinnedWorkers(), tied(**changes))


def test_abstains_where_the_system_does_not_say() -> None:
    assert "workers.waits.cpus" in missing(PinnedWorkers(), tied(pinned=None))
    made = tied()
    made.append(WorkerMemory(time_s=START_S + 60, workers=2, rss_bytes=1))
    assert missing(PinnedWorkers(), made) == ("workers.waits.cpus", "workers.waits.process_cpus")
