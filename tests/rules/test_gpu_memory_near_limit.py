"""gpu-memory-near-limit: the GPU's memory is nearly used up."""

from __future__ import annotations

from typing import Any

from stallmeter.records import AllocatorSample
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.gpu_memory_near_limit import GpuMemoryNearLimit
from stallmeter.window import Window

from .windows import START_S, fires, gpus, missing, run, silent

GB = 10**9


def filled(used_gb: float, total_gb: float | None = 16.0, *records: Any, index: int = 0) -> Window:
    """A run with a GPU whose memory in use rises to so much and falls again."""
    total = None if total_gb is None else int(total_gb * GB)
    return run(
        *gpus(
            20,
            lambda i: {
                "memory_used_bytes": int(used_gb * GB) - (0 if i == 10 else GB),
                "memory_total_bytes": total,
            },
            index=index,
        ),
        *records,
    )


def allocator(allocated_gb: float, reserved_gb: float, **counts: int) -> AllocatorSample:
    """PyTorch's peaks."""
    return AllocatorSample(
        time_s=START_S + 20,
        index=0,
        allocated_peak_bytes=int(allocated_gb * GB),
        reserved_peak_bytes=int(reserved_gb * GB),
        **counts,
    )


def test_fires():
    """The peak counts, not the typical use; without the allocator's numbers the confidence is low."""
    found = fires(GpuMemoryNearLimit(), filled(15.0))
    assert found.summary == "Up to 94 % of GPU 0's 16.0 GB were taken."
    assert (found.severity, found.confidence, found.time_lost_s) == (Severity.WARNING, 0.5, 0.0)


def test_threshold():
    """90 % warns, 97 % is critical."""
    assert silent(GpuMemoryNearLimit(), filled(8.99, 10.0))
    assert fires(GpuMemoryNearLimit(), filled(9.0, 10.0)).severity is Severity.WARNING
    assert fires(GpuMemoryNearLimit(), filled(9.69, 10.0)).severity is Severity.WARNING
    assert fires(GpuMemoryNearLimit(), filled(9.7, 10.0)).severity is Severity.CRITICAL


def test_a_full_cache_is_not_a_full_memory():
    """What PyTorch only keeps cached can be given back: it is no need."""
    assert silent(GpuMemoryNearLimit(), filled(15.5, 16.0, allocator(8.0, 15.0)))
    found = fires(GpuMemoryNearLimit(), filled(15.5, 16.0, allocator(14.0, 15.0)))
    assert found.summary == "Up to 91 % of GPU 0's 16.0 GB were needed."
    assert found.confidence == 0.8


def test_a_peak_between_two_samples():
    """The allocator saw a peak that no sample met."""
    assert fires(GpuMemoryNearLimit(), filled(6.0, 16.0, allocator(15.0, 15.0)))


def test_retries():
    """PyTorch had to empty its cache: whatever the samples say, memory was short."""
    found = fires(GpuMemoryNearLimit(), filled(10.0, 16.0, allocator(8.0, 9.0, alloc_retries=3, ooms=1)))
    assert found.summary == "Up to 56 % of GPU 0's 16.0 GB were needed; PyTorch emptied its cache 4 times to find room."
    assert silent(GpuMemoryNearLimit(), filled(10.0, 16.0, allocator(8.0, 9.0, alloc_retries=0, ooms=0)))


def test_the_fullest_gpu_is_named():
    """One that is full is enough."""
    other = gpus(20, lambda i: {"memory_used_bytes": 1, "memory_total_bytes": 16 * GB}, index=0)
    assert fires(GpuMemoryNearLimit(), filled(15.0, 16.0, *other, index=3)).culprit == "GPU 3"


def test_abstains():
    """Without use or size of the memory there is nothing to compare."""
    assert missing(GpuMemoryNearLimit(), filled(15.0, None)) == ("gpu.memory.peak",)
    assert missing(GpuMemoryNearLimit(), run()) == ("gpu.memory.peak",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(GpuMemoryNearLimit(warn_pct=95.0), filled(15.0))
