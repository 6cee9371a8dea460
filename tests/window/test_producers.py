"""Signals of threads and processes that make batches."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import ProducerLooks
from stallmeter.window import Window


def of(*records: dict[str, Any]) -> Any:
    window = Window()
    for i, known in enumerate(records):
        window.append(ProducerLooks(**({"time_s": float(i), "looks": 10} | known)))
    return window.loader.producers


def test_nothing_is_said_of_few_looks() -> None:
    few, one_moment = of({"looks": 5}, {"looks": 6}), of({"looks": 100, "body_looks": 100})

    for found in (few, one_moment):
        assert (found.looks, found.at_work, found.loop_share, found.body.lock_share) == (None, None, None, None)
        assert (found.blocked_share, found.kinds, found.outside_share, found.processes) == (None, None, None, None)


def test_means_are_weighed_by_the_looks() -> None:
    found = of({"looks": 30, "running": 1.0}, {"looks": 10, "running": 2.0, "interpreter": 4.0, "sleep": 8.0})

    assert found.looks == 40
    assert found.lock_waiters == 1.0
    assert found.computing == 2.25
    assert found.at_work == 4.25
    assert found.blocked_share == pytest.approx(2.0 / 4.25)
    assert found.kinds == {"sleep": 1.0, "socket": 0.0, "file": 0.0}


def test_shares_of_the_loop_and_of_other_processes() -> None:
    found = of({"loop_running": 4, "loop_blocked": 1, "running": 2.0, "outside": 1.5, "processes": 2}, {})

    assert (found.loop_share, found.loop_blocked_share) == (0.25, 0.2)
    assert (found.outside_share, found.processes) == (0.75, 1.0)


def test_nobody_at_work_leaves_shares_unknown() -> None:
    found = of({}, {})

    assert (found.at_work, found.blocked_share, found.outside_share, found.loop_blocked_share) == (
        0.0,
        None,
        None,
        None,
    )


def test_cpu_time_of_a_step_and_of_the_run() -> None:
    known = {"cpu_s": 0.9, "period_s": 1.0, "steps": 3}
    found = of(known, known, {"period_s": 1.0, "steps": 3})

    assert found.batch_cpu_s == pytest.approx(0.3)
    assert found.cpus == pytest.approx(0.9)
    assert of({}, {}).batch_cpu_s is None


def test_the_lock_in_the_steps_themselves() -> None:
    found = of({"looks": 0, "body_looks": 30, "body_interpreter": 15}, {"looks": 0, "body_looks": 10})

    assert found.body.lock_share == 15 / 40
    assert found.looks is None


def test_what_the_loop_waits_for_in_its_steps() -> None:
    """Old recordings do not tell; of a few waits nothing is said."""
    assert of({"body_interpreter": 8}).body.lock_part is None
    assert of({"body_interpreter": 4, "body_blocked": 3}).body.lock_part is None
    assert (
        of({"body_interpreter": 4, "body_blocked": 3}, {"body_interpreter": 2, "body_blocked": 0}).body.lock_part
        == 6 / 9
    )
