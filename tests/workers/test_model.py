"""The model: what its predictions always keep to, and what it says of loaders as they were measured."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.errors import SettingError
from stallmeter.workers import (
    HANDOVER_S,
    NEAR_BEST,
    Limits,
    OperatingPoint,
    advise_prefetch,
    best_workers,
    model,
    predict_step_time_s,
    worker_cap,
)
from stallmeter.workers.model import LoaderCosts, predict_step_times_s

from .loaders import MEBI, ROOMY, THREADED, UNEVEN, costs_, limits_, loader


@given(costs_, limits_, st.integers(0, 10), st.floats(1, 8))
def test_more_cpus_never_predict_a_slower_step(costs, limits, workers, factor):
    costs = replace(costs, own_wait_s=0.0)  # what workers made each other wait was measured with the CPUs there are
    more = replace(limits, available_cpus=(limits.available_cpus or 1.0) * factor)
    less = replace(limits, available_cpus=limits.available_cpus or 1.0)
    slower_s = predict_step_time_s(costs, less, workers)
    assert predict_step_time_s(costs, more, workers) <= slower_s * (1 + 1e-9)


@given(costs_, limits_, st.integers(1, 10))
def test_more_workers_never_predict_a_slower_step(costs, limits, workers):
    assert predict_step_time_s(costs, limits, workers + 1) <= predict_step_time_s(costs, limits, workers)


@given(costs_, limits_, st.integers(0, 8), st.integers(-6, 6))
def test_scaling_all_times_scales_the_prediction(costs, limits, workers, exponent):
    k = 2.0**exponent
    names = (
        "work_s",
        "service_s",
        "cpu_s",
        "loop_cpu_s",
        "neighbour_wait_s",
        "own_wait_s",
        "shared_memory_s",
        "turnaround_s",
    )
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
        works_s = min(costs.loop_cpu_s, limits.available_cpus * costs.work_s)  # the rest is spinning
        assert predicted >= (costs.cpu_s + works_s) / limits.available_cpus * (1 - 1e-9)


@given(costs_, limits_)
def test_best_is_a_number_of_which_twice_as_many_are_hardly_faster(costs, limits):
    best = best_workers(costs, limits)
    cap, _ = worker_cap(costs, limits)
    reach = min(cap, max(model.FIRST_REACH, 2 * best.workers))
    fastest = min(predict_step_time_s(costs, limits, w) for w in range(reach + 1))
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


def played_through(workers, cpus, waits_s, computes_s, batches=20_000):
    """Mean step of workers that wait and then compute on so many CPUs, each time drawn: an independent simulation."""
    draw = random.Random(7)
    now_s, done, waiting_for_a_cpu, busy = 0.0, 0, [], 0
    events = [(draw.expovariate(1 / waits_s), i, "ready") for i in range(workers)]
    heapq.heapify(events)
    while done < batches:
        now_s, who, what = heapq.heappop(events)
        if what == "ready":
            waiting_for_a_cpu.append(who)
        else:
            busy -= 1
            done += 1
            heapq.heappush(events, (now_s + draw.expovariate(1 / waits_s), who, "ready"))
        while waiting_for_a_cpu and busy < cpus:
            busy += 1
            heapq.heappush(events, (now_s + draw.expovariate(1 / computes_s), waiting_for_a_cpu.pop(0), "made"))
    return now_s / done


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("waits_s", [0.01, 0.05, 0.2])
def test_workers_that_wait_and_compute_meet_at_the_cpus(workers, waits_s):
    costs = loader(work_s=0.001, service_s=waits_s + 0.06, cpu_s=0.06, loop_cpu_s=0.0, current=1)
    predicted_s = predict_step_time_s(costs, Limits(available_cpus=2.0), workers)
    assert predicted_s == pytest.approx(played_through(workers, 2, waits_s, 0.06), rel=0.04)


def test_what_workers_were_seen_to_wait_for_a_cpu_is_no_part_of_a_batch_s_time():
    """Measured with six workers on two CPUs, where 1 takes 41.0 ms a step, 2 take 20.9, 3 take 17.2, 4 take 14.8."""
    seen = loader(current=6, work_s=0.009, service_s=0.0408, cpu_s=0.0265, loop_cpu_s=0.002, own_wait_s=0.0455)
    predicted_s = predict_step_times_s(seen, replace(ROOMY, available_cpus=2.0), 6)
    assert predicted_s[1:5] == pytest.approx([0.0410, 0.0209, 0.0172, 0.0148], rel=0.1)
    in_line = replace(seen, own_wait_s=0.0)  # one after the other, at a lock: nobody was seen to wait for a CPU
    assert predict_step_times_s(in_line, replace(ROOMY, available_cpus=2.0), 3)[3] < predicted_s[3]


def test_workers_that_only_wait_do_not_meet():
    costs = loader(work_s=0.001, service_s=0.05, cpu_s=0.0, loop_cpu_s=0.0, current=1)
    alone_s = predict_step_time_s(costs, Limits(available_cpus=64.0), 8)
    assert predict_step_time_s(costs, Limits(available_cpus=1.0), 8) == alone_s


def test_short_epochs_ask_for_fewer_workers():
    """Each worker costs 1 ms a step to start: what a further one gains must be more than that."""
    long, short = loader(), loader(start_each_s=0.001, start_once_s=0.002)
    assert best_workers(long, ROOMY).workers == 5
    assert 2 <= best_workers(short, ROOMY).workers <= 4
    best = best_workers(short, ROOMY)
    assert best.step_time_s == pytest.approx(max(0.013, 0.0485 / best.workers) + 0.002 + 0.001 * best.workers)
    assert predict_step_time_s(short, ROOMY, 0) == predict_step_time_s(long, ROOMY, 0)
    assert best_workers(loader(start_each_s=0.05), ROOMY).workers == 0


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


def test_threads_of_the_loop_do_not_count_where_there_is_room_or_where_they_were_measured():
    assert predict_step_time_s(THREADED, ROOMY, 2) == predict_step_time_s(replace(THREADED, loop_cpu_s=0.0), ROOMY, 2)
    here = replace(THREADED, current=2)
    assert predict_step_time_s(here, replace(ROOMY, available_cpus=2.0), 2) == pytest.approx(0.070, rel=0.02)


def test_what_threads_leave_of_a_cpu_is_not_there_for_workers():
    """They need a tenth of a CPU, and the loop's threads leave as much: but not when a batch is asked for.

    A program whose threads left an eighth, and whose worker needed that, took 243 ms a step instead of 220.
    """
    costs = loader(work_s=0.100, service_s=0.010, cpu_s=0.010, loop_cpu_s=0.190, step_time_s=0.110)
    two, four = (predict_step_time_s(costs, replace(ROOMY, available_cpus=cpus), 2) for cpus in (2.0, 4.0))
    assert two == pytest.approx(0.110)
    assert four == pytest.approx(0.101)


def test_present_workers_have_their_memory_already():
    assert worker_cap(loader(current=4), replace(ROOMY, free_bytes=0)) == (4, "memory")


def test_neighbours_slow_the_workers_that_have_to_share():
    alone, crowded = loader(), loader(neighbour_wait_s=0.012)
    assert predict_step_time_s(crowded, ROOMY, 2) == pytest.approx(predict_step_time_s(alone, ROOMY, 2) + 0.006)
    assert predict_step_time_s(crowded, ROOMY, 0) == pytest.approx(0.072)


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
    assert advise_prefetch(costs, limits, workers) is None


@given(costs=costs_, limits=limits_, workers=st.integers(0, 6))
def test_a_deeper_queue_is_deeper_and_better(costs, limits, workers):
    found = advise_prefetch(costs, limits, workers)
    if found is not None:
        assert found.prefetch_factor > limits.prefetch_factor
        assert found.gain_pct >= 3 - 1e-9
        assert math.isfinite(found.gain_pct)


def test_a_wait_for_others_is_there_once_however_many_workers_meet() -> None:
    """Two workers on one CPU: each computes as long as both need, and waits for others as one alone does."""
    costs = loader(service_s=0.010, cpu_s=0.010, neighbour_wait_s=0.004, current=1, turnaround_s=0.0, work_s=0.001)
    times = predict_step_times_s(costs, Limits(available_cpus=1.0), 2)
    assert times[1] == pytest.approx(0.014)
    assert times[2] == pytest.approx((0.020 + 0.004) / 2)


def test_without_workers_nobody_sends_a_batch() -> None:
    """28 small tensors: a worker makes the batch in 1 ms, and takes 5 ms of CPU to send it."""
    limits = Limits(available_cpus=2.0)
    costs = LoaderCosts(current=4, work_s=0.006, service_s=0.001, cpu_s=0.006, loop_cpu_s=0.012, turnaround_s=0.0)
    sends = replace(costs, sent_cpu_s=0.005)
    assert predict_step_time_s(costs, limits, 0) == pytest.approx(0.009)
    assert predict_step_time_s(sends, limits, 0) == pytest.approx(0.007)
    assert predict_step_time_s(sends, limits, 4) == predict_step_time_s(costs, limits, 4)


def test_threads_that_spin_while_the_loop_waits_need_no_cpu() -> None:
    """Two threads on two CPUs: more CPU time than the loop's own work has room for is no work."""
    costs = LoaderCosts(current=1, work_s=0.004, service_s=0.0005, cpu_s=0.001, loop_cpu_s=0.0093, turnaround_s=0.0)
    limits = Limits(available_cpus=2.0)
    assert predict_step_time_s(costs, limits, 0) == pytest.approx((0.008 + 0.001) / 2)
    busy = replace(costs, loop_cpu_s=0.006)
    assert predict_step_time_s(busy, limits, 0) == pytest.approx(0.004 + 0.0005)


@pytest.mark.parametrize(
    ("ms", "workers"),
    [
        ([94.6, 59.2, 56.5, *[55.2] * 12, *[54.5] * 27, 53.2], 3),  # 42 win 4 % of which nothing was seen
        ([136, 124, 115, 106, 93, 88, 84.3, 84.3, 79.7, 77.4, 77.4], 9),  # each few of them win something
        ([10.0, 12.0, 12.0, 12.0, 12.0, 5.0], 0),
        ([10.0, 12.0, 11.0, 9.0, 8.0, 7.9], 4),
        ([10.0], 0),
        ([10.0, 5.0], 1),
    ],
)
def test_a_few_percent_are_not_looked_for_far_away(monkeypatch, ms, workers):
    monkeypatch.setattr(model, "_step_times_s", lambda *_: iter([each / 1e3 for each in ms]))
    limits = Limits(available_cpus=64.0, max_workers=len(ms) - 1)
    assert best_workers(LoaderCosts(current=1, work_s=0.001, service_s=0.001, cpu_s=0.001), limits).workers == workers
