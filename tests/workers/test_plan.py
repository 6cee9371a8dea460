"""The best number of workers, together with one thread of the loop's where that belongs to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from stallmeter.workers import Limits, advise
from stallmeter.workers.model import LoaderCosts, best_workers, predict_step_time_s
from stallmeter.workers.plan import MAY_LOSE, SCALING, best_plan, between_s, one_thread, soonest_step_s, with_one_thread
from stallmeter.workers.team import threads_of_loop

from .loaders import ROOMY, THREADED, costs_, limits_, seconds

TWO = replace(ROOMY, available_cpus=2.0)
EVEN = replace(THREADED, work_s=0.03, service_s=0.03, cpu_s=0.03, loop_cpu_s=0.06, step_time_s=0.06)
"""A batch takes one CPU as long as a step takes two threads: workers alone give nothing (measured: 0.98 to 1.0)."""


def test_one_thread_and_one_worker_where_workers_alone_give_nothing() -> None:
    """Measured with such a network: 60 ms, with a worker 60, with a worker and one thread 47."""
    assert best_workers(EVEN, TWO).workers == 0
    plan = best_plan(EVEN, TWO)
    assert (plan.best.workers, plan.torch_threads) == (1, 1)
    assert plan.best.step_time_s == pytest.approx(0.03 * 2**SCALING + EVEN.ready_step_s - EVEN.work_s, rel=0.02)
    advice = advise(EVEN, TWO)
    assert (advice.recommended, advice.torch_threads) == (1, 1)
    assert "with torch.set_num_threads(1). Threads of one operation wait for each other" in advice.reason
    assert advice.predicted_gain_pct == pytest.approx(100 * (0.06 / plan.best.step_time_s - 1), rel=0.02)


def test_an_iterable_dataset_s_number_is_told_with_the_thread_that_belongs_to_it() -> None:
    advice = advise(replace(EVEN, iterable=True), TWO)
    assert (advice.recommended, advice.torch_threads) == (0, None)
    assert advice.reason.startswith("num_workers=1 with torch.set_num_threads(1) would take")


def test_what_is_not_known_of_the_network_lies_between_the_two_ends() -> None:
    shortest_s, longest_s = between_s(EVEN, TWO, 1)
    assert shortest_s < best_plan(EVEN, TWO).best.step_time_s < longest_s
    assert longest_s < (1 + MAY_LOSE) * 0.06


def test_a_loop_that_stands_still_keeps_its_cpus_busy_only_while_it_runs() -> None:
    """Measured: 22.2 ms; with a worker 20.7, with a worker and one thread 14.9."""
    still = replace(EVEN, work_s=0.0142, blocked_s=0.008, loop_cpu_s=0.0124, service_s=0.008, cpu_s=0.008)
    still = replace(still, step_time_s=0.0222)
    plan = best_plan(still, TWO)
    assert (plan.best.workers, plan.torch_threads) == (1, 1)
    assert plan.best.step_time_s == pytest.approx(0.008 + 0.0062 * 2**SCALING, rel=0.1)
    assert plan.costs.loop_cpu_s == pytest.approx(0.0062 * 2**SCALING)


def test_a_loop_that_may_stand_still_first_may_gain_more() -> None:
    still = replace(EVEN, work_s=0.05, blocked_s=0.04, loop_cpu_s=0.02, service_s=0.03, cpu_s=0.03, step_time_s=0.08)
    soonest_s = soonest_step_s(still, TWO, 1)
    assert soonest_s is not None
    assert soonest_s == pytest.approx(still.ready_step_s)
    assert soonest_s < predict_step_time_s(still, TWO, 1)
    for changes in ({"current": 1}, {"blocked_s": 0.0}, {"loop_cpu_s": 0.01}):
        assert soonest_step_s(replace(still, **changes), TWO, 1) is None  # type: ignore[arg-type]


def test_a_network_whose_batch_is_far_cheaper_than_its_step_keeps_its_threads() -> None:
    """Measured with batches of 0.4 of a step: 41 ms, with a worker and one thread 46."""
    light = replace(EVEN, service_s=0.012, cpu_s=0.012, step_time_s=0.042)
    assert best_plan(light, TWO).torch_threads is None
    assert advise(light, TWO).recommended == 0


def test_no_plan_that_could_be_slower_for_a_network_that_scales_well() -> None:
    """Four threads on four CPUs: one alone may take 3.5 times as long."""
    four = replace(EVEN, loop_cpu_s=0.12, service_s=0.05, cpu_s=0.05, step_time_s=0.08)
    limits = replace(TWO, available_cpus=4.0)
    assert best_plan(four, limits).torch_threads is None
    expected_s = predict_step_time_s(with_one_thread(four, limits), limits, 2)
    assert expected_s < 0.08 < between_s(four, limits, 2)[1]


CROWDED = replace(
    THREADED,
    current=1,
    work_s=0.143,
    quiet_work_s=0.0505,
    service_s=0.118,
    cpu_s=0.118,
    loop_cpu_s=0.169,
    team=2.0,
    step_time_s=0.145,
)
"""A busy worker takes a CPU from a recurrent network's two threads. Measured: 143 ms a step, with one thread 114, with
two workers and one thread 72."""


def test_beside_workers_one_thread_may_be_what_is_missing() -> None:
    then = one_thread(CROWDED, TWO)
    assert then is not None
    assert (then.workers, then.limited_by) == (1, "workers")
    assert then.step_time_s == pytest.approx(0.118, rel=0.02)
    plan = best_plan(CROWDED, TWO)
    assert (plan.best.workers, plan.torch_threads) == (2, 1)
    shortest_s, longest_s = between_s(CROWDED, TWO, 2, error=0.13)
    assert shortest_s < 0.072 < plan.best.step_time_s < longest_s < 0.143
    advice = advise(CROWDED, TWO)
    assert (advice.recommended, advice.torch_threads) == (2, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"current": 0, "quiet_work_s": None},
        {"team": None},
        {"team": 1.1},
        {"quiet_work_s": None},
        {"torch_threads": 1},
        {"quiet_work_s": 0.14},  # what its threads wait for are no workers
    ],
)
def test_nothing_is_said_of_threads_that_are_not_known_to_wait_for_workers(changes: dict[str, float]) -> None:
    costs = replace(CROWDED, **changes)  # type: ignore[arg-type]
    assert one_thread(costs, TWO) is None
    assert costs.current == 0 or best_plan(costs, TWO).torch_threads is None


@given(costs_, limits_, seconds)
def test_one_thread_is_only_named_where_it_is_faster(costs: LoaderCosts, limits: Limits, quiet_s: float) -> None:
    costs = replace(costs, quiet_work_s=quiet_s)
    then = one_thread(costs, limits)
    if then is not None:
        assert then.workers == costs.current > 0
        assert then.step_time_s < predict_step_time_s(costs, limits, costs.current)


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({"current": 1}, TWO),  # what the threads would take without the crowd is not known
        ({"loop_cpu_s": 0.03}, TWO),
        ({"torch_threads": 1}, TWO),  # it has one already: what computes beside it is not torch's
        ({}, replace(TWO, available_cpus=16.0)),  # workers have CPUs of their own
        ({}, replace(TWO, available_cpus=None)),
        ({"cpu_s": 0.001}, TWO),  # workers that wait are in nobody's way
        ({}, replace(TWO, max_workers=0)),
    ],
)
def test_threads_are_left_alone(changes: dict[str, float], limits: Limits) -> None:
    costs = replace(EVEN, **changes)  # type: ignore[arg-type]
    plan = best_plan(costs, limits)
    assert plan.torch_threads is None
    assert plan.best == best_workers(costs, limits)


@given(costs_, limits_)
def test_a_plan_is_never_slower_than_a_number_alone(costs: LoaderCosts, limits: Limits) -> None:
    plan, alone = best_plan(costs, limits), best_workers(costs, limits)
    assert plan.best.step_time_s <= alone.step_time_s
    if plan.torch_threads is not None:
        assert plan.best.workers > 0
        assert threads_of_loop(plan.costs, limits) == 1.0
