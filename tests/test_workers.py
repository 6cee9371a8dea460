from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.budget import Budget
from stallmeter.errors import SettingError
from stallmeter.records import HostSample, LoaderInfo, StepRecord, WorkerBatch, WorkerMemory
from stallmeter.workers import (
    HANDOVER_S,
    NEAR_BEST,
    BatchShape,
    Limits,
    LoaderCosts,
    OperatingPoint,
    advise,
    available_cpus,
    batch_shape,
    best_workers,
    costs_from,
    deeper_queue,
    limits_from,
    predict_step_time_s,
    worker_cap,
)

MEBI = 1 << 20

seconds = st.floats(0, 5, allow_subnormal=False)
profiles = st.lists(st.floats(1e-3, 1, allow_subnormal=False), max_size=12).map(tuple)
costs_ = st.builds(
    LoaderCosts,
    current=st.integers(0, 12),
    work_s=seconds,
    service_s=seconds,
    cpu_s=seconds,
    handover_s=st.none() | st.floats(0, 0.05),
    loop_cpu_s=seconds,
    neighbour_wait_s=st.floats(0, 0.5),
    shared_memory_s=st.floats(0, 0.1),
    step_time_s=st.none() | seconds,
    profile=profiles,
    batches=st.integers(0, 200),
    iterable=st.booleans(),
    stateful=st.booleans(),
)
limits_ = st.builds(
    Limits,
    available_cpus=st.none() | st.just(0.0) | st.floats(1e-3, 128),
    neighbour_cpus=st.floats(0, 16),
    worker_bytes=st.none() | st.integers(0, 4096 * MEBI),
    free_bytes=st.none() | st.integers(0, 64 * 1024 * MEBI),
    batch_bytes=st.none() | st.integers(0, 512 * MEBI),
    shm_free_bytes=st.none() | st.integers(0, 8 * 1024 * MEBI),
    prefetch_factor=st.integers(0, 8),
    shared_s=st.floats(0, 1),
    max_workers=st.integers(0, 24),
)
points_ = st.none() | st.builds(
    OperatingPoint, workers=st.integers(0, 12), service_s=seconds, cpu_s=seconds, step_time_s=seconds
)


def loader(**changes: float | None) -> LoaderCosts:
    """A worker takes 48 ms, mostly blocked; the loop takes 12 ms."""
    found = LoaderCosts(
        current=0,
        work_s=0.012,
        service_s=0.048,
        cpu_s=0.001,
        handover_s=0.001,
        loop_cpu_s=0.001,
        step_time_s=0.060,
        batches=100,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


ROOMY = Limits(available_cpus=16.0, free_bytes=1 << 40, worker_bytes=100 * MEBI)


# -- properties --------------------------------------------------------------------------------------------------------


@given(costs_, limits_, st.integers(0, 10), st.floats(1, 8))
def test_more_cpus_never_predict_a_slower_step(costs, limits, workers, factor):
    more = replace(limits, available_cpus=(limits.available_cpus or 1.0) * factor)
    less = replace(limits, available_cpus=limits.available_cpus or 1.0)
    assert predict_step_time_s(costs, more, workers) <= predict_step_time_s(costs, less, workers)


@given(costs_, limits_, st.integers(1, 10))
def test_more_workers_never_predict_a_slower_step(costs, limits, workers):
    assert predict_step_time_s(costs, limits, workers + 1) <= predict_step_time_s(costs, limits, workers)


@given(costs_, limits_, st.integers(0, 8), st.integers(-6, 6))
def test_scaling_all_times_scales_the_prediction(costs, limits, workers, exponent):
    k = 2.0**exponent
    names = ("work_s", "service_s", "cpu_s", "loop_cpu_s", "neighbour_wait_s", "shared_memory_s", "turnaround_s")
    scaled = replace(
        costs,
        **{name: k * getattr(costs, name) for name in names},
        handover_s=k * (HANDOVER_S if costs.handover_s is None else costs.handover_s),
    )
    predicted = predict_step_time_s(scaled, replace(limits, shared_s=k * limits.shared_s), workers)
    assert math.isclose(predicted, k * predict_step_time_s(costs, limits, workers), rel_tol=1e-9, abs_tol=1e-12)


@given(costs_, limits_, st.integers(0, 10))
def test_no_prediction_is_below_what_binds_everything(costs, limits, workers):
    predicted = predict_step_time_s(costs, limits, workers)
    assert predicted >= costs.work_s
    assert predicted >= limits.shared_s
    if limits.available_cpus:
        assert predicted >= (costs.cpu_s + costs.loop_cpu_s) / limits.available_cpus


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
    assert advice.recommended == costs.current or advice.recommended <= cap
    if limits.free_bytes is not None and limits.worker_bytes:
        added = max(0, advice.recommended - costs.current)
        assert added * limits.worker_bytes <= limits.free_bytes


@given(costs_, limits_, points_)
def test_what_must_not_be_changed_is_not(costs, limits, previous):
    for kind in ("iterable", "stateful"):
        fixed = replace(costs, **{kind: True})
        assert advise(fixed, limits, previous=previous).recommended == costs.current


@given(costs_, limits_)
def test_best_is_the_smallest_number_close_to_the_best_prediction(costs, limits):
    best = best_workers(costs, limits)
    cap, _ = worker_cap(costs, limits)
    fastest = min(predict_step_time_s(costs, limits, w) for w in range(cap + 1))
    # Workers are counted 10 % slower than measured, which may cost that much in the prediction but no more.
    assert best.step_time_s <= fastest * (1 + NEAR_BEST) * 1.1 + 1e-12


@pytest.mark.parametrize("name", ["work_s", "service_s", "cpu_s", "handover_s", "loop_cpu_s", "current"])
@pytest.mark.parametrize("value", [-1, math.inf, math.nan])
def test_impossible_costs_are_refused_by_name(name, value):
    with pytest.raises(SettingError, match=name):
        loader(**{name: value})


def test_impossible_limits_points_profiles_and_numbers_are_refused():
    with pytest.raises(SettingError, match="available_cpus"):
        Limits(available_cpus=-1.0)
    with pytest.raises(SettingError, match="service_s"):
        OperatingPoint(workers=1, service_s=-0.1, cpu_s=0, step_time_s=0)
    with pytest.raises(SettingError, match="profile"):
        replace(loader(), profile=(0.1, -0.1))
    with pytest.raises(SettingError, match="workers is -1"):
        predict_step_time_s(loader(), ROOMY, -1)


# -- the queue ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.floats(0.001, 0.1), st.floats(0.001, 0.2))
def test_even_batches_follow_the_formula(workers, work_s, service_s):
    costs = loader(work_s=work_s, service_s=service_s, handover_s=0.0, turnaround_s=0.0, cpu_s=0.0, loop_cpu_s=0.0)
    expected = max(work_s, service_s / workers)
    assert predict_step_time_s(costs, ROOMY, workers) == pytest.approx(expected)
    played = replace(costs, profile=(1.0,) * 128)
    assert predict_step_time_s(played, ROOMY, workers) == pytest.approx(expected, rel=0.03)


def events(times: list[float], workers: int, prefetch: int, ready_s: float, batches: int) -> float:
    """A DataLoader as a heap of events: index queues, workers, reordering, the loop. Returns when the loop ends."""
    heap: list[tuple[float, int, int]] = []
    queues: list[list[int]] = [[] for _ in range(workers)]
    idle = [True] * workers
    sent = 0
    arrived: set[int] = set()
    wanted, free_at = 0, 0.0

    def send(now: float) -> None:
        nonlocal sent
        worker = sent % workers
        queues[worker].append(sent)
        sent += 1
        if idle[worker]:
            begin(worker, now)

    def begin(worker: int, now: float) -> None:
        idle[worker] = False
        batch = queues[worker].pop(0)
        heapq.heappush(heap, (now + times[batch % len(times)], 0, batch))

    for _ in range(workers * prefetch):
        send(0.0)
    while wanted < batches:
        now, kind, batch = heapq.heappop(heap)
        if kind == 0:
            arrived.add(batch)
            worker = batch % workers
            idle[worker] = True
            if queues[worker]:
                begin(worker, now)
        if wanted in arrived and free_at <= now:
            arrived.remove(wanted)
            wanted += 1
            free_at = now + ready_s
            send(now)
            heapq.heappush(heap, (free_at, 1, -1))
    return free_at


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_uneven_batches_match_an_independent_simulation_of_the_loader(workers, prefetch):
    times = [0.12 if random.Random(i).random() < 0.2 else 0.01 for i in range(128)]
    mean = sum(times) / len(times)
    costs = loader(service_s=mean, turnaround_s=0.0, work_s=0.012, handover_s=0.0, profile=tuple(times))
    played = [predict_step_time_s(costs, replace(ROOMY, prefetch_factor=prefetch), w) for w in range(1, workers + 1)]
    long, short = (events(times, workers, prefetch, 0.012, n * 128) for n in (20, 10))
    assert played[-1] == pytest.approx((long - short) / 1280, rel=0.02)


def test_uneven_batches_need_more_workers_than_their_mean_says():
    times = tuple(0.3 if i % 10 == 0 else 0.01 for i in range(128))
    mean = sum(times) / len(times)
    even, uneven = loader(service_s=mean), loader(service_s=mean, profile=times)
    assert predict_step_time_s(uneven, ROOMY, 4) > 1.2 * predict_step_time_s(even, ROOMY, 4)
    assert best_workers(uneven, ROOMY).workers > best_workers(even, ROOMY).workers


def test_more_prefetch_helps_uneven_batches():
    times = tuple(0.3 if i % 10 == 0 else 0.01 for i in range(128))
    costs = loader(service_s=sum(times) / len(times), profile=times)
    assert predict_step_time_s(costs, replace(ROOMY, prefetch_factor=8), 4) < predict_step_time_s(costs, ROOMY, 4)


# -- advice on loaders as they were measured ---------------------------------------------------------------------------


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
    assert "more workers will not help" in advice.reason
    assert "full speed needs 5.5 CPUs" in advice.reason


THREADED = loader(work_s=0.020, service_s=0.100, cpu_s=0.100, loop_cpu_s=0.040, step_time_s=0.120)
"""A loop that computes with two threads, fed by decoding."""


def test_threads_of_the_loop_and_new_workers_get_into_each_others_way():
    """Two threads and two workers on two CPUs: each has half a CPU, so the loop's CPU time doubles."""
    two = replace(ROOMY, available_cpus=2.0)
    assert predict_step_time_s(THREADED, two, 2) == pytest.approx((0.100 + 2 * 0.040) / 2, rel=0.02)
    one_thread = replace(THREADED, work_s=0.040, step_time_s=0.140)
    assert predict_step_time_s(one_thread, two, 2) == pytest.approx((0.100 + 0.040) / 2, rel=0.02)
    advice = advise(THREADED, two)
    assert advice.limited_by == "cpu"
    assert "the loop itself computes with 2.0 threads" in advice.reason
    assert "torch.set_num_threads(1)" in advice.reason
    assert "threads" not in advise(one_thread, two).reason


def test_threads_of_the_loop_do_not_count_where_there_is_room_or_where_they_were_measured():
    assert predict_step_time_s(THREADED, ROOMY, 2) == predict_step_time_s(replace(THREADED, loop_cpu_s=0.0), ROOMY, 2)
    here = replace(THREADED, current=2)
    assert predict_step_time_s(here, replace(ROOMY, available_cpus=2.0), 2) == pytest.approx(0.070, rel=0.02)


def test_workers_that_mostly_sleep_leave_the_threads_of_the_loop_alone():
    """The queue is full: two workers need a tenth of a CPU between them."""
    costs = loader(work_s=0.100, service_s=0.010, cpu_s=0.010, loop_cpu_s=0.190, step_time_s=0.110)
    assert predict_step_time_s(costs, replace(ROOMY, available_cpus=2.0), 2) == pytest.approx(0.101)


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


def test_present_workers_have_their_memory_already():
    assert worker_cap(loader(current=4), replace(ROOMY, free_bytes=0)) == (4, "memory")


def test_small_gains_change_nothing():
    costs = loader(current=1, work_s=0.05, service_s=0.0515, step_time_s=0.052)
    advice = advise(costs, ROOMY)
    assert advice.recommended == 1
    assert advice.predicted_gain_pct == 0
    assert "3%" in advice.reason


@pytest.mark.parametrize(("kind", "word"), [("iterable", "iterable"), ("stateful", "saved state")])
def test_reason_says_why_it_is_left_alone_and_what_would_be_gained(kind, word):
    advice = advise(replace(loader(), **{kind: True}), ROOMY)
    assert advice.recommended == 0
    assert word in advice.reason
    assert "5 workers would take 13 ms a step instead of 60 ms" in advice.reason


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
    assert advice.recommended == 6
    assert "21.8 ms" in advice.reason
    fewer = OperatingPoint(workers=6, service_s=0.131, cpu_s=0.0045, step_time_s=0.0225)
    back = loader(current=2, work_s=0.008, service_s=0.066, cpu_s=0.004, handover_s=None, step_time_s=0.0335)
    assert advise(back, ROOMY, previous=fewer).recommended == 4
    assert advise(back, ROOMY, previous=fewer).limited_by == "bandwidth"


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


def test_neighbours_slow_the_workers_that_have_to_share():
    alone, crowded = loader(), loader(neighbour_wait_s=0.012)
    assert predict_step_time_s(crowded, ROOMY, 2) == pytest.approx(predict_step_time_s(alone, ROOMY, 2) + 0.006)
    assert predict_step_time_s(crowded, ROOMY, 0) == pytest.approx(0.072)


# -- records to costs --------------------------------------------------------------------------------------------------


def batches(count: int, *, workers: int = 2, wall_s: float = 0.04, **changes: float | None) -> list[WorkerBatch]:
    defaults = {"cpu_s": 0.01, "run_queue_s": 0.0}
    return [
        WorkerBatch(
            worker=i % workers if workers else -1, time_s=100 + i * wall_s, wall_s=wall_s, **{**defaults, **changes}
        )
        for i in range(count)
    ]


def steps(count: int, *, wait_s: float = 0.01, work_s: float = 0.02, **changes: object) -> list[StepRecord]:
    return [
        StepRecord(
            index=i,
            epoch=0,
            optimizer_step=i,
            tracker_step=i,
            samples=8,
            time_s=100 + i * (wait_s + work_s),
            total_s=wait_s + work_s,
            data_wait_s=wait_s,
            **changes,  # type: ignore[arg-type]
        )
        for i in range(count)
    ]


def test_costs_are_means_of_what_adds_up():
    made = batches(60, cpu_s=0.01, process_cpu_s=0.012, run_queue_s=0.004)
    costs = costs_from(made, steps(50), current=2)
    assert costs is not None
    assert costs.service_s == pytest.approx(0.036)
    assert costs.cpu_s == pytest.approx(0.012)
    assert costs.work_s == pytest.approx(0.02)
    assert costs.step_time_s == pytest.approx(0.03)
    assert costs.current == 2
    assert costs.batches == 58


def test_too_little_gives_nothing():
    assert costs_from(batches(9), steps(50), current=2) is None
    assert costs_from(batches(10), steps(50), current=2) is not None
    assert costs_from(batches(60), steps(4), current=2) is None
    assert costs_from([], [], current=0) is None
    with pytest.raises(SettingError, match="current"):
        costs_from([], [], current=-1)


def test_first_batch_of_each_worker_and_a_hiccup_do_not_count_but_slow_batches_do():
    made = batches(60)
    made[0] = replace(made[0], wall_s=3.0)
    made[1] = replace(made[1], wall_s=2.0)
    made[30] = replace(made[30], wall_s=1.0)
    costs = costs_from(made, steps(50), current=2)
    assert costs is not None
    assert costs.service_s == pytest.approx(0.04)
    uneven = [replace(b, wall_s=0.4) if i % 10 == 5 else b for i, b in enumerate(batches(100))]
    costs = costs_from(uneven, steps(50), current=2)
    assert costs is not None
    assert costs.service_s == pytest.approx(0.0764, rel=0.05)
    assert max(costs.profile) == pytest.approx(0.4)


def test_only_batches_of_the_present_kind_count():
    mixed = batches(60, workers=0, wall_s=0.08) + batches(60, wall_s=0.04)
    with_workers, without = costs_from(mixed, steps(50), current=2), costs_from(mixed, steps(50), current=0)
    assert with_workers is not None
    assert without is not None
    assert with_workers.service_s == pytest.approx(0.04)
    assert without.service_s == pytest.approx(0.08)


def test_work_leaves_out_wait_validation_and_checkpoint():
    found = steps(50, validation_s=0.005, checkpoint_s=0.003)
    costs = costs_from(batches(60), [replace(s, total_s=s.total_s + 0.008) for s in found], current=2)
    assert costs is not None
    assert costs.work_s == pytest.approx(0.02)
    assert costs.step_time_s == pytest.approx(0.03)


def test_a_device_slower_than_the_loop_that_feeds_it_binds():
    launched = costs_from(batches(60), steps(50, work_s=0.002), current=2, device_s=0.05)
    assert launched is not None
    assert launched.work_s == pytest.approx(0.05)
    synchronised = costs_from(batches(60), steps(50, work_s=0.06), current=2, device_s=0.05)
    assert synchronised is not None
    assert synchronised.work_s == pytest.approx(0.06)
    with pytest.raises(SettingError, match="device_s"):
        costs_from(batches(60), steps(50), current=2, device_s=-1.0)


def test_work_that_falls_on_few_steps_counts():
    found = [replace(s, total_s=s.total_s + 0.16) if i % 16 == 0 else s for i, s in enumerate(steps(160))]
    costs = costs_from(batches(60), found, current=2)
    assert costs is not None
    assert costs.work_s == pytest.approx(0.03, rel=0.05)


def test_handover_is_seen_on_a_full_queue_of_idle_workers_only():
    idle = batches(60, wall_s=0.02)
    full = costs_from(idle, steps(50, wait_s=0.003, head_ready=True, ready=4), current=2)
    assert full is not None
    assert full.handover_s == pytest.approx(0.003)
    short = costs_from(idle, steps(50, wait_s=0.003, head_ready=True, ready=1), current=2)
    assert short is not None
    assert short.handover_s is None
    busy = costs_from(batches(60, wall_s=0.045), steps(50, wait_s=0.005, head_ready=True, ready=4), current=2)
    assert busy is not None
    assert busy.handover_s is None
    assert busy.ready_step_s == pytest.approx(0.02 + HANDOVER_S)


def test_defaults_follow_the_shape_of_a_batch():
    plain = costs_from(batches(60, workers=0), steps(50), current=0)
    large = costs_from(batches(60, workers=0), steps(50), current=0, batch=BatchShape(16, 8 * MEBI))
    assert plain is not None
    assert large is not None
    assert plain.shared_memory_s == 0
    assert plain.default_handover_s == pytest.approx(HANDOVER_S)
    assert large.shared_memory_s == pytest.approx(0.0042, rel=0.05)
    assert large.default_handover_s == pytest.approx(0.0075, rel=0.05)
    measured = costs_from(batches(60), steps(50), current=2, batch=BatchShape(16, 8 * MEBI))
    assert measured is not None
    assert measured.shared_memory_s == 0


def test_loop_cpu_is_per_step_and_without_the_batches_made_in_it():
    host = [HostSample(time_s=101.0, main_cpus=0.9, job_cpus=0.9, others_cpus=0.0)]
    alone = costs_from(batches(60, workers=0, cpu_s=0.01), steps(50), current=0, host=host)
    assert alone is not None
    assert alone.loop_cpu_s == pytest.approx(0.9 * 0.03 - 0.01)
    beside = costs_from(batches(60, cpu_s=0.01), steps(50), current=2, host=host)
    assert beside is not None
    assert beside.loop_cpu_s == pytest.approx(0.9 * 0.03)


def test_wait_for_a_cpu_is_split_between_neighbours_and_own_processes():
    made = batches(60, run_queue_s=0.01)
    quiet = costs_from(made, steps(50), current=2, host=[HostSample(time_s=101.0, job_cpus=1.5, others_cpus=0.0)])
    assert quiet is not None
    assert quiet.neighbour_wait_s == 0
    crowded = costs_from(made, steps(50), current=2, host=[HostSample(time_s=101.0, job_cpus=1.5, others_cpus=1.0)])
    assert crowded is not None
    assert crowded.neighbour_wait_s == pytest.approx(0.005)
    host = [HostSample(time_s=101.0, job_cpus=1.5, others_cpus=1.0, usable_cpus=4.0)]
    bounded = costs_from(made, steps(50), current=2, host=host)
    assert bounded is not None
    assert bounded.neighbour_wait_s == pytest.approx(0.01 / 4)


def test_loader_info_says_what_may_be_changed_and_whether_order_binds():
    info = LoaderInfo(time_s=0, kind="DataLoader", iterable=True, stateful=True, in_order=False, prefetch_factor=4)
    costs = costs_from(batches(60), steps(50), current=2, loader=info)
    assert costs is not None
    assert costs.iterable
    assert costs.stateful
    assert costs.profile == ()
    assert limits_from([], loader=info).prefetch_factor == 4


# -- the machine -------------------------------------------------------------------------------------------------------


def test_neighbours_take_from_the_mask_not_from_the_quota():
    assert available_cpus(affinity_cpus=64, quota_cpus=4, others_cpus=10) == 4
    assert available_cpus(affinity_cpus=4, others_cpus=1) == 3
    assert available_cpus(affinity_cpus=16, quota_cpus=14, others_cpus=4) == 12


def test_ranks_share_and_are_no_strangers():
    assert available_cpus(affinity_cpus=16, ranks=4) == 4
    assert available_cpus(affinity_cpus=16, ranks=4, job_cpus=2, others_cpus=6) == 4
    assert available_cpus(affinity_cpus=16, ranks=4, job_cpus=2, others_cpus=10) == 3
    assert available_cpus(affinity_cpus=4, ranks=4, bound_per_rank=True) == 4
    assert available_cpus(affinity_cpus=16, quota_cpus=8, ranks=4) == 2


def test_a_fair_share_and_what_was_already_had_remain():
    assert available_cpus(affinity_cpus=8, others_cpus=8) == 4
    assert available_cpus(affinity_cpus=8, others_cpus=2, job_cpus=7) == 7


@pytest.mark.parametrize("wrong", [{"affinity_cpus": -1}, {"affinity_cpus": 4, "ranks": 0}])
def test_impossible_cpus_are_refused(wrong):
    with pytest.raises(SettingError):
        available_cpus(**wrong)


def test_limits_come_from_the_newest_memory_and_the_mean_load():
    host = [
        HostSample(time_s=1, others_cpus=1.0, job_cpus=1.0, usable_cpus=8.0),
        HostSample(
            time_s=2,
            others_cpus=3.0,
            job_cpus=1.0,
            usable_cpus=8.0,
            memory_available_bytes=900 * MEBI,
            memory_limit_bytes=1000 * MEBI,
            memory_limit_used_bytes=400 * MEBI,
            shm_free_bytes=64 * MEBI,
        ),
    ]
    memory = [
        WorkerMemory(time_s=1, workers=2, rss_bytes=800 * MEBI, uss_bytes=200 * MEBI),
        WorkerMemory(time_s=2, workers=2, rss_bytes=900 * MEBI),
    ]
    limits = limits_from(host, memory=memory, batch_bytes=5)
    assert limits == Limits(
        available_cpus=6.0,
        neighbour_cpus=2.0,
        worker_bytes=100 * MEBI,
        free_bytes=600 * MEBI,
        batch_bytes=5,
        shm_free_bytes=64 * MEBI,
    )
    assert limits_from(host, memory=memory[1:]).worker_bytes == 450 * MEBI
    budget = Budget(host_cpus=8, quota_cpus=5.0, ranks_on_node=2)
    assert limits_from(host, budget=budget).available_cpus == 2.5


def test_nothing_measured_limits_nothing():
    assert limits_from([]) == Limits()


class Tensor:
    def __init__(self, elements: int) -> None:
        self.elements = elements

    def nelement(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return 4


def test_shape_of_a_batch_counts_tensors_wherever_they_are():
    assert batch_shape(Tensor(10)) == BatchShape(1, 40)
    assert batch_shape({"a": [Tensor(1), Tensor(2)], "b": ("text", 3, Tensor(3))}) == BatchShape(3, 24)
    assert batch_shape("text") == BatchShape(0, 0)
    cycle: list[object] = []
    cycle.append(cycle)
    assert batch_shape(cycle) == BatchShape(0, 0)


# -- how far each worker runs ahead ------------------------------------------------------------------------------------

UNEVEN = (0.4, *(0.04,) * 19)
"""One batch in twenty takes ten times as long: 58 ms on average."""


def test_a_deeper_queue_bridges_slow_batches():
    """Two workers can keep up with the loop on average; four batches ahead of a slow one do not last, sixteen do."""
    costs = loader(current=2, work_s=0.05, service_s=0.058, handover_s=0.0, profile=UNEVEN)
    found = deeper_queue(costs, Limits(prefetch_factor=2), 2)
    assert found is not None
    assert found.prefetch_factor in (4, 8, 16)
    assert found.gain_pct > 3
    advised = advise(replace(costs, step_time_s=predict_step_time_s(costs, Limits(), 2)), Limits(max_workers=2))
    assert advised.recommended == 2
    assert advised.prefetch_factor == found.prefetch_factor
    assert advised.prefetch_gain_pct == pytest.approx(found.gain_pct)


@pytest.mark.parametrize(
    ("changes", "limits", "workers"),
    [
        ({"profile": (0.05,) * 20}, Limits(), 2),  # even batches
        ({"profile": ()}, Limits(), 2),  # not known, or handed over in any order
        ({"profile": UNEVEN}, Limits(), 0),  # nobody runs ahead
        ({"profile": UNEVEN}, Limits(prefetch_factor=16), 2),  # as deep as it gets
        ({"profile": UNEVEN, "work_s": 1.0}, Limits(), 2),  # the loop is slow enough
        ({"profile": UNEVEN, "cpu_s": 1.0}, Limits(available_cpus=1.0), 2),  # the CPUs bind
        ({"profile": UNEVEN}, Limits(batch_bytes=MEBI, shm_free_bytes=4 * MEBI), 2),  # no room for more
    ],
)
def test_where_a_deeper_queue_does_not_help(changes, limits, workers):
    costs = loader(current=2, **{"work_s": 0.05, "service_s": 0.058, "handover_s": 0.0, **changes})
    assert deeper_queue(costs, limits, workers) is None


@given(costs=costs_, limits=limits_, workers=st.integers(0, 6))
def test_a_deeper_queue_is_deeper_and_better(costs, limits, workers):
    found = deeper_queue(costs, limits, workers)
    if found is not None:
        assert found.prefetch_factor > limits.prefetch_factor
        assert found.gain_pct >= 3 - 1e-9
        assert math.isfinite(found.gain_pct)
