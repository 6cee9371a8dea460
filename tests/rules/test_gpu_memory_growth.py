"""gpu-memory-growth: the memory in use on the GPU keeps growing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from stallmeter.records import AllocatorSample
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.gpu_memory_growth import GpuMemoryGrowth
from stallmeter.window import Window

from .windows import START_S, fires, gpus, missing, run, silent

MB = 10**6


def grown(
    used_mb: Callable[[int], float],
    *records: Any,
    count: int = 120,
    own_mb: Callable[[int], float] | None = None,
    total_mb: int | None = 80_000,
    index: int = 0,
) -> Window:
    """A run whose GPU has 4 GB in use and so many MB more at each second."""

    def sample(i: int) -> dict[str, Any]:
        known: dict[str, Any] = {"memory_used_bytes": 4000 * MB + int(used_mb(i) * MB)}
        if total_mb is not None:
            known["memory_total_bytes"] = total_mb * MB
        if own_mb is not None and i % 5 == 0:
            known["job_memory_bytes"] = 3000 * MB + int(own_mb(i) * MB)
        return known

    return run(*gpus(count, sample, index=index), *records)


def test_fires():
    """A steady rise is told with its pace and when it ends; nothing is claimed to be lost."""
    found = fires(GpuMemoryGrowth(), grown(lambda i: 10.0 * i))
    assert found.summary == (
        "The memory in use on GPU 0 grew by 890 MB, 600.0 MB a minute; at this pace it is full in 125 min."
    )
    assert (found.time_lost_s, found.severity, found.culprit) == (0.0, Severity.WARNING, "GPU 0")
    assert "detach" in found.advice[0].text


def test_full_within_the_hour():
    """Then it is critical; without the size of the memory the end is not known."""
    assert fires(GpuMemoryGrowth(), grown(lambda i: 10.0 * i, total_mb=30_000)).severity is Severity.CRITICAL
    unknown = fires(GpuMemoryGrowth(), grown(lambda i: 10.0 * i, total_mb=None))
    assert (unknown.severity, "full" in unknown.summary) == (Severity.WARNING, False)


def test_threshold():
    """The growth after the warm-up counts from the threshold on."""
    span = 89.0
    assert fires(GpuMemoryGrowth(min_growth_pct=0), grown(lambda i: 268.1 / span * i))
    assert silent(GpuMemoryGrowth(min_growth_pct=0), grown(lambda i: 267.9 / span * i))


def test_small_against_its_size():
    """A large memory may grow by a little."""
    assert silent(GpuMemoryGrowth(min_growth_pct=25.0), grown(lambda i: 10.0 * i))
    assert fires(GpuMemoryGrowth(min_growth_pct=20.0), grown(lambda i: 10.0 * i))


def test_a_cache_that_fills_up():
    """What rises at first and then stays level is a cache."""
    assert silent(GpuMemoryGrowth(), grown(lambda i: min(900.0, 20.0 * i)))


@pytest.mark.parametrize("seed", range(5))
def test_noise(seed):
    """Memory that goes up and down has no trend, however large the swings."""
    draw = random.Random(seed)
    assert silent(GpuMemoryGrowth(), grown(lambda i: draw.uniform(0, 3000)))


def test_another_process_grows():
    """Where this job's own memory is known and stays level, the growth is not ours."""
    assert silent(GpuMemoryGrowth(), grown(lambda i: 10.0 * i, own_mb=lambda i: 0.0))
    assert fires(GpuMemoryGrowth(), grown(lambda i: 10.0 * i, own_mb=lambda i: 10.0 * i))


def test_a_cache_of_new_shapes():
    """Where PyTorch's tensors hold no more, its cache grows, which is given back before memory runs out."""

    def tensors(mb: float) -> list[AllocatorSample]:
        return [
            AllocatorSample(time_s=START_S + 2 + i, index=0, allocated_bytes=int(mb * MB * i), reserved_peak_bytes=MB)
            for i in range(120)
        ]

    assert silent(GpuMemoryGrowth(), grown(lambda i: 10.0 * i, *tensors(0.0)))
    assert fires(GpuMemoryGrowth(), grown(lambda i: 10.0 * i, *tensors(10.0)))


def test_a_cache_that_fills_ever_slower():
    """What slows down is no leak: each new shape fills the cache once."""
    assert silent(GpuMemoryGrowth(), grown(lambda i: 3000 * (1 - math.exp(-i / 5)), count=14))


def test_the_gpu_that_grows_most_is_named():
    """Of several GPUs the one with the largest growth."""
    other = gpus(120, lambda i: {"memory_used_bytes": 4000 * MB + 5 * MB * i})
    assert fires(GpuMemoryGrowth(), grown(lambda i: 10.0 * i, *other, index=1)).culprit == "GPU 1"
    assert fires(GpuMemoryGrowth(), grown(lambda i: 0.0, *other, index=1)).culprit == "GPU 0"


def test_abstains():
    """Too few samples have no trend."""
    assert missing(GpuMemoryGrowth(), grown(lambda i: 50.0 * i, count=8)) == ("gpu.memory.trends",)
    assert fires(GpuMemoryGrowth(), grown(lambda i: 50.0 * i, count=9))


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(GpuMemoryGrowth(min_growth_mb=900.0), grown(lambda i: 10.0 * i))
