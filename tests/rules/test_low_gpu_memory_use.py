"""low-gpu-memory-use: most of the GPU's memory is free, and a larger batch would fit."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import AllocatorSample
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.gpu_memory_near_limit import GpuMemoryNearLimit
from stallmeter.rules.low_gpu_memory_use import LowGpuMemoryUse
from stallmeter.window import Window

from .windows import START_S, fires, gpus, loader, missing, run, silent

GB = 10**9


def free(used_gb: float = 4.0, *records: Any, busy: float | None = 60.0, wait_s: float = 2.0, **more: Any) -> Window:
    """A run on a GPU of 16 GB with so much memory in use."""
    return run(
        *gpus(
            20,
            lambda i: {
                "utilization_pct": busy,
                "memory_used_bytes": int(used_gb * GB),
                "memory_total_bytes": 16 * GB,
                **more,
            },
        ),
        *records,
        data_wait=wait_s,
    )


def test_fires():
    """The batch that fits is told as a number, and nothing is claimed to be lost."""
    found = fires(LowGpuMemoryUse(), free(4.0, loader()))
    assert found.summary == (
        "Training needed at most 25 % of GPU 0's 16.0 GB, and the GPU was busy 60 % of the time: "
        "at least 115 instead of 32 would fit."
    )
    assert (found.severity, found.time_lost_s) == (Severity.INFO, 0.0)
    assert found.evidence[1].value == pytest.approx(3.6)


def test_an_unknown_batch_size():
    """Then a factor is told."""
    assert fires(LowGpuMemoryUse(), free()).summary.endswith("at least 3.6 times the batch would fit.")


def test_threshold():
    """It is silent as soon as memory, load or wait reach their thresholds."""
    assert fires(LowGpuMemoryUse(), free(7.19, busy=89.9, wait_s=9.8))
    assert silent(LowGpuMemoryUse(), free(7.2))
    assert silent(LowGpuMemoryUse(), free(busy=90.0))
    assert silent(LowGpuMemoryUse(), free(wait_s=9.9))


def test_a_gpu_that_is_not_used():
    """Its free memory is not a matter of the batch."""
    assert silent(LowGpuMemoryUse(), free(busy=9.9))


def test_busy_multiprocessors_count_more_than_utilization():
    """Utilization only says that some kernel ran; where GPM tells more, that decides."""
    found = fires(LowGpuMemoryUse(), free(busy=100.0, sm_active_pct=40.0))
    assert "busy 40 % of the time" in found.summary
    assert silent(LowGpuMemoryUse(), free(busy=60.0, sm_active_pct=95.0))


def test_the_allocators_peak_counts():
    """A cache that filled the memory is no need; a peak between two samples is."""
    cached = AllocatorSample(time_s=START_S, index=0, allocated_peak_bytes=2 * GB, reserved_peak_bytes=14 * GB)
    assert fires(LowGpuMemoryUse(), free(15.0, cached)).evidence[0].value == pytest.approx(100 * 3 / 16)
    missed = AllocatorSample(time_s=START_S, index=0, allocated_peak_bytes=9 * GB, reserved_peak_bytes=9 * GB)
    assert silent(LowGpuMemoryUse(), free(4.0, missed))


@pytest.mark.parametrize("used_gb", [1.0, 4.0, 7.0, 8.0, 14.0, 15.0])
def test_never_beside_a_full_memory(used_gb):
    """Advice for more and for less memory cannot stand together."""
    made = free(used_gb)
    assert silent(LowGpuMemoryUse(), made) or silent(GpuMemoryNearLimit(), made)


def test_what_is_recommended_fits():
    """Even if all memory grew with the batch, a tenth stays free."""
    found = fires(LowGpuMemoryUse(), free(7.0))
    assert 7.0 * found.evidence[1].value == pytest.approx(0.9 * 16)


def test_abstains():
    """Without memory or load there is nothing to judge."""
    assert missing(LowGpuMemoryUse(), free(busy=None)) == ("gpu.utilization_pct",)
    assert missing(LowGpuMemoryUse(), run(*gpus(20, lambda i: {"utilization_pct": 50.0}))) == ("gpu.memory.peak",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(LowGpuMemoryUse(memory_pct=20.0), free())
