"""Advice: consistent with the model, and with a reason that tells what binds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from stallmeter.workers import (
    NEAR_BEST,
    Limits,
    OperatingPoint,
    advise,
    advise_prefetch,
    best_workers,
    expected,
    fewer_workers,
    limited,
    loop_threads,
    predict_step_time_s,
    savings,
    worker_cap,
)
from stallmeter.workers.fewer import SAVES_PROCESSES

from .loaders import MEBI, ROOMY, THREADED, UNEVEN, costs_, limits_, loader, points_


@given(costs_, limits_, points_)
def test_advice_is_consistent(costs, limits, previous):
    advice = advise(costs, limits, previous=previous)
    assert advice.current == costs.current
    assert advice.recommended >= 0
    assert 0 <= advice.confidence <= 0.9
    assert advice.limited_by in {"compute", "workers", "cpu", "memory", "bandwidth", "unknown"}
    assert advice.predicted_gain_pct is not None
    assert advice.predicted_gain_pct >= 0
    assert advice.reason
    if advice.recommended == costs.current:
        assert advice.predicted_gain_pct == 0


@given(costs_, limits_)
def test_advice_is_never_worse_than_the_present_by_its_own_prediction(costs, limits):
    advice = advise(costs, limits)
    assert predict_step_time_s(costs, limits, advice.recommended) <= predict_step_time_s(costs, limits, costs.current)


@given(costs_, limits_)
def test_recommendation_keeps_the_memory_cap(costs, limits):
    cap, _ = worker_cap(costs, limits)
    advice = advise(costs, limits)
    assert advice.recommended <= max(cap, costs.current)
    if limits.free_bytes is not None and limits.worker_bytes:
        added = max(0, advice.recommended - costs.current)
        assert added * limits.worker_bytes <= limits.free_bytes


@given(costs_, limits_, points_)
def test_what_must_not_be_changed_is_not(costs, limits, previous):
    fixed = replace(costs, iterable=True, shards_itself=False)
    assert advise(fixed, limits, previous=previous).recommended == costs.current


def test_blocked_loader_gets_workers_beyond_the_cpus():
    advice = advise(loader(), replace(ROOMY, available_cpus=2.0))
    assert advice.recommended == 5
    assert advice.limited_by == "compute"
    assert advice.predicted_step_time_s == pytest.approx(0.013)
    assert advice.predicted_gain_pct == pytest.approx(100 * (60 / 13 - 1))
    assert "60 ms" in advice.reason
    assert "13 ms" in advice.reason


@pytest.mark.parametrize("current", [0, 2])
def test_tiny_data_get_no_workers(current):
    step_s = 0.0025 if current == 0 else 0.0031
    costs = loader(
        current=current, work_s=0.0023, service_s=0.0002, cpu_s=0.0002, loop_cpu_s=0.0005, step_time_s=step_s
    )
    advice = advise(costs, replace(ROOMY, available_cpus=2.0))
    assert advice.recommended == 0
    assert advice.limited_by == "compute"


def test_saturated_cpus_are_named_with_the_cpus_that_full_speed_needs():
    costs = loader(
        current=2,
        work_s=0.0053,
        service_s=0.0333,
        cpu_s=0.0339,
        handover_s=None,
        loop_cpu_s=0.0021,
        step_time_s=0.0191,
    )
    advice = advise(costs, replace(ROOMY, available_cpus=2.0))
    assert advice.recommended == 2
    assert advice.limited_by == "cpu"
    assert costs.cpus_for_full_speed == pytest.approx(0.036 / 0.0065)
    assert "More workers will not help" in advice.reason
    assert "full speed needs 5.5 CPUs" in advice.reason


def test_of_cpus_that_a_loop_keeps_busy_by_itself_no_more_is_needed():
    """It was told that full speed needs 1.9 CPUs, of 2.0."""
    costs = loader(work_s=0.0303, service_s=0.0003, cpu_s=0.0003, loop_cpu_s=0.0599, step_time_s=0.0306)
    reason = advise(costs, replace(ROOMY, available_cpus=2.0)).reason
    assert "a step needs 60.2 ms of CPU on 2.0 CPUs, and keeps nearly all of them busy" in reason
    assert "full speed" not in reason


def test_threads_of_the_loop_and_new_workers_get_into_each_others_way():
    """Two threads and two workers on two CPUs."""
    two = replace(ROOMY, available_cpus=2.0)
    assert (0.100 + 0.040) / 2 < predict_step_time_s(THREADED, two, 2) < THREADED.step_time_s
    one_thread = replace(THREADED, work_s=0.040, step_time_s=0.140)
    assert predict_step_time_s(one_thread, two, 2) == pytest.approx((0.100 + 0.040) / 2, rel=0.02)
    advice = advise(THREADED, two)
    assert advice.limited_by == "cpu"
    assert (advice.recommended, advice.torch_threads) == (2, 1)
    assert "with torch.set_num_threads(1)" in advice.reason
    beside = advise(replace(THREADED, current=1, step_time_s=None), two)
    assert "The loop itself computes with 2.0 threads" in beside.reason
    assert "threads" not in advise(one_thread, two).reason


def test_memory_caps_the_number_and_is_named():
    limits = replace(ROOMY, free_bytes=500 * MEBI, worker_bytes=200 * MEBI)
    advice = advise(loader(), limits)
    assert advice.recommended == 2
    assert advice.limited_by == "memory"
    assert "200 MiB" in advice.reason


def test_shared_memory_caps_the_number_too():
    limits = replace(ROOMY, shm_free_bytes=64 * MEBI, batch_bytes=8 * MEBI)
    assert worker_cap(loader(), limits) == (3, "memory")
    assert advise(loader(), limits).recommended == 3


def test_small_gains_change_nothing():
    costs = loader(current=1, work_s=0.05, service_s=0.0515, step_time_s=0.052)
    advice = advise(costs, ROOMY)
    assert advice.recommended == 1
    assert advice.predicted_gain_pct == 0
    assert "3%" in advice.reason


def test_reason_says_why_it_is_left_alone_and_what_would_be_gained():
    advice = advise(replace(loader(), iterable=True), ROOMY)
    assert advice.recommended == 0
    assert "iterable" in advice.reason
    assert "num_workers=5 would take 13 ms a step instead of 60 ms" in advice.reason


def test_a_dataset_that_splits_itself_gets_workers_up_to_its_shards():
    """More than one for each shard would be idle."""
    costs = replace(loader(), iterable=True, shards_itself=True)
    assert advise(costs, ROOMY).recommended == 5
    advice = advise(costs, replace(ROOMY, shards=3))
    assert (advice.recommended, advice.limited_by) == (3, "workers")
    assert "3 shards" in advice.reason
    assert advice.predicted_step_time_s > advise(costs, ROOMY).predicted_step_time_s


def test_a_saved_state_is_a_caution_and_no_obstacle():
    """The number can be changed between runs, only not in the middle of an epoch that is resumed."""
    advice = advise(replace(loader(), stateful=True), ROOMY)
    assert advice.recommended == 5
    assert "state that this loader saved" in advice.reason
    assert "resuming" in limited(replace(loader(), stateful=True), ROOMY, advice)


def test_what_the_parts_do_not_explain_is_unknown():
    advice = advise(loader(step_time_s=0.3), ROOMY)
    assert advice.recommended == 0
    assert advice.limited_by == "unknown"
    assert advice.confidence < 0.3


def test_shared_store_shows_in_a_second_operating_point():
    first = OperatingPoint(workers=2, service_s=0.066, cpu_s=0.004, step_time_s=0.0335)
    costs = loader(current=6, work_s=0.008, service_s=0.131, cpu_s=0.0045, handover_s=None, step_time_s=0.0225)
    advice = advise(costs, ROOMY, previous=first)
    assert advice.limited_by == "bandwidth"
    assert (advice.recommended, advice.saves_processes) == (4, 2)
    assert "21.8 ms" in advice.reason
    fewer = OperatingPoint(workers=6, service_s=0.131, cpu_s=0.0045, step_time_s=0.0225)
    back = loader(current=2, work_s=0.008, service_s=0.066, cpu_s=0.004, handover_s=None, step_time_s=0.0335)
    assert advise(back, ROOMY, previous=fewer).recommended == 4
    assert advise(back, ROOMY, previous=fewer).limited_by == "bandwidth"


CROWDED = loader(
    current=12, work_s=0.005, service_s=0.033, cpu_s=0.032, handover_s=None, loop_cpu_s=0.002, step_time_s=0.0175
)
"""12 workers that compute, for 2 CPUs."""
TWO_CPUS = Limits(available_cpus=2.0, worker_bytes=150 * MEBI, unique_bytes=150 * MEBI)


def test_workers_that_do_nothing_for_the_speed_are_named_with_what_they_cost():
    advice = advise(CROWDED, TWO_CPUS)
    assert advice.recommended == 3
    assert advice.limited_by == "cpu"
    assert advice.predicted_gain_pct == 0
    assert advice.saves_processes == 12 - advice.recommended
    assert advice.saves_bytes == advice.saves_processes * 150 * MEBI
    assert advice.reason.startswith(f"{advice.recommended} do the same. More workers will not help")
    assert savings(advice) == f"{advice.saves_processes} processes and {advice.saves_bytes / 1e9:.1f} GB less"
    assert expected(advice) == f"The same speed with {savings(advice)}."
    assert savings(advise(CROWDED, replace(TWO_CPUS, unique_bytes=None))) == f"{advice.saves_processes} processes less"


@pytest.mark.parametrize(
    ("why", "costs", "limits"),
    [
        ("all are needed", loader(current=12, service_s=0.14, step_time_s=0.013), ROOMY),
        ("too little is saved", loader(current=6, handover_s=0.001, step_time_s=0.013), ROOMY),
        ("neighbours take the CPUs from fewer workers", CROWDED, replace(TWO_CPUS, neighbour_cpus=1.0)),
        ("the step is not explained", replace(CROWDED, step_time_s=0.023), TWO_CPUS),
        ("an iterable dataset", replace(CROWDED, iterable=True), TWO_CPUS),
        (
            "one batch in a hundred takes half a second, which only many bridge",
            loader(current=12, work_s=0.02, step_time_s=0.021, longest_s=(0.5,) * 1 + (0.05,) * 63, batches=100),
            ROOMY,
        ),
    ],
)
def test_fewer_are_not_said_to_do_the_same_where_that_is_not_sure(why, costs, limits):
    advice = advise(costs, limits)
    assert advice.recommended == costs.current, why
    assert advice.saves_processes is None
    assert savings(advice) == ""


def test_more_workers_than_shards_have_nothing_to_read():
    """Four for a single shard: uneven batches are bridged by what one of them makes ahead, or not at all."""
    costs = loader(current=4, step_time_s=0.06, profile=UNEVEN, iterable=True, shards_itself=True)
    assert advise(costs, replace(ROOMY, shards=1)).recommended == 1
    assert advise(costs, replace(ROOMY, shards=1)).saves_processes == 3


@given(costs_, limits_)
def test_fewer_workers_never_cost_speed_by_the_models_own_prediction(costs, limits):
    fewer = fewer_workers(costs, limits)
    if fewer is not None:
        assert 1 <= fewer <= costs.current - SAVES_PROCESSES
        now_s = predict_step_time_s(costs, limits, costs.current)
        assert predict_step_time_s(costs, limits, fewer) <= now_s * (1 + NEAR_BEST)


@given(costs_, limits_)
def test_what_saves_is_not_asked_back(costs, limits):
    """After a change to the smaller number, with the same costs, no more are recommended."""
    fewer = fewer_workers(costs, limits)
    if fewer is not None and best_workers(costs, limits).workers <= costs.current:
        assert best_workers(costs, limits).workers <= fewer


def test_the_loop_alone_and_one_worker_do_not_show_a_shared_store():
    """What differs between them, a cold cache say, is none of more workers."""
    costs = loader(current=1, work_s=0.01, service_s=0.04, cpu_s=0.01, step_time_s=0.041)
    alone = advise(costs, ROOMY)
    for service_s in (0.055, 0.03):
        before = OperatingPoint(workers=0, service_s=service_s, cpu_s=0.01, step_time_s=0.065)
        assert advise(costs, ROOMY, previous=before).recommended == alone.recommended > 1


def test_service_that_grew_by_computing_is_no_shared_store():
    first = OperatingPoint(workers=1, service_s=0.020, cpu_s=0.019, step_time_s=0.021)
    costs = loader(current=2, service_s=0.030, cpu_s=0.028, step_time_s=0.0155)
    assert advise(costs, ROOMY, previous=first) == advise(costs, ROOMY)


def test_guesses_and_neighbours_lower_the_confidence():
    sure = advise(loader(), ROOMY).confidence
    assert sure > 0.8
    assert advise(loader(handover_s=None), ROOMY).confidence < sure
    assert advise(loader(batches=10), ROOMY).confidence < sure
    assert advise(loader(), replace(ROOMY, available_cpus=None)).confidence < sure
    assert advise(loader(), replace(ROOMY, available_cpus=1.0, neighbour_cpus=3.0)).confidence < 0.6 * sure


def test_a_deeper_queue_bridges_slow_batches():
    """Two workers can keep up with the loop on average; four batches ahead of a slow one do not last, sixteen do."""
    costs = loader(current=2, work_s=0.05, service_s=0.058, handover_s=0.0, profile=UNEVEN)
    found = advise_prefetch(costs, Limits(prefetch_factor=2), 2)
    assert found is not None
    assert found.prefetch_factor in (4, 8, 16)
    assert found.gain_pct > 3
    advised = advise(replace(costs, step_time_s=predict_step_time_s(costs, Limits(), 2)), Limits(max_workers=2))
    assert advised.recommended == 2
    assert advised.prefetch_factor == found.prefetch_factor
    assert advised.prefetch_gain_pct == pytest.approx(found.gain_pct)


def test_threads_are_left_alone_where_no_worker_gets_into_their_way():
    """With one thread such a step takes twice as long (1.7 times in a program that followed the advice)."""
    two = replace(ROOMY, available_cpus=2.0)
    light = replace(THREADED, service_s=0.001, cpu_s=0.001, step_time_s=THREADED.work_s + 0.001)
    for workers in (0, 2):
        advice = advise(replace(light, current=workers), two)
        assert "threads" not in advice.reason, workers
    to_two = replace(advise(replace(THREADED, current=1), two), limited_by="cpu", recommended=2, torch_threads=None)
    assert loop_threads(THREADED, to_two) == pytest.approx(2.0)
    assert loop_threads(THREADED, replace(to_two, torch_threads=1)) is None, "that is said with the number"
    assert loop_threads(THREADED, replace(to_two, recommended=0)) is None
    assert loop_threads(replace(THREADED, torch_threads=1), to_two) is None, "it has one, and others compute beside it"
    assert loop_threads(light, to_two) is None
    fifth = replace(THREADED, cpu_s=0.2 * THREADED.work_s)  # two threads share the step, and hardly wait
    assert loop_threads(fifth, to_two) is None


def test_more_than_those_that_are_recommended_will_not_help():
    """Neither beside the number nor as the limit of the advice: "more" would be they themselves."""
    costs = loader(current=2, service_s=0.4, cpu_s=0.1, work_s=0.02, loop_cpu_s=0.02, step_time_s=0.2, handover_s=0.001)
    limits = Limits(available_cpus=2.0)
    advice = advise(costs, limits)
    assert (advice.recommended > 2, advice.limited_by) == (True, "cpu")
    said = f"ore than {advice.recommended} workers will not help: a step needs"
    assert said in advice.reason
    assert said in limited(costs, limits, advice)


def test_no_workers_for_batches_that_threads_of_a_library_make():
    """In a worker they would be as many: one took a step of 65 ms to 85, where 54 were promised."""
    costs = loader(service_s=0.035, cpu_s=0.048, work_s=0.028, loop_cpu_s=0.055, step_time_s=0.065, torch_threads=1)
    assert advise(costs, Limits(available_cpus=2.0)).recommended > 0
    advice = advise(replace(costs, library_threads=True), Limits(available_cpus=2.0))
    assert (advice.recommended, advice.limited_by, advice.predicted_gain_pct) == (0, "unknown", 0.0)
    assert "OPENBLAS_NUM_THREADS=1" in advice.reason
