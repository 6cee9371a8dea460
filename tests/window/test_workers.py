"""What a batch costs its worker."""

from __future__ import annotations

import pytest

from stallmeter.records import Fork, WorkerBatch, WorkerMemory
from stallmeter.window.workers import FORKS, WorkerSignals

from ..rules.windows import batches


def test_a_part_alone():
    """Wall, CPU and what is left: blocked."""
    made = WorkerSignals()
    for batch in batches(20, wall_s=0.1, cpu_s=0.03, queue_s=0.02):
        made.append(batch)
    known = (made.batch_wall_s, made.service_s, made.batch_cpu_s)
    assert [s and s.median for s in known] == [0.1, pytest.approx(0.08), 0.03]
    assert made.cpu_wait_share == pytest.approx(0.2)
    assert made.blocked_share == pytest.approx(0.05 / 0.08)


def test_too_few_batches():
    """Four tell nothing."""
    made = WorkerSignals()
    for batch in batches(4):
        made.append(batch)
    assert (made.batch_wall_s, made.service_s, made.cpu_wait_share, made.blocked_share) == (None,) * 4


def test_threads_of_a_worker_count_and_those_of_the_loop_do_not():
    """The loop's process does other things as well."""
    for worker, cpu_s in ((0, 0.3), (-1, 0.1)):
        made = WorkerSignals()
        for i in range(9):
            made.append(WorkerBatch(worker=worker, time_s=i, wall_s=0.1, cpu_s=0.1, process_cpu_s=0.3))
        assert made.batch_cpu_s is not None
        assert made.batch_cpu_s.median == cpu_s


def test_forks_are_bounded_and_their_time_is_exact():
    """None of it is forgotten, although not all forks are kept."""
    made = WorkerSignals(samples=16)
    assert made.fork_s is None
    for i in range(3 * FORKS):
        made.append(Fork(time_s=i, wall_s=0.5))
        made.append(WorkerMemory(time_s=i, workers=1, rss_bytes=1))
    assert made.fork_s == 1.5 * FORKS
    assert len(made.forks) <= FORKS
    assert len(made.memory.items) <= 16
