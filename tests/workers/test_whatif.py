"""What a step would take with one cause gone, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.workers import BatchShape, Limits, LoaderCosts
from stallmeter.workers.whatif import (
    LoopWaits,
    WhatIf,
    _without_indices,
    eased,
    in_turn,
    what_if,
    without_slow_batches,
)

BUSY = LoaderCosts(current=2, work_s=0.010, service_s=0.060, cpu_s=0.060, handover_s=0.001, turnaround_s=0.0)
ROOM = Limits(available_cpus=8.0)


def test_more_workers_win_all_but_the_hand_over() -> None:
    found = what_if(BUSY, ROOM, blocked_s=0.0)
    assert found.now_s == pytest.approx(0.030)
    assert found.free_s == pytest.approx(0.010)
    assert found.best_workers_s == pytest.approx(0.011, rel=0.05)
    assert found.recovers(found.best_workers_s) == pytest.approx(0.95, abs=0.05)
    assert found.no_cpu_s == pytest.approx(0.011)
    assert found.unblocked_s == pytest.approx(0.030)
    assert found.gain_pct(found.no_cpu_s) == pytest.approx(100 * (30 / 11 - 1))


def test_what_is_lost_beside_the_model_and_comes_back_counts() -> None:
    found = what_if(BUSY, ROOM, blocked_s=0.0)
    assert found.recovers(0.020) == pytest.approx(0.5)
    assert found.recovers(0.020, beside_s=0.010) == pytest.approx(20 / 30)
    assert found.recovers(None, beside_s=0.010) == 0.0


def test_a_light_hand_over_wins_nothing_behind_slow_workers() -> None:
    """13 ms from collated to received cost nothing where two workers make a batch in 30 ms."""
    many, one = BatchShape(48, 4096), BatchShape(1, 4096)
    found = what_if(replace(BUSY, handover_s=0.013), ROOM, batch=many)
    assert found.recovers(found.light_handover_s) == 0.0
    quick = what_if(replace(BUSY, service_s=0.002, cpu_s=0.002, handover_s=0.013), ROOM, batch=many)
    assert quick.recovers(quick.light_handover_s) > 0.8
    # Of single items, from which a wrapper makes batches, all but one hand-over can go.
    items = what_if(replace(BUSY, service_s=0.002, cpu_s=0.002, handover_s=0.013), ROOM, batch=one, parts=32.0)
    assert items.recovers(items.light_handover_s) > 0.8
    # A single tensor is as light as it gets, however long it takes.
    light = what_if(replace(BUSY, service_s=0.002, cpu_s=0.002, handover_s=0.013), ROOM, batch=one)
    assert light.recovers(light.light_handover_s) == 0.0


def test_neighbours_are_to_blame_only_where_the_loader_keeps_up_alone() -> None:
    crowded = Limits(available_cpus=1.0, neighbour_cpus=1.0)
    keeps_up = replace(BUSY, service_s=0.018, cpu_s=0.018, neighbour_wait_s=0.018)
    found = what_if(keeps_up, crowded, usable_cpus=2.0)
    assert found.recovers(found.alone_s) > 0.8
    heavy = replace(BUSY, neighbour_wait_s=0.020)
    found = what_if(heavy, crowded, usable_cpus=2.0)
    assert 0.0 < found.recovers(found.alone_s) <= 0.6
    assert what_if(heavy, ROOM, usable_cpus=2.0).alone_s is None  # nobody is there


def test_rare_slow_batches() -> None:
    profile = (*[0.004] * 31, 0.100)
    costs = replace(BUSY, service_s=sum(profile) / 32, cpu_s=0.001, profile=profile)
    even = without_slow_batches(costs)
    assert even is not None
    assert even.service_s == pytest.approx(0.004)
    found = what_if(costs, ROOM)
    assert found.even_s == pytest.approx(0.011, rel=0.1)
    assert found.recovers(found.even_s) > 0.6  # the hand-over stays


@pytest.mark.parametrize("profile", [(), (0.01,) * 8, (*[0.01] * 4, *[0.1] * 4)], ids=["none", "even", "half are slow"])
def test_no_rare_slow_batches(profile: tuple[float, ...]) -> None:
    assert without_slow_batches(replace(BUSY, profile=profile)) is None


@given(
    st.integers(0, 8),
    st.floats(1e-4, 0.1),
    st.floats(1e-4, 0.3),
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.02),
    st.floats(0.5, 8.0),
)
def test_no_cause_gone_makes_a_step_longer(
    workers: int, work_s: float, service_s: float, blocked: float, handover_s: float, cpus: float
) -> None:
    costs = LoaderCosts(
        current=workers, work_s=work_s, service_s=service_s, cpu_s=(1 - blocked) * service_s, handover_s=handover_s
    )
    limits = Limits(available_cpus=cpus, neighbour_cpus=1.0)
    found = what_if(costs, limits, blocked_s=blocked * service_s, usable_cpus=cpus + 1.0)
    for name in ("free_s", "light_handover_s", "unblocked_s", "no_cpu_s", "alone_s"):
        step_s = getattr(found, name)
        assert step_s <= found.now_s * (1 + 1e-9), name
        assert 0.0 <= found.recovers(step_s) <= 1.0
        assert (found.gain_pct(step_s) or 0.0) >= 0.0


def test_nothing_is_won_from_what_is_not_known() -> None:
    found = WhatIf(
        observed_s=1.0, now_s=1.0, free_s=0.5, best_workers_s=0.5, light_handover_s=1.0,
        even_s=None, unblocked_s=None, no_cpu_s=None, alone_s=None,
    )  # fmt: skip
    assert found.recovers(found.alone_s) == 0.0
    assert found.gain_pct(found.alone_s) is None


def test_a_loop_that_computes_is_quicker_when_others_leave_its_cpu() -> None:
    """4 of its 10 ms are computed, and as long it waits for a CPU, where workers wait for one half their time.

    It receives a batch in 1 ms beside that, in which it waits as well.
    """
    costs = replace(BUSY, loop_cpu_s=0.004)
    found = what_if(costs, ROOM, blocked_s=0.0, cpu_wait_share=0.5)
    assert found.no_cpu_s == pytest.approx(0.011 - 0.004 * 10 / 11)
    assert found.free_s == pytest.approx(0.010)
    assert found.gain_pct(found.no_cpu_s) == pytest.approx(100 * (0.030 / found.no_cpu_s - 1))
    assert what_if(costs, ROOM, blocked_s=0.0).no_cpu_s == pytest.approx(0.011)


def test_what_the_model_misses_is_shared_out() -> None:
    """Steps of 40 ms where it explains 30: half of the loss of 20 is half of the measured one of 30."""
    found = WhatIf(
        observed_s=0.040, now_s=0.030, free_s=0.010, best_workers_s=0.020, light_handover_s=0.030,
        even_s=None, unblocked_s=None, no_cpu_s=0.010, alone_s=None,
    )  # fmt: skip
    assert found.gain_pct(found.best_workers_s) == pytest.approx(100 * (40 / 25 - 1))
    assert found.gain_pct(found.no_cpu_s) == pytest.approx(300)
    assert found.gain_pct(found.light_handover_s) == 0.0
    assert found.most_gain_pct == pytest.approx(300)


def test_the_loops_own_wait_is_taken_as_measured() -> None:
    """Of 10 ms of its own the loop waits 4 for a CPU, 3 of them because of others; not while it waits for data."""
    costs = replace(BUSY, service_s=0.002, cpu_s=0.002, loop_cpu_s=0.001, step_time_s=0.020)
    crowded = Limits(available_cpus=1.0, neighbour_cpus=1.0)
    found = what_if(costs, crowded, blocked_s=0.0, usable_cpus=2.0, loop_waits=LoopWaits(0.004, 0.003))
    assert found.now_s == pytest.approx(0.011)
    assert found.alone_s == pytest.approx(0.011 - 0.003 * 10 / 11)
    assert found.no_cpu_s == pytest.approx(0.011 - 0.004 * 10 / 11)


def test_what_the_loop_would_not_wait_without_its_workers() -> None:
    assert LoopWaits(0.010, 0.004).own_s == pytest.approx(0.006)
    assert LoopWaits(0.010, 0.004, 0.002).own_s == 0.002, "the rest is another rank's"
    assert LoopWaits(0.010, 0.012, 0.002).own_s == 0.0


SEVERAL_THREADS = LoaderCosts(
    current=2,
    work_s=0.0065,
    quick_work_s=0.002,
    service_s=0.009,
    cpu_s=0.010,
    loop_cpu_s=0.0083,
    handover_s=0.0012,
    step_time_s=0.0107,
)


def test_of_threads_that_wait_for_each_other_all_must_have_a_cpu() -> None:
    """While the loop's thread has a CPU two of them compute or spin."""
    assert eased(SEVERAL_THREADS, 0.0).work_s == 0.0065
    some = eased(SEVERAL_THREADS, 0.001)
    inside_s = 0.001 * 6.5 / 7.7
    threads = (0.0083 - 0.0012) / (0.0065 - inside_s)
    # What quick steps show is no reason to believe more than all threads together have waited.
    assert some.work_s == pytest.approx(0.0065 - threads * inside_s)
    spins, saved = threads - 1.0, 1.0 - some.work_s / 0.0065
    assert some.loop_cpu_s == pytest.approx(0.0083 * (1.0 - spins * saved))
    spared = eased(replace(SEVERAL_THREADS, quick_work_s=0.0018), 0.0035)
    assert spared.work_s == 0.0018  # quick steps show it
    assert spared.loop_cpu_s == pytest.approx(0.0083 * 0.0018 / 0.0065)


@pytest.mark.parametrize(("service_s", "part"), [(0.009, 1.0), (0.01605, 0.5), (0.025, 0.0)])
def test_long_steps_are_none_of_them_quick(service_s: float, part: float) -> None:
    """A single worker has the CPU of one of the threads at a time; two have those of both now and then."""
    long = replace(SEVERAL_THREADS, quick_work_s=0.0064, service_s=service_s)
    inside_s = 0.002 * 6.5 / 7.7
    threads = (0.0083 - 0.0012) / (0.0065 - inside_s)
    at_random_s = 0.0065 * (1 - inside_s / 0.0065) ** threads
    in_turn_s = 0.0065 - threads * inside_s
    assert in_turn_s < at_random_s
    assert in_turn(long) == pytest.approx(part)
    assert eased(long, 0.002).work_s == pytest.approx(part * in_turn_s + (1 - part) * at_random_s)
    # Of other jobs nobody knows how many they are.
    assert eased(long, 0.002, for_workers=False).work_s == pytest.approx(at_random_s)


def test_workers_hold_up_the_loop_no_longer_than_they_compute() -> None:
    """What its threads wait beyond that they wait for each other: spinning they seem to be more than they are."""
    light = replace(SEVERAL_THREADS, quick_work_s=0.0064, cpu_s=0.0035)
    computes_s = 0.0035 * 0.0065 / 0.0107
    assert eased(light, 0.002).work_s == pytest.approx(0.0065 - computes_s)
    # The loop's own thread waited, whatever they compute.
    inside_s = 0.002 * 6.5 / 7.7
    idle = eased(replace(light, cpu_s=0.0), 0.002)
    assert idle.work_s == pytest.approx(0.0065 - inside_s)
    # How much others compute is not known.
    assert eased(light, 0.002, for_workers=False).work_s < 0.0065 - computes_s


def test_without_workers_nobody_waits_for_them_in_turn() -> None:
    assert in_turn(replace(SEVERAL_THREADS, current=0)) == in_turn(replace(SEVERAL_THREADS, step_time_s=None)) == 0.0


def test_what_one_thread_waits_is_all_that_it_loses() -> None:
    """It computes for the rest: quick steps are short steps, and a wait that leaves it no time is not believed."""
    alone = replace(SEVERAL_THREADS, loop_cpu_s=0.004)
    assert eased(alone, 0.002).work_s == pytest.approx(0.0065 - 0.002 * 6.5 / 7.7)
    assert eased(alone, 0.002).loop_cpu_s == 0.004
    assert eased(alone, 0.1).work_s == pytest.approx(0.004 - 0.0012), "of that it receives a batch in 1.2 ms"


def test_a_loop_that_makes_its_batches_waits_for_a_cpu_there_as_well() -> None:
    """It does so before its work: items that cost nothing leave what the work takes as it is."""
    costs = LoaderCosts(
        current=0, work_s=0.040, service_s=0.100, cpu_s=0.100, loop_cpu_s=0.020, neighbour_wait_s=0.060, step_time_s=0.2
    )
    crowded, waits = Limits(available_cpus=1.0, neighbour_cpus=1.0), LoopWaits(0.070, 0.070)
    found = what_if(costs, crowded, blocked_s=0.0, usable_cpus=2.0, loop_waits=waits)
    assert found.no_cpu_s == pytest.approx(0.040)
    # Two sevenths of the wait lie in the work, all of it in one thread.
    assert found.alone_s == pytest.approx(0.020 + 0.100)
    assert eased(costs, 0.070).work_s == pytest.approx(0.020)
    assert eased(costs, 0.028).work_s == pytest.approx(0.040 - 0.028 * 40 / 140)


def test_a_sampler_that_is_gone_takes_no_cpu_time_either() -> None:
    costs = LoaderCosts(current=2, work_s=0.008, service_s=0.001, cpu_s=0.001, loop_cpu_s=0.009, indices_s=0.007)
    found = what_if(costs, Limits(available_cpus=2.0))
    assert found.no_indices_s == pytest.approx(0.001 + 0.0012)


def test_without_its_sampler_the_loop_has_less_to_do_whether_workers_rest_or_not() -> None:
    costs = LoaderCosts(
        current=2, work_s=0.018, service_s=0.001, cpu_s=0.001, loop_cpu_s=0.036, indices_s=0.007, quiet_work_s=0.015,
        crowded_work_s=0.020,
    )  # fmt: skip
    found = _without_indices(costs)
    assert (found.quiet_work_s, found.crowded_work_s) == pytest.approx((0.008, 0.013))
    unknown = _without_indices(replace(costs, quiet_work_s=None, crowded_work_s=None))
    assert (unknown.quiet_work_s, unknown.crowded_work_s) == (None, None)


def test_nobody_is_to_blame_for_a_crowd_of_ones_own() -> None:
    """Workers that wait for each other wait as long without a neighbour who hardly computes."""
    costs = replace(BUSY, loop_cpu_s=0.004, step_time_s=0.030)
    found = what_if(costs, Limits(available_cpus=2.0, neighbour_cpus=0.002), usable_cpus=2.0, cpu_wait_share=0.5)
    assert found.alone_s == pytest.approx(found.now_s, rel=0.02)


def test_many_tensors_are_handed_over_no_faster_on_a_quiet_host() -> None:
    many = BatchShape(200, 4096)
    costs = replace(BUSY, service_s=0.002, cpu_s=0.002, handover_s=0.030)
    found = what_if(
        costs, Limits(available_cpus=1.0, neighbour_cpus=1.0), usable_cpus=2.0, cpu_wait_share=0.5, batch=many
    )
    assert found.recovers(found.alone_s) == pytest.approx(0.0, abs=0.01)
    assert found.recovers(found.light_handover_s) > 0.9
    assert not found.is_the_setting(found.alone_s)


@pytest.mark.parametrize(
    ("more_s", "alone_s", "cheap_s", "advised"),
    [
        (0.020, None, 0.018, "more"),  # a setting wins most of what work on the items would
        (0.020, None, 0.004, "neither"),  # cheaper items win more than twice as much
        (0.026, 0.020, 0.018, "alone"),  # of two settings the better one
    ],
)
def test_a_setting_comes_before_work_that_wins_a_little_more(
    more_s: float, alone_s: float | None, cheap_s: float, advised: str
) -> None:
    found = WhatIf(
        observed_s=0.030, now_s=0.030, free_s=0.004, best_workers_s=more_s, light_handover_s=0.030,
        even_s=None, unblocked_s=None, no_cpu_s=cheap_s, alone_s=alone_s,
    )  # fmt: skip
    named = {"more": found.is_the_setting(more_s), "alone": found.is_the_setting(alone_s)}
    assert [name for name, is_it in named.items() if is_it] == [name for name in named if name == advised]


def test_a_sampler_that_takes_more_is_no_setting_s_to_cure() -> None:
    """A batch sampler that sorts everything for 92 ms, beside a neighbour who costs the loop 7 ms."""
    found = WhatIf(
        observed_s=0.134, now_s=0.140, free_s=0.140, best_workers_s=0.140, light_handover_s=0.140,
        even_s=None, unblocked_s=0.140, no_cpu_s=0.132, alone_s=0.132, no_indices_s=0.048,
    )  # fmt: skip
    assert not found.is_the_setting(found.alone_s)
