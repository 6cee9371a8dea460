"""Which GPUs are this rank's own."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import AllocatorSample
from stallmeter.rules.gpu_memory_growth import GpuMemoryGrowth
from stallmeter.rules.gpu_memory_near_limit import GpuMemoryNearLimit
from stallmeter.rules.gpu_throttled import GpuThrottled
from stallmeter.window import Window
from stallmeter.window.facts import Facts
from stallmeter.window.gpus import GpuHistory
from stallmeter.window.ledger import LedgerSignals
from stallmeter.window.loader import LoaderSignals
from stallmeter.window.steps import StepSignals

from ..rules.windows import START_S, fires, gpus, missing, run, silent

GB = 10**9


def budget(**known: Any) -> dict[str, Any]:
    return {"budget": {"host_cpus": 8, "affinity_cpus": 8, **known}}


def machine(*records: Any, own: int | None = None, **known: Any) -> Window:
    """Two GPUs: the first is full, hot, busy and fills up, the second is not."""
    return run(
        *gpus(
            60,
            lambda i: {
                "utilization_pct": 90.0,
                "memory_used_bytes": (60 + i // 3) * GB,
                "memory_total_bytes": 80 * GB,
                "throttle_reasons": ("hw_thermal",),
                "job_memory_bytes": None if own is None else 0 if own else 50 * GB,
            },
            index=0,
        ),
        *gpus(
            60,
            lambda i: {
                "utilization_pct": 20.0,
                "memory_used_bytes": 8 * GB,
                "memory_total_bytes": 80 * GB,
                "throttle_reasons": (),
                "job_memory_bytes": None if own is None else 7 * GB if own else 0,
            },
            index=1,
        ),
        *records,
        facts=budget(**known),
    )


def allocated(index: int, size: int) -> AllocatorSample:
    return AllocatorSample(
        time_s=START_S + 9, index=index, allocated_peak_bytes=size, reserved_peak_bytes=size, reserved_bytes=size
    )


@pytest.mark.parametrize(
    ("made", "own"),
    [
        (machine(), [0, 1]),
        (machine(allocated(1, 6 * GB)), [1]),
        (machine(allocated(1, 6 * GB), allocated(0, 2 << 20)), [1]),  # a stray tensor
        (machine(allocated(1, 6 * GB), allocated(0, 3 * GB)), [0, 1]),
        (machine(own=1), [1]),
        (machine(allocated(1, 6 * GB), own=0), [1]),
        (machine(ranks_on_node=2, local_rank=1), [1]),
        (machine(ranks_on_node=2), []),
        (machine(ranks_on_node=8, local_rank=1), []),
    ],
)
def test_own_gpus(made: Window, own: list[int]) -> None:
    """The allocator knows best, then NVML, then the rank's number; among several ranks nothing is guessed beyond it."""
    assert made.gpu.own == own


def test_gpu_rules_look_at_the_gpu_of_this_rank() -> None:
    """What another rank's GPU does is told by that rank."""
    rules = (GpuMemoryNearLimit(), GpuMemoryGrowth(), GpuThrottled())
    theirs, ours = machine(ranks_on_node=2, local_rank=1), machine(ranks_on_node=2, local_rank=0)
    for rule in rules:
        assert silent(rule, theirs)
        assert fires(rule, ours)
    assert (theirs.gpu.utilization_pct, ours.gpu.utilization_pct) == (20.0, 90.0)
    assert theirs.gpu.memory.peak is not None
    assert (theirs.gpu.memory.peak.index, theirs.gpu.trace_pct) == (1, 20.0)


def test_without_a_gpu_of_its_own_nothing_is_said() -> None:
    unknown = machine(ranks_on_node=2)
    assert missing(GpuMemoryNearLimit(), unknown) == ("gpu.memory.peak",)
    assert (unknown.gpu.utilization_pct, unknown.gpu.trace_pct, unknown.gpu.throttling) == (None, None, None)


def test_a_part_alone() -> None:
    """Every GPU has a bounded history and an exact peak."""
    made = GpuHistory(Facts(), StepSignals(LoaderSignals(), LedgerSignals()), size=16)
    assert made.own == []
    for index in (1, 0):
        for sample in gpus(100, lambda i: {"memory_used_bytes": 9 if i == 41 else 2}, index=index):
            made.append(sample)
    made.append(allocated(1, 6 * GB))
    assert made.own == [1]
    assert made.memory_peak_bytes == {0: 9, 1: 9}
    assert max(len(samples.items) for samples in made.samples.values()) <= 16
    assert made.newest(0, lambda s: s.memory_used_bytes) == 2
