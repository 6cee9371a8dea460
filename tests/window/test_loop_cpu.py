"""On whose account the training thread waits for a CPU, against chances worked out by hand."""

from __future__ import annotations

import math

import pytest

from stallmeter.records import HostSample
from stallmeter.window import Window
from stallmeter.window.loop_cpu import MANY, chance_of_at_least


def waits(*, job: float, others: float, main: float = 0.1, usable: float = 2.0) -> float | None:
    """A thread that waits 20 % of the time."""
    window = Window()
    for i in range(5):
        window.append(
            HostSample(
                time_s=float(i), usable_cpus=usable, job_cpus=job, main_cpus=main, others_cpus=others,
                loop_cpu_wait_pct=20.0,
            )
        )  # fmt: skip
    assert window.host.loop.wait_pct == 20.0
    return window.host.loop.neighbour_wait_pct


def test_chances() -> None:
    assert chance_of_at_least(2, 1.0) == pytest.approx(1 - 2 / math.e)
    assert chance_of_at_least(1, 0.5) == pytest.approx(1 - math.exp(-0.5))
    assert chance_of_at_least(3, 0.0) == 0.0
    assert chance_of_at_least(64, 2.0) == pytest.approx(math.exp(64 * math.log(2) - 2 - math.lgamma(65)), rel=0.1)
    assert chance_of_at_least(2, 500.0) == pytest.approx(1.0)


@pytest.mark.parametrize("mean", [9_800.0, 10_000.0, 10_200.0])
def test_a_number_of_cpus_that_no_machine_has_takes_no_time(mean: float) -> None:
    """A recording may say anything."""
    assert chance_of_at_least(MANY, mean) == pytest.approx(chance_of_at_least(MANY - 1, mean), abs=0.02)
    assert chance_of_at_least(10**15, 1e11 * mean) in (0.0, pytest.approx(0.5), 1.0)


def test_a_job_that_leaves_the_cpus_free_waits_for_others() -> None:
    found = waits(job=0.3, others=1.5)
    assert found == pytest.approx(20.0 * (1 - chance_of_at_least(2, 0.2) / chance_of_at_least(2, 1.7)))
    assert found is not None
    assert found > 19.0


def test_a_job_that_fills_the_cpus_waits_for_itself() -> None:
    found = waits(job=1.9, others=0.1)
    assert found is not None
    assert found < 3.0
    assert waits(job=1.9, others=0.0) == 0.0
    assert waits(job=0.1, others=0.0) == 0.0


@pytest.mark.parametrize(
    ("ranks", "least", "most"), [(0.0, 20.0, 20.0), (1.0, 1.0, 6.0)], ids=["alone", "a rank beside"]
)
def test_workers_are_not_blamed_for_another_rank(ranks: float, least: float, most: float) -> None:
    """It shares the CPUs, and keeps one of two busy; the rank's own worker a tenth of one."""
    window = Window()
    for i in range(5):
        window.append(
            HostSample(
                time_s=float(i), usable_cpus=2.0, job_cpus=1.1, main_cpus=1.0, others_cpus=0.0, ranks_cpus=ranks,
                loop_cpu_wait_pct=20.0,
            )
        )  # fmt: skip
    found = window.host.loop.workers_wait_pct
    assert found is not None
    assert least <= found <= most
