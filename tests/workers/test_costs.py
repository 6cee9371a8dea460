"""From records to costs and limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stallmeter.errors import SettingError
from stallmeter.machine.budget import Budget
from stallmeter.records import HostSample, LoaderInfo, StepRecord, WorkerBatch, WorkerMemory
from stallmeter.workers import (
    HANDOVER_S,
    BatchShape,
    EpochStart,
    Limits,
    LoaderCosts,
    available_cpus,
    batch_shape,
    costs_from,
    limits_from,
    worker_cap,
)
from stallmeter.workers.costs import FORK_S, NUMBER_BYTES
from stallmeter.workers.model import best_workers, predict_step_time_s

from .loaders import MEBI

GB = 10**9


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
    assert costs.own_wait_s == pytest.approx(0.004)
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


def test_choosing_the_items_is_the_loops_work_with_any_number_of_workers():
    """Neither is it a hand-over that goes without workers, nor is it work that they could take over."""
    info = LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=2, indices_s=0.008)
    idle = batches(60, wall_s=0.001, cpu_s=0.001, idle_s=0.02)
    beside = costs_from(idle, steps(50, wait_s=0.009, ready=4, head_ready=True), current=2, loader=info)
    assert beside is not None
    assert (beside.work_s, beside.handover_s, beside.indices_s) == pytest.approx((0.028, 0.001, 0.008))
    made = batches(60, workers=0, wall_s=0.009, cpu_s=0.009)
    here = costs_from(made, steps(50, wait_s=0.009), current=0, loader=replace(info, num_workers=0))
    assert here is not None
    assert (here.work_s, here.service_s, here.cpu_s) == pytest.approx((0.028, 0.001, 0.001))


def test_pauses_tell_whether_workers_have_time_to_spare():
    """A busy worker hands over late: what its ready batches cost is no hand-over, however long the steps are."""
    late = steps(50, wait_s=0.013, head_ready=True, ready=4)
    pausing = costs_from(batches(60, wall_s=0.02, idle_s=0.015), late, current=2)
    assert pausing is not None
    assert pausing.handover_s == pytest.approx(0.013)
    busy = costs_from(batches(60, wall_s=0.02, idle_s=0.0005), late, current=2)
    assert busy is not None
    assert busy.handover_s is None
    assert busy.ready_step_s - busy.work_s < 0.002


def test_what_is_waited_for_beside_idle_workers_is_the_hand_over():
    """It comes in bursts, where workers send large batches through one pipe: its mean counts, and no median."""
    bursts = [*steps(40, wait_s=0.003, head_ready=True, ready=4), *steps(20, wait_s=0.09, head_ready=True, ready=4)]
    idle = costs_from(batches(60, wall_s=0.01, idle_s=0.09), bursts, current=2)
    assert idle is not None
    assert idle.handover_s == pytest.approx((40 * 0.003 + 19 * 0.09) / 59)
    pausing = costs_from(batches(60, wall_s=0.02, idle_s=0.015), bursts, current=2)
    assert pausing is not None
    assert pausing.handover_s == pytest.approx(0.003)


def test_batches_of_two_loaders_in_turn_are_one_piece_of_work():
    """One is quick and one is slow in each step: no step is slow, so two workers do, and not fifty."""
    info = LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=0, batches_per_step=2.0)
    made = batches(100, workers=0, wall_s=0.01, cpu_s=0.001)
    made = [replace(batch, wall_s=0.05 if i % 2 else 0.01) for i, batch in enumerate(made)]
    costs = costs_from(made, steps(50, wait_s=0.06, work_s=0.04), current=0, loader=info, per_step=2.0)
    assert costs is not None
    assert costs.service_s == pytest.approx(0.06)
    assert all(time_s == pytest.approx(0.06) for time_s in costs.profile)
    assert best_workers(costs, Limits(available_cpus=8.0)).workers == 2
    few = costs_from(made[:11], steps(50), current=0, loader=info, per_step=2.0)
    assert few is not None
    assert few.service_s == pytest.approx(0.06)


def test_what_is_no_tensor_is_pickled():
    shape = BatchShape(0, 0, 12_000_000)
    here = costs_from(batches(60, workers=0), steps(50), current=0, batch=shape)
    assert here is not None
    assert (here.default_handover_s, here.shared_memory_s) == pytest.approx((0.0192, 0.006), abs=1e-9)
    assert shape.as_one_tensor == BatchShape(1, 12_000_000)


def test_first_batches_of_workers_that_start_again_are_part_of_their_start():
    """Each start reads a table before the first batch: no other number of workers has that in every batch."""
    first, later = batches(2, wall_s=1.0), batches(6, wall_s=0.04, idle_s=0.0)
    made = [
        replace(batch, time_s=100.0 * epoch + batch.time_s)
        for epoch in range(6)
        for batch in (*first, *(replace(batch, time_s=batch.time_s + 2) for batch in later))
    ]
    epoch = EpochStart(steps=8.0, start_s=2.0)
    costs = costs_from(made, steps(50), current=2, epoch=epoch)
    assert costs is not None
    assert costs.service_s == pytest.approx(0.04)
    assert costs.start_once_s + 2 * costs.start_each_s == pytest.approx(2.0 / 8)
    # Recordings of old do not tell which batch was the first of a start.
    untold = costs_from([replace(batch, idle_s=None) for batch in made], steps(50), current=2, epoch=epoch)
    assert untold is not None
    assert untold.service_s > 0.2


SPLITS = LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=2, shards_itself=True, in_order=True)


def test_an_iterable_dataset_begins_anew_in_each_epoch_without_workers_too():
    """A shuffle buffer: both workers together decode for 1.92 s before their first batches, computing for all of it."""
    first, later = batches(2, wall_s=1.0, cpu_s=1.0), batches(6, wall_s=0.04, cpu_s=0.04, idle_s=0.0)
    made = [
        replace(batch, time_s=100.0 * epoch + batch.time_s)
        for epoch in range(6)
        for batch in (*first, *(replace(batch, time_s=batch.time_s + 2) for batch in later))
    ]
    epoch = EpochStart(steps=8.0, start_s=1.0)
    for iterable, none_s in ((True, 2 * 0.96 / 8), (False, 0.0)):
        costs = costs_from(made, steps(50), current=2, epoch=epoch, loader=replace(SPLITS, iterable=iterable))
        assert costs is not None
        assert costs.start_none_s == pytest.approx(none_s)
        without = predict_step_time_s(costs, Limits(available_cpus=2.0), 0)
        assert without == pytest.approx(costs.work_s + 0.04 + none_s)


def test_defaults_follow_the_shape_of_a_batch():
    plain = costs_from(batches(60, workers=0), steps(50), current=0)
    large = costs_from(batches(60, workers=0), steps(50), current=0, batch=BatchShape(16, 8 * MEBI))
    assert plain is not None
    assert large is not None
    assert plain.shared_memory_s == 0
    assert plain.default_handover_s == pytest.approx(HANDOVER_S)
    assert large.shared_memory_s == pytest.approx(0.0074, rel=0.05)
    assert large.default_handover_s == pytest.approx(0.0075, rel=0.05)
    measured = costs_from(batches(60), steps(50), current=2, batch=BatchShape(16, 8 * MEBI))
    assert measured is not None
    assert measured.shared_memory_s == 0


def test_sending_counts_as_the_workers_cpu_time_but_other_children_do_not():
    """Between two fetches a worker sends its batch; what the job uses beyond that is somebody else's."""
    shape = BatchShape(10, 2 * MEBI)
    made = batches(60, cpu_s=0.01)
    for job_cpus, cpu_s in ((0.4, 0.010), (0.5, 0.012), (4.0, 0.010 + 2 * shape.sending_s)):
        host = [HostSample(time_s=101.0, main_cpus=0.1, job_cpus=job_cpus)]
        costs = costs_from(made, steps(50), current=2, host=host, batch=shape)
        assert costs is not None
        assert costs.cpu_s == pytest.approx(cpu_s)


def test_the_start_of_an_epochs_workers_belongs_to_each_of_its_steps():
    made = batches(60)
    known = costs_from(made, steps(50), current=2, epoch=EpochStart(steps=20, start_s=0.44))
    assert known is not None
    assert known.start_once_s == pytest.approx(0.002)
    assert known.start_each_s == pytest.approx(0.01)
    assert known.step_time_s == pytest.approx(0.03 + 0.022)
    spawned = costs_from(made, steps(50), current=2, epoch=EpochStart(steps=20, start_s=0.44, in_turn=False))
    assert spawned is not None
    assert (spawned.start_once_s, spawned.start_each_s) == (pytest.approx(0.022), 0)
    none = costs_from(batches(60, workers=0), steps(50), current=0, epoch=EpochStart(steps=20, start_s=0.0))
    assert none is not None
    assert none.step_time_s == pytest.approx(0.03)
    assert none.start_each_s == pytest.approx(FORK_S / 20)


def test_loop_cpu_is_per_step_and_without_the_batches_made_in_it():
    host = [HostSample(time_s=101.0, main_cpus=0.9, job_cpus=0.9, others_cpus=0.0)]
    alone = costs_from(batches(60, workers=0, cpu_s=0.01), steps(50), current=0, host=host)
    assert alone is not None
    assert alone.loop_cpu_s == pytest.approx(0.9 * 0.03 - 0.01)
    beside = costs_from(batches(60, cpu_s=0.01), steps(50), current=2, host=host)
    assert beside is not None
    assert beside.loop_cpu_s == pytest.approx(0.9 * 0.03)


def crowded(workers: int, *, waited_s: float, cpu_s: float = 0.02, **host: float) -> float:
    """The wait for a CPU of which neighbours are guilty."""
    made = batches(60, workers=workers, run_queue_s=waited_s, wall_s=cpu_s + waited_s, cpu_s=cpu_s)
    costs = costs_from(made, steps(50), current=workers, host=[HostSample(time_s=101.0, **host)])
    assert costs is not None
    return costs.neighbour_wait_s


def test_wait_for_a_cpu_is_split_between_neighbours_and_own_processes() -> None:
    """Own processes wait for each other where they are more than the CPUs; the rest is the neighbours' doing."""
    two = {"usable_cpus": 2.0, "main_cpus": 0.0}
    assert crowded(2, waited_s=0.01, others_cpus=0.0, **two) == 0.0
    assert crowded(2, waited_s=0.01, others_cpus=1.0, **two) == pytest.approx(0.01)
    assert crowded(6, waited_s=0.04, others_cpus=0.2, **two) == pytest.approx(0.0)
    assert crowded(4, waited_s=0.06, others_cpus=1.0, **two) == pytest.approx(0.04)
    assert crowded(3, waited_s=0.05, others_cpus=1.0, usable_cpus=2.0, main_cpus=1.0) == pytest.approx(0.03)
    assert crowded(2, waited_s=0.01, others_cpus=1.0) == 0.0  # who knows how many CPUs there are


def test_under_a_quota_neighbours_on_the_cpus_that_it_leaves_make_nobody_wait() -> None:
    """Of 16 CPUs a quota gives 2: ten that others keep busy are not in the way, fifteen are."""
    budget = Budget(host_cpus=16, affinity_cpus=16, quota_cpus=2.0)

    def waits_s(others_cpus: float) -> float:
        host = [HostSample(time_s=101.0, main_cpus=0.0, others_cpus=others_cpus, usable_cpus=2.0)]
        made = batches(60, workers=2, run_queue_s=0.01, wall_s=0.03, cpu_s=0.02)
        costs = costs_from(made, steps(50), current=2, host=host, budget=budget)
        assert costs is not None
        return costs.neighbour_wait_s

    assert waits_s(10.0) == 0.0
    assert waits_s(15.0) == pytest.approx(0.01)


def test_neighbours_make_wait_at_most_while_they_run() -> None:
    assert crowded(1, waited_s=0.01, cpu_s=0.03, others_cpus=0.1, usable_cpus=4.0) == pytest.approx(0.004)


def test_wait_for_a_cpu_beside_several_neighbours_on_each_is_all_theirs() -> None:
    """One worker and the loop on two full CPUs do not wait for each other, however long the wait is."""
    assert crowded(1, waited_s=0.09, main_cpus=0.1, others_cpus=1.6, usable_cpus=2.0) == pytest.approx(0.09)


def test_loader_info_says_what_may_be_changed_and_whether_order_binds():
    info = LoaderInfo(time_s=0, kind="DataLoader", iterable=True, stateful=True, in_order=False, prefetch_factor=4)
    costs = costs_from(batches(60), steps(50), current=2, loader=info)
    assert costs is not None
    assert costs.iterable
    assert costs.stateful
    assert costs.profile == ()
    assert limits_from([], loader=info).prefetch_factor == 4


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


def test_ranks_that_were_told_from_strangers_need_no_guess():
    """A rank whose loader does nothing is not followed by others that do nothing."""
    assert available_cpus(affinity_cpus=16, ranks=4, job_cpus=0.5, others_cpus=9) == 2.125
    assert available_cpus(affinity_cpus=16, ranks=4, job_cpus=0.5, others_cpus=1, ranks_cpus=8) == 3.75
    host = [HostSample(time_s=1, others_cpus=1.0, ranks_cpus=8.0, job_cpus=0.5)]
    assert limits_from(host, budget=Budget(host_cpus=16, ranks_on_node=4)).available_cpus == 3.75


def test_a_rank_has_what_the_others_of_its_node_do_not_need():
    """Both take as many steps: with 8 CPUs full, 6 are used by the one that needs three times as many a step."""
    assert available_cpus(affinity_cpus=8, ranks=2, job_cpus=1.5, ranks_cpus=0.5) == 6
    assert available_cpus(affinity_cpus=8, others_cpus=2, ranks=2, job_cpus=1.5, ranks_cpus=0.5) == 4.5
    assert available_cpus(affinity_cpus=16, quota_cpus=8, ranks=2, job_cpus=1.5, ranks_cpus=0.5) == 6
    assert available_cpus(affinity_cpus=4, ranks=2, job_cpus=1.5, ranks_cpus=0.5, bound_per_rank=True) == 4


def test_a_rank_that_spins_while_it_waits_takes_no_more_than_its_part():
    assert available_cpus(affinity_cpus=8, ranks=2, job_cpus=0.2, ranks_cpus=1.0) == 4
    assert available_cpus(affinity_cpus=8, ranks=2, job_cpus=0.0, ranks_cpus=0.0) == 4


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
        unique_bytes=100 * MEBI,
        free_bytes=600 * MEBI,
        batch_bytes=5,
        shm_free_bytes=64 * MEBI,
    )
    assert limits_from(host, memory=memory[1:]).worker_bytes == 450 * MEBI
    assert limits_from(host, memory=memory[1:]).unique_bytes is None
    budget = Budget(host_cpus=8, quota_cpus=5.0, ranks_on_node=2)
    assert limits_from(host, budget=budget).available_cpus == 2.5


def test_the_ranks_of_a_node_share_what_is_left():
    """8 ranks, 64 GB free and 5 GB a worker: one more worker each, not ten."""
    free = HostSample(time_s=1, memory_available_bytes=64 * GB, shm_free_bytes=8 * GB)
    memory = [WorkerMemory(time_s=1, workers=2, rss_bytes=10 * GB)]
    costs = LoaderCosts(current=2, work_s=0.01, service_s=1.0, cpu_s=0.1)
    for ranks, free_bytes, most in ((1, 64 * GB, 12), (8, 8 * GB, 3)):
        limits = limits_from([free], budget=Budget(host_cpus=64, ranks_on_node=ranks), memory=memory)
        assert (limits.free_bytes, worker_cap(costs, limits)) == (free_bytes, (most, "memory"))
    tight = limits_from([free], budget=Budget(host_cpus=64, ranks_on_node=8), batch_bytes=GB // 10)
    assert worker_cap(costs, replace(tight, free_bytes=None)) == (2 + 4, "memory")


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
    assert batch_shape({"a": [Tensor(1), Tensor(2)], "b": ("text", None, Tensor(3))}) == BatchShape(3, 24, 4)
    assert batch_shape("text") == BatchShape(0, 0, 4)
    assert batch_shape([np.zeros(8), b"12", [Tensor(1)]]) == BatchShape(1, 4, 66)
    assert batch_shape([[1, 2, 3], [0.5], 7, []]) == BatchShape(0, 0, 5 * NUMBER_BYTES)
    cycle: list[object] = []
    cycle.append(cycle)
    assert batch_shape(cycle) == BatchShape(0, 0)


def test_of_a_sparse_tensor_its_values_and_their_indices_are_handed_over():
    torch = pytest.importorskip("torch")
    adjacency = torch.eye(100).to_sparse()
    assert batch_shape([adjacency, torch.zeros(10)]) == BatchShape(2, 4 * (200 + 10))
    assert batch_shape(adjacency.to_sparse_csr()) == BatchShape(1, 4 * 200)
