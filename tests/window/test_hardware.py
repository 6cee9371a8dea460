"""Signals of the hardware that depend on who else is on the node."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import AllocatorSample
from stallmeter.rules.cpu_saturated import CpuSaturated
from stallmeter.rules.gpu_memory_growth import GpuMemoryGrowth
from stallmeter.rules.gpu_memory_near_limit import GpuMemoryNearLimit
from stallmeter.rules.gpu_throttled import GpuThrottled
from stallmeter.rules.noisy_neighbour import NoisyNeighbour
from stallmeter.window import Window

from ..rules.waiting import waiting
from ..rules.windows import START_S, fires, gpus, hosts, missing, run, silent

GB = 10**9


def budget(**known: Any) -> dict[str, Any]:
    return {"budget": {"host_cpus": 8, "affinity_cpus": 8, **known}}


# -- the host ----------------------------------------------------------------------------------------------------------


def neighbours(ranks_cpus: float | None, **known: Any) -> Window:
    """A loop whose batches wait for a CPU, beside others that keep 3 of 8 busy."""
    made = waiting(wait_s=0.05, work_s=0.01, batch_s=0.12, workers=2, cpus=8.0, queue_share=0.6, cpu_share=0.3)
    for sample in hosts(
        200, lambda i: {"usable_cpus": 8.0, "job_cpus": 1.0, "others_cpus": 3.0, "ranks_cpus": ranks_cpus}
    ):
        made.append(sample)
    made.facts = budget(**known)
    return made


def test_other_ranks_are_no_noisy_neighbours() -> None:
    """What others keep busy counts where the ranks are told from them, or are not on these CPUs."""
    assert fires(NoisyNeighbour(), neighbours(None))
    assert fires(NoisyNeighbour(), neighbours(4.0, ranks_on_node=4))
    assert fires(NoisyNeighbour(), neighbours(None, ranks_on_node=4, bound_per_rank=True))
    assert missing(NoisyNeighbour(), neighbours(None, ranks_on_node=4)) == ("others_cpus",)


def test_other_ranks_fill_the_cpus_as_well() -> None:
    made = neighbours(4.0, ranks_on_node=4)
    assert made.cpu_busy_pct == 100.0
    assert fires(CpuSaturated(), made)


# -- GPUs --------------------------------------------------------------------------------------------------------------


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
    assert made.own_gpus == own


def test_gpu_rules_look_at_the_gpu_of_this_rank() -> None:
    """What another rank's GPU does is told by that rank."""
    rules = (GpuMemoryNearLimit(), GpuMemoryGrowth(), GpuThrottled())
    theirs, ours = machine(ranks_on_node=2, local_rank=1), machine(ranks_on_node=2, local_rank=0)
    for rule in rules:
        assert silent(rule, theirs)
        assert fires(rule, ours)
    assert (theirs.busiest_gpu_pct, ours.busiest_gpu_pct) == (20.0, 90.0)
    assert theirs.gpu_memory is not None
    assert (theirs.gpu_memory.index, theirs.gpu_trace_pct) == (1, 20.0)


def test_without_a_gpu_of_its_own_nothing_is_said() -> None:
    unknown = machine(ranks_on_node=2)
    assert missing(GpuMemoryNearLimit(), unknown) == ("gpu_memory",)
    assert (unknown.busiest_gpu_pct, unknown.gpu_trace_pct, unknown.gpu_throttling) == (None, None, None)
