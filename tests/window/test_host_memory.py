"""What processes hold, and how full shared memory is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import MemorySample
from stallmeter.window import Window

from ..rules.windows import START_S, hosts, step, window

MB = 10**6


def held(count: int = 50, **changes: object) -> list[MemorySample]:
    """Samples five times a second, of a training process that takes 10 MB a second."""
    return [
        MemorySample(
            **{  # type: ignore[arg-type]
                "time_s": START_S + 1 + 0.2 * i,
                "main_bytes": 100 * MB + 2 * MB * i,
                "workers": 2,
                "workers_bytes": 60 * MB,
                "step": 4 * i,
                **changes,
            }
        )
        for i in range(count)
    ]


def steps(count: int = 200, per_epoch: int = 1000) -> list[object]:
    """Twenty a second."""
    return [
        step(i, time_s=START_S + 1 + 0.05 * i, epoch=i // per_epoch, epoch_start=i % per_epoch == 0)
        for i in range(count)
    ]


def test_what_processes_hold():
    """By the second and by the step; shared memory counts with the training process."""
    memory = window(*steps(), *held()).host.memory
    assert memory.main_trend is not None
    assert memory.main_trend.per_s == pytest.approx(10 * MB)
    assert memory.main_trend.is_sure
    assert memory.steps_per_s == pytest.approx(20)
    assert memory.workers_bytes == 60 * MB
    assert memory.workers_trend is not None
    assert memory.workers_trend.growth == 0
    assert memory.is_resident is False
    shared = window(*steps(), *held(main_bytes=0, main_shared_bytes=7)).host.memory.main_trend
    assert shared is not None
    assert shared.start == 7


def test_memory_in_use():
    """What was freed is not in use; a slope needs five readings after the warm-up, a trend seven."""
    made = [replace(s, main_free_bytes=2 * MB * i) if i % 5 == 0 else s for i, s in enumerate(held())]
    memory = window(*steps(), *made).host.memory
    assert memory.main_trend is not None
    assert memory.main_trend.per_s == pytest.approx(10 * MB)
    assert memory.in_use_per_s == pytest.approx(0.0)
    assert memory.in_use_trend is not None
    assert memory.in_use_trend.growth == pytest.approx(0.0)
    fewer = [replace(s, main_free_bytes=0) if i % 7 == 0 else s for i, s in enumerate(held())]
    memory = window(*steps(), *fewer).host.memory
    assert memory.in_use_per_s == pytest.approx(10 * MB)
    assert memory.in_use_trend is None
    fewest = [replace(s, main_free_bytes=0) if i % 12 == 0 else s for i, s in enumerate(held())]
    assert window(*steps(), *fewest).host.memory.in_use_per_s is None
    assert window(*steps(), *held()).host.memory.in_use_per_s is None, "an allocator that does not tell"


def test_resident_memory_stands_in():
    """Where only the host was sampled, as on other systems and in recordings of earlier versions."""
    memory = window(*steps(), *hosts(30, lambda i: {"main_rss_bytes": MB * i, "children_rss_bytes": 5})).host.memory
    assert memory.is_resident is True
    assert memory.main_trend is not None
    assert memory.main_trend.per_s == pytest.approx(MB)
    assert memory.workers_bytes == 5
    assert memory.steps_per_s is None


def test_while_no_step_begins():
    """Samples of a validation, or after the last step, are left out."""
    stood = held(25, step=96, main_bytes=150 * MB)
    late = [MemorySample(time_s=s.time_s + 10, main_bytes=s.main_bytes, step=s.step) for s in stood]
    memory = window(*steps(), *held(), *late).host.memory
    assert memory.main_trend is not None
    assert memory.main_trend.per_s == pytest.approx(10 * MB, rel=0.1)


def test_later_epochs():
    """How much of the time lies after the first epoch."""
    assert window(*steps()).host.memory.later_epochs_share == 0.0
    assert window(*steps(per_epoch=50)).host.memory.later_epochs_share == pytest.approx(0.75, abs=0.02)
    assert Window().host.memory.later_epochs_share is None


def test_shared_memory():
    """Least and most of all samples."""
    free = [50, 20, 40]
    shm = window(*hosts(3, lambda i: {"shm_free_bytes": free[i], "shm_size_bytes": 64})).host.memory.shm
    assert (shm.size_bytes, shm.least_free_bytes, shm.most_free_bytes) == (64, 20, 50)
    unknown = window(*hosts(3, lambda i: {"shm_free_bytes": free[i]})).host.memory.shm
    assert (unknown.size_bytes, unknown.least_free_bytes) == (None, None), "of an earlier version"
