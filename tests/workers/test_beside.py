"""What a step takes while workers rest, and while they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import HostSample, StepRecord, WorkerBatch
from stallmeter.workers import Limits
from stallmeter.workers.beside import (
    ENOUGH,
    SPINS_S,
    BatchThreads,
    WorkBeside,
    are_a_librarys,
    batch_threads,
    in_threads_s,
    lost_beside_s,
    shared_already_s,
    spun_s,
    work_beside,
)
from stallmeter.workers.model import predict_step_time_s

from .loaders import loader

QUIET_S, CROWDED_S = 0.006, 0.016


def step(end_s: float, work_s: float, **changes: float) -> StepRecord:
    return StepRecord(
        index=0, epoch=0, optimizer_step=0, tracker_step=0, samples=8, time_s=end_s, total_s=work_s + 0.001,
        data_wait_s=0.001, **changes,
    )  # fmt: skip


def batch(worker: int, begin_s: float, end_s: float, idle_s: float | None) -> WorkerBatch:
    return WorkerBatch(
        worker=worker, time_s=end_s, wall_s=end_s - begin_s, cpu_s=end_s - begin_s, idle_s=idle_s, run_queue_s=0.0
    )  # fmt: skip


def mixed(count: int) -> tuple[list[StepRecord], list[WorkerBatch]]:
    """Turns of 0.1 s: two workers make a batch in the first 20 ms of each, and rest for the others."""
    steps, batches = [], []
    for turn in range(count):
        at = 0.1 * turn
        batches += [batch(worker, at, at + 0.02, 0.08 if turn else None) for worker in (0, 1)]
        steps += [step(at + 0.018, CROWDED_S), step(at + 0.05, QUIET_S)]
    return steps, batches


def test_steps_of_both_kinds_are_told_apart() -> None:
    steps, batches = mixed(ENOUGH + 2)
    found = work_beside(steps, batches)
    assert found == WorkBeside(pytest.approx(QUIET_S), pytest.approx(CROWDED_S))


def test_few_steps_of_a_kind_tell_nothing() -> None:
    steps, batches = mixed(ENOUGH - 1)
    assert work_beside(steps, batches, complete=True) is None


def test_where_batches_may_be_missing_a_worker_rests_only_before_one_that_says_so() -> None:
    """Of each worker every fourth batch was kept, and of both not the same ones."""
    steps, batches = mixed(6 * ENOUGH)
    thinned = [*batches[::8], *batches[5::8]]
    assert work_beside(steps, thinned) is None
    # And after the last one of an epoch nothing is known, unless these are all.
    last = [batch(b.worker, b.time_s - b.wall_s, b.time_s, None) for b in batches]
    assert work_beside(steps, last) is None
    assert work_beside(steps, last, complete=True) is not None


def test_steps_with_a_validation_or_a_checkpoint_in_them_are_left_out() -> None:
    steps, batches = mixed(ENOUGH + 2)
    slow = [step(s.time_s, 5.0, validation_s=4.9) for s in steps] + [
        step(s.time_s, 5.0, checkpoint_s=4.9) for s in steps
    ]
    assert work_beside([*steps, *slow], batches) == work_beside(steps, batches)
    assert work_beside(slow, batches, complete=True) is None


def test_batches_that_the_loop_makes_itself_are_nobodys_beside_it() -> None:
    steps, batches = mixed(ENOUGH + 2)
    own = [batch(-1, b.time_s - b.wall_s, b.time_s, b.idle_s) for b in batches]
    assert work_beside(steps, own, complete=True) is None


def test_what_was_looked_into_leaves_no_record_and_is_no_rest() -> None:
    """Steps in the midst of three batches that were profiled: they took as long as others beside a worker."""
    steps, batches = mixed(4 * ENOUGH)
    whole = work_beside(steps, batches, complete=True)
    kept = [b for b in batches if not 0.5 <= b.time_s < 0.9]
    kept = [replace(b, idle_s=0.08) for b in kept]
    slow = [replace(s, total_s=CROWDED_S + 0.001) if 0.5 <= s.time_s < 0.9 else s for s in steps]
    assert work_beside(slow, kept, complete=True) == whole


def test_a_difference_that_chance_explains_is_none() -> None:
    steps, batches = mixed(2 * ENOUGH)
    shaken = [replace(s, total_s=0.001 + (0.006 if i % 4 < 2 else 0.016)) for i, s in enumerate(steps)]
    assert work_beside(shaken, batches) is None


CROWD = loader(
    current=4, work_s=0.012, service_s=0.010, cpu_s=0.010, loop_cpu_s=0.024, quiet_work_s=0.006, crowded_work_s=0.016
)
TWO = Limits(available_cpus=2.0)


def test_without_workers_a_step_is_a_quiet_one_and_its_batch_is_not_shared() -> None:
    assert predict_step_time_s(CROWD, TWO, 0) == pytest.approx(0.006 + 0.010, rel=0.1)
    large = replace(CROWD, shared_already_s=0.004)
    assert predict_step_time_s(CROWD, TWO, 0) - predict_step_time_s(large, TWO, 0) == pytest.approx(0.004)


def test_one_worker_is_at_work_beside_more_of_a_step_than_four_together() -> None:
    assert lost_beside_s(CROWD, TWO, 1) == pytest.approx(0.004, rel=0.2)
    assert lost_beside_s(CROWD, TWO, 2) <= lost_beside_s(CROWD, TWO, 1)
    assert predict_step_time_s(CROWD, TWO, 1) > predict_step_time_s(CROWD, TWO, 0)
    for workers in (4, 8):  # they were measured, or are more of the same
        assert lost_beside_s(CROWD, TWO, workers) == 0.0
    for unknown in ({"quiet_work_s": None}, {"crowded_work_s": None}, {"crowded_work_s": 0.005}):
        assert lost_beside_s(replace(CROWD, **unknown), TWO, 1) == 0.0
    assert lost_beside_s(CROWD, Limits(), 1) == 0.0


def host(usable: float = 2.0) -> list[HostSample]:
    return [HostSample(time_s=float(i), usable_cpus=usable) for i in range(5)]


def in_the_loop(count: int = 20, every_s: float = 0.263) -> list[StepRecord]:
    return [replace(step(i * every_s, 0.069), total_s=0.263, data_wait_s=0.194) for i in range(count)]


OF_TWO_THREADS = loader(work_s=0.069, service_s=0.190, cpu_s=0.190, loop_cpu_s=0.328)


def test_what_two_threads_compute_for_a_batch_one_of_a_worker_does_alone() -> None:
    """Of 518 ms of CPU in a step its work can be 138 at the most, and its batch was seen to take 190 of one thread."""
    more_s = in_threads_s(OF_TWO_THREADS, in_the_loop(), host())
    assert more_s == pytest.approx(0.328 - 0.138 - SPINS_S)
    assert replace(OF_TWO_THREADS, cpu_s=0.190 + more_s).worker_s == pytest.approx(0.36)
    assert predict_step_time_s(replace(OF_TWO_THREADS, cpu_s=0.36, loop_cpu_s=0.138), TWO, 1) > 0.35


def test_threads_that_the_dataset_started_work_for_the_batch() -> None:
    """Of 231 ms of CPU in a step that works for 69 threads of Python's took 162: none of it is of torch's."""
    costs = replace(OF_TWO_THREADS, cpu_s=0.001, loop_cpu_s=0.231, step_time_s=0.263)
    assert in_threads_s(costs, in_the_loop(), host()) == pytest.approx(0.231 - 0.138 - SPINS_S)
    assert in_threads_s(costs, in_the_loop(), host(), 0.5) == pytest.approx(0.5 * 0.263)
    assert in_threads_s(costs, in_the_loop(), host(), 1.3) == pytest.approx(0.231 - 0.069), "the step's work stays"


@pytest.mark.parametrize(
    ("changes", "steps", "samples"),
    [
        ({"current": 1}, in_the_loop(), host()),  # a worker is timed whole
        ({}, in_the_loop(), []),
        ({}, in_the_loop(), host(5.0)),  # the work may have used them
        ({}, in_the_loop(3), host()),
        ({}, in_the_loop(every_s=0.5), host()),  # half of the time is something else
        ({"loop_cpu_s": 0.15}, in_the_loop(), host()),  # threads that spin
    ],
)
def test_where_that_is_not_known_nothing_is_added(changes, steps, samples) -> None:
    assert in_threads_s(replace(OF_TWO_THREADS, **changes), steps, samples) == 0.0


def in_loop(wall_s: float, cpu_s: float, process_cpu_s: float | None) -> list[WorkerBatch]:
    one = replace(batch(-1, 0.0, wall_s, None), cpu_s=cpu_s, process_cpu_s=process_cpu_s)
    return [replace(one, time_s=float(i)) for i in range(ENOUGH)]


def test_threads_that_spin_between_the_operations_of_an_item_do_none_of_its_work() -> None:
    """An item decodes for 3 ms and then divides a tensor: 8 % of a batch, which keep the other CPU busy for all of it.

    Measured: images of 32 to a batch, 2 CPUs; a worker with one thread took 110 ms for one.
    """
    made = in_loop(0.116, 0.114, 0.217)
    found = batch_threads(made, cpus=2.0, shares=(0.08, 0.02))
    assert found is not None
    assert found.spent_s == pytest.approx(0.103)
    assert 0.08 * 0.116 < found.worked_s < 0.1 * 0.116
    many = batch_threads(in_loop(0.116, 0.114, 1.8), cpus=16.0, shares=(0.01, 0.0))
    assert many is not None
    assert many.worked_s == pytest.approx(15 * 0.01 * 0.116)


def test_what_threads_compute_in_calls_is_work_and_of_operators_that_are_none_half() -> None:
    made = in_loop(0.2, 0.19, 0.38)
    called, own, unseen = (batch_threads(made, cpus=2.0, shares=one) for one in ((1.0, 0.0), (0.0, 1.0), None))
    assert called == batch_threads(made, cpus=2.0, shares=(0.97, 0.0)), "no more than they spent"
    assert called is not None
    assert called.worked_s == pytest.approx(0.19)
    assert own is not None
    assert own.worked_s == pytest.approx(0.1)
    assert unseen is not None
    assert unseen.worked_s == pytest.approx(0.19 - SPINS_S), "nobody looked"
    assert batch_threads(made, cpus=1.0, shares=(1.0, 0.0)).worked_s == 0.0  # type: ignore[union-attr]


def test_without_the_time_of_the_process_nothing_is_known_of_its_threads() -> None:
    assert batch_threads(in_loop(0.2, 0.19, None), cpus=2.0) is None
    assert batch_threads(in_loop(0.2, 0.19, 0.38)[1:], cpus=2.0) is None
    assert batch_threads([replace(b, worker=0) for b in in_loop(0.2, 0.19, 0.38)], cpus=2.0) is None


@pytest.mark.parametrize(
    ("spent_s", "torch_threads", "python_cpus", "so"),
    [
        (0.036, 1, 0.0, True),
        (0.036, 2, 0.0, False),
        (0.036, None, 0.0, False),
        (0.01, 1, 0.0, False),
        (0.036, 1, 0.5, False),
    ],
)
def test_whose_the_threads_are(spent_s: float, torch_threads: int | None, python_cpus: float, so: bool) -> None:
    """A batch takes 35 ms of a step of 65: torch has one thread, or Python's threads take half a CPU."""
    costs = loader(service_s=0.035, cpu_s=0.035, step_time_s=0.065, torch_threads=torch_threads)
    assert are_a_librarys(BatchThreads(spent_s, 0.0), costs, python_cpus) is so


def test_what_others_compute_while_a_batch_is_waited_for_makes_none_of_it() -> None:
    """It sleeps for 20 ms, and threads that exchange gradients take 0.5 meanwhile, twice what the loop's takes."""
    waits = loader(service_s=0.020, cpu_s=0.00025, step_time_s=0.030, torch_threads=1)
    assert not are_a_librarys(BatchThreads(0.0005, 0.0), waits, 0.0)


def test_threads_of_a_loop_that_waits_for_a_device_spin() -> None:
    """Of 34 ms its thread runs for 4; what the threads take beyond 2 CPUs for as long is spun away, 20 ms at most."""
    waits = loader(work_s=0.034, loop_cpu_s=0.018)
    assert spun_s(waits, 2.0, 0.004) == pytest.approx(0.010)
    assert spun_s(replace(waits, loop_cpu_s=0.06), 2.0, 0.004) == pytest.approx(SPINS_S)
    assert spun_s(replace(waits, loop_cpu_s=0.4), 16.0, 0.004) == pytest.approx(15 * SPINS_S)
    for cpus, ran_s in ((2.0, 0.009), (2.0, 0.034), (2.0, None), (1.0, 0.0)):
        assert spun_s(waits, cpus, ran_s) == 0.0
    assert spun_s(replace(waits, loop_cpu_s=0.08), 2.0, 0.05) == pytest.approx(0.012), "no longer than the work itself"


def test_what_collating_takes_bounds_what_of_it_is_for_shared_memory() -> None:
    made = [replace(batch(0, 0.0, 0.02, 0.0), collate_s=collate_s) for collate_s in (0.01, 0.03)]
    assert shared_already_s(made, 0.004) == 0.004
    assert shared_already_s(made, 0.05) == pytest.approx(0.01)
    assert shared_already_s([batch(0, 0.0, 0.02, 0.0)], 0.004) == 0.0
