"""Workers on a part of the process's CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import WorkerMemory
from stallmeter.records.diagnosis import WorkerAdvice
from stallmeter.workers import Limits, LoaderCosts
from stallmeter.workers.pinned import Pinned, pinned, unless_pinned, with_all_cpus_s, within

COSTS = LoaderCosts(
    current=2, service_s=0.05, cpu_s=0.05, work_s=0.03, loop_cpu_s=0.03, handover_s=0.0, step_time_s=0.08
)
ADVICE = WorkerAdvice(
    current=2,
    recommended=4,
    predicted_step_time_s=0.04,
    predicted_gain_pct=90.0,
    limited_by="cpu",
    reason="",
    confidence=0.9,
)


def _sample(cpus: int | None, process_cpus: int | None) -> WorkerMemory:
    return WorkerMemory(time_s=0.0, workers=2, rss_bytes=1, cpus=cpus, process_cpus=process_cpus)


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ([], None),
        ([_sample(None, None)], None),
        ([_sample(4, 4)], None),
        ([_sample(4, 4), _sample(1, 4)], Pinned(1, 4)),
        ([_sample(1, None)], None),
    ],
)
def test_the_newest_look_counts(memory: list[WorkerMemory], expected: Any) -> None:
    assert pinned(memory) == expected


def test_what_the_loader_may_use_now() -> None:
    """The loop's own threads may have other CPUs than its workers."""
    assert within(4.0, Pinned(1, 4), 0.9) == 1.0
    assert within(4.0, Pinned(1, 4), 1.9) == 1.9
    assert within(4.0, None, 0.9) == 4.0
    assert within(None, Pinned(1, 4), 0.9) is None


def test_a_step_with_all_cpus() -> None:
    """Loop and workers compute 80 ms for a step, and need no more than the longest of them if each has a CPU."""
    limits = Limits(available_cpus=1.0)
    assert with_all_cpus_s(COSTS, limits, Pinned(1, 4), 4.0, None) == pytest.approx(0.03, rel=0.1)
    assert with_all_cpus_s(COSTS, limits, Pinned(1, 2), 2.0, None) == pytest.approx(0.04, rel=0.1)
    assert with_all_cpus_s(COSTS, limits, Pinned(1, 4), 1.0, None) == pytest.approx(0.08, rel=0.1), "a quota stays"
    assert with_all_cpus_s(COSTS, limits, None, 4.0, None) is None
    assert with_all_cpus_s(replace(COSTS, current=0), limits, Pinned(1, 4), 4.0, None) is None


def test_no_other_number_while_they_share_a_cpu() -> None:
    kept = unless_pinned(ADVICE, Pinned(1, 4))
    assert (kept.recommended, kept.predicted_gain_pct) == (2, 0.0)
    assert kept.reason == "workers may run on 1 of the 4 CPUs of the process: undo that first"
    assert unless_pinned(ADVICE, None) is ADVICE
    assert unless_pinned(ADVICE, Pinned(6, 8)) is ADVICE
