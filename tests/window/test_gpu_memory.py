"""How full the memory of GPUs is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import AllocatorSample
from stallmeter.window.facts import Facts
from stallmeter.window.gpu_memory import GpuMemorySignals, memory
from stallmeter.window.gpus import GpuHistory
from stallmeter.window.ledger import LedgerSignals
from stallmeter.window.loader import LoaderSignals
from stallmeter.window.steps import StepSignals

from ..rules.windows import gpus


@given(st.integers(0, 100), st.integers(1, 100), st.none() | st.integers(0, 120), st.none() | st.integers(0, 120))
def test_memory_is_bounded(used, total, reserved, allocated):
    """What is needed is never more than what was in use, and never negative."""
    allocator = AllocatorSample(time_s=0.0, index=0, reserved_peak_bytes=reserved, allocated_peak_bytes=allocated)
    found = memory(0, used, total, allocator)
    assert 0 <= found.needed_bytes <= found.used_bytes
    assert found.used_bytes >= used


def test_a_part_alone():
    """The fullest GPU, and a line through each."""
    history = GpuHistory(Facts(), StepSignals(LoaderSignals(), LedgerSignals()))
    made = GpuMemorySignals(history)
    assert (made.peak, made.trends) == (None, None)
    for index, rise in ((0, 1), (1, 5)):
        for sample in gpus(
            60,
            lambda i, rise=rise: {"memory_used_bytes": 100 + rise * i, "memory_total_bytes": 1000},  # type: ignore[misc]
            index=index,
        ):
            history.append(sample)
    assert made.peak is not None
    assert (made.peak.index, made.peak.used_bytes) == (1, 395)
    assert made.trends is not None
    assert [made.trends[index].per_s for index in (0, 1)] == [pytest.approx(1.0), pytest.approx(5.0)]
    assert (made.trend(0, "job_memory_bytes"), made.left_bytes(1)) == (None, 605)
