"""A loop of several threads beside workers on the same CPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.workers import Limits
from stallmeter.workers.model import LoaderCosts, predict_step_time_s, predict_step_times_s
from stallmeter.workers.team import threads_beside_s, threads_of_loop

from .loaders import THREADED, costs_, limits_

TWO = Limits(available_cpus=2.0)


def team(work_ms: float, batch_ms: float, threads: float = 2.0) -> LoaderCosts:
    work_s, batch_s = work_ms / 1e3, batch_ms / 1e3
    made = replace(THREADED, work_s=work_s, service_s=batch_s, cpu_s=batch_s, handover_s=None)
    return replace(made, loop_cpu_s=threads * work_s, step_time_s=work_s + batch_s)


def test_how_many_threads_there_are_is_bounded_by_the_cpus() -> None:
    assert threads_of_loop(THREADED, TWO) == pytest.approx(2.0)
    assert threads_of_loop(replace(THREADED, loop_cpu_s=0.2), TWO) == 2.0, "threads of the batch spin, too"
    assert threads_of_loop(replace(THREADED, loop_cpu_s=0.001), TWO) == 1.0
    assert threads_of_loop(replace(THREADED, work_s=0.0), TWO) == 1.0
    assert threads_of_loop(replace(THREADED, torch_threads=1), TWO) == 1.0
    assert threads_of_loop(replace(THREADED, loop_cpu_s=0.2), Limits()) == 2.0


@pytest.mark.parametrize(
    ("work_ms", "batch_ms", "measured_ms"),
    [  # with 1, 2 and 3 workers; 2 threads, 2 CPUs, without stallmeter
        (28.7, 12.5, (42.1, 42.0, 41.9)),
        (29.1, 30.6, (60.5, 60.3, 61.8)),
        (30.3, 60.7, (94.7, 76.8, 82.8)),
        (42.3, 38.6, (80.0, 77.6, 85.2)),
        (26.4, 24.6, (46.8, 54.6, 47.8)),
        (26.0, 48.7, (79.3, 63.0, 66.5)),
        (36.5, 34.8, (83.4, 69.5, 69.8)),
    ],
)
def test_steps_as_they_were_measured(work_ms: float, batch_ms: float, measured_ms: tuple[float, ...]) -> None:
    predicted_s = predict_step_times_s(team(work_ms, batch_ms), TWO, 3)[1:]
    assert [1e3 * s for s in predicted_s] == pytest.approx(measured_ms, rel=0.15)


@pytest.mark.parametrize(
    ("runs_ms", "batch_ms", "measured_ms"),
    [  # the loop then stands still for 8 and 30 ms; with 1, 2 and 3 workers; 2 threads, 2 CPUs, without stallmeter
        (5.8, 3.2, (17.7, 18.3, 19.0)),
        (5.8, 8.0, (20.8, 21.1, 20.8)),
        (25.9, 11.8, (66.1, 66.5, 67.0)),
        (21.8, 29.8, (80.7, 81.0, 83.5)),
        (24.5, 60.4, (104.0, 100.8, 101.0)),
    ],
)
def test_a_loop_that_stands_still_as_it_was_measured(
    runs_ms: float, batch_ms: float, measured_ms: tuple[float, ...]
) -> None:
    still_ms = 8.0 if runs_ms < 10.0 else 30.0
    costs = replace(team(runs_ms + still_ms, batch_ms), blocked_s=still_ms / 1e3, loop_cpu_s=2 * runs_ms / 1e3)
    assert threads_of_loop(costs, TWO) == pytest.approx(2.0), "it has two while it runs"
    predicted_s = predict_step_times_s(costs, TWO, 3)[1:]
    assert [1e3 * s for s in predicted_s] == pytest.approx(measured_ms, rel=0.2)


def test_workers_are_out_of_the_way_of_a_loop_that_stands_still_first() -> None:
    """Measured: 31 ms without workers and 23.2 with one; where it stands still at the end 22 became 20.8."""
    costs = replace(team(22.0, 8.0), blocked_s=0.016, loop_cpu_s=0.012)
    last_s, first_s = (threads_beside_s(replace(costs, blocked_first=first), TWO, 1) for first in (False, True))
    assert first_s == pytest.approx(costs.ready_step_s)
    assert last_s == pytest.approx(costs.ready_step_s + 0.006, rel=0.05)


def test_what_one_worker_takes_over_the_loop_loses_beside_it() -> None:
    for batch_ms in (5.0, 20.0, 60.0):
        costs = team(20.0, batch_ms)
        assert threads_beside_s(costs, TWO, 1) == pytest.approx(costs.ready_step_s + costs.cpu_s)


def test_workers_with_cpus_of_their_own_are_in_nobody_s_way() -> None:
    costs = team(20.0, 15.0)
    assert threads_beside_s(costs, replace(TWO, available_cpus=3.0), 1) == pytest.approx(costs.ready_step_s)
    assert predict_step_time_s(costs, replace(TWO, available_cpus=8.0), 4) == pytest.approx(costs.ready_step_s)


def test_between_one_thread_and_two_lies_what_is_between() -> None:
    alone_s, half_s, both_s = (threads_beside_s(team(20.0, 15.0, n), TWO, 1) for n in (1.001, 1.5, 2.0))
    assert alone_s < half_s < both_s
    assert alone_s == pytest.approx(team(20.0, 15.0).ready_step_s, rel=0.01)


@pytest.mark.parametrize("changes", [{"current": 1}, {"loop_cpu_s": 0.02}, {"work_s": 0.0}])
def test_nothing_is_added_where_it_is_measured_or_there_is_one_thread(changes: dict[str, float]) -> None:
    assert threads_beside_s(replace(THREADED, **changes), TWO, 2) == 0.0  # type: ignore[arg-type]
    assert threads_beside_s(THREADED, Limits(), 2) == 0.0
    assert threads_beside_s(THREADED, TWO, 0) == 0.0


@given(costs_, limits_, st.integers(1, 12))
def test_it_is_a_time_and_workers_that_compute_less_are_less_in_the_way(
    costs: LoaderCosts, limits: Limits, workers: int
) -> None:
    found_s = threads_beside_s(costs, limits, workers)
    lighter = replace(costs, cpu_s=costs.cpu_s / 2, shared_memory_s=costs.shared_memory_s / 2)
    assert 0.0 <= threads_beside_s(lighter, limits, workers) <= found_s * (1 + 1e-6) + 1e-9
