"""What the batches and steps of a window cost, with what single steps show of the loop beside its workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import BatchContent
from stallmeter.window import Window
from stallmeter.workers import Limits
from stallmeter.workers.measured import costs_of
from stallmeter.workers.plan import with_one_thread

from ..rules.windows import START_S, batches, hosts, loader, step, window
from .test_beside import CROWDED_S, QUIET_S, mixed


def of_turns(indices_s: float) -> Window:
    """Steps of one thread beside workers and while these rest, and what it takes to choose the items of a batch."""
    steps, batches = mixed(60)
    return window(
        replace(loader(2), time_s=START_S, indices_s=indices_s),
        *(replace(one, index=index, tracker_step=index) for index, one in enumerate(steps)),
        *batches,
        *hosts(8, lambda _: {"usable_cpus": 2.0, "main_cpus": 0.1, "job_cpus": 0.5}),
    )


@pytest.mark.parametrize("indices_s", [0.0, 0.001])
def test_the_sampler_is_work_of_the_loop_beside_workers_and_without_them(indices_s: float) -> None:
    """It is asked in the wait for a batch, which the work that single steps show leaves out."""
    costs = costs_of(of_turns(indices_s), 2)
    assert costs is not None
    assert costs.indices_s == indices_s
    assert costs.quiet_work_s == pytest.approx(QUIET_S + indices_s)
    assert costs.crowded_work_s == pytest.approx(CROWDED_S + indices_s)


def test_one_thread_asks_the_sampler_as_well() -> None:
    """A loop whose step is shorter with one thread than its sampler takes was predicted."""
    bare, asking = (costs_of(of_turns(indices_s), 2) for indices_s in (0.0, 0.001))
    assert bare is not None
    assert asking is not None
    limits = Limits(available_cpus=2.0)
    more_s = with_one_thread(asking, limits).work_s - with_one_thread(bare, limits).work_s
    assert more_s == pytest.approx(0.001)


def of_senders(tensors: int, **of_loop: float) -> Window:
    """Steps of 15 ms, 6 of them work, beside two workers that make a batch in 1.2 ms and keep most of a CPU busy."""
    steps = (
        step(index, total_s=0.015, data_wait_s=0.009, forward_s=0.006, backward_s=0.0, optimizer_s=0.0, loop_s=0.0)
        for index in range(60)
    )
    return window(
        loader(2),
        BatchContent(time_s=START_S, tensors=tensors, bytes=20_000),
        *steps,
        *batches(60, wall_s=0.0012, cpu_s=0.0012),
        *hosts(8, lambda _: {"usable_cpus": 2.0, "main_cpus": 1.0, "job_cpus": 1.8, "others_cpus": 0.0, **of_loop}),
    )


def test_beside_workers_that_send_all_the_time_the_loop_has_no_quiet_steps() -> None:
    """What its own thread waits for a CPU tells what it would take without them."""
    costs = costs_of(of_senders(28, loop_cpu_wait_pct=25.0), 2)
    assert costs is not None
    assert costs.sent_cpu_s == pytest.approx(0.8 * 0.015 - 0.0012)
    assert costs.sent_cpu_s < costs.cpu_s
    waited_s = 0.25 * 0.015 * 0.006 / (0.006 + costs.default_handover_s)
    assert costs.quiet_work_s == pytest.approx(costs.work_s - waited_s, rel=0.05)
    assert costs.crowded_work_s is None


@pytest.mark.parametrize("made", [of_senders(28), of_senders(1, loop_cpu_wait_pct=25.0)])
def test_without_a_known_wait_or_with_little_to_send_nothing_is_known_of_that(made: Window) -> None:
    costs = costs_of(made, 2)
    assert costs is not None
    assert costs.quiet_work_s is None
