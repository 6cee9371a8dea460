"""What the samples of one GPU say together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import GpuSample
from stallmeter.window import gpu_samples as gpu

REASONS = (*gpu.THERMAL, *gpu.HARDWARE, *gpu.POWER, "gpu_idle", "sync_boost")


def series(*values: float | None, field: str = "utilization_pct", period_s: float = 1.0) -> list[GpuSample]:
    """Samples of one GPU, one each period."""
    return [GpuSample(**{"time_s": period_s * i, "index": 0, field: value}) for i, value in enumerate(values)]


def test_idle_stretches():
    """A sample stands for its period; the longest stretch without work counts."""
    found = gpu.idleness(series(90, 0, 90, 5, 9.9, 3, 90, 10, 90, 0))
    assert found is not None
    assert (found.share_pct, found.longest_s, found.p95_pct) == (50.0, 3.0, 90.0)


def test_samples_without_utilization_say_nothing():
    """They neither end a stretch nor are one."""
    found = gpu.idleness(series(0, None, 0, 90, 90, 90, 90, period_s=2.0))
    assert found is not None
    assert found.longest_s == 6.0
    assert found.share_pct == pytest.approx(100 / 3)


def test_too_few_samples():
    """Four samples are no basis."""
    four: list[Any] = [50.0] * 4
    assert gpu.idleness(series(*four)) is None
    assert gpu.mean(series(*four), lambda s: s.utilization_pct) is None
    assert gpu.throttling(0, [GpuSample(time_s=1.0, index=0, throttle_reasons=())] * 4) is None


@given(st.lists(st.none() | st.floats(0, 100), max_size=60), st.floats(0.01, 100))
def test_idleness_is_bounded(values, period_s):
    """A stretch is not longer than what was watched, a share is a share, and no idle sample means no stretch."""
    found = gpu.idleness(series(*values, period_s=period_s))
    known = [v for v in values if v is not None]
    assert (found is None) == (len(known) < gpu.MIN_SAMPLES)
    if found is not None:
        assert 0 <= found.share_pct <= 100
        assert 0 <= found.longest_s <= 2 * period_s * len(values) * (1 + 1e-9)
        assert (found.share_pct == 0) == (found.longest_s == 0)
        assert min(known) <= found.p95_pct <= max(known)


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from(REASONS)), st.none() | st.floats(0, 3000), st.none() | st.floats(0, 110)),
        max_size=40,
    )
)
def test_throttling_is_bounded(made):
    """Each sample counts for one cause at most, and the loss of clocks is a share."""
    found = gpu.throttling(
        2,
        [
            GpuSample(time_s=i, index=2, throttle_reasons=tuple(reasons), sm_clock_mhz=clock, temperature_c=heat)
            for i, (reasons, clock, heat) in enumerate(made)
        ],
    )
    if found is not None:
        assert found.thermal_pct + found.hardware_pct + found.power_pct <= 100 + 1e-9
        assert found.forced_pct <= 100 + 1e-9
        assert found.slowed_pct is None or 0 <= found.slowed_pct <= 100


def test_the_newest_of_what_is_sampled_rarely():
    """A limit that was raised in mid-run counts as it stands."""
    assert gpu.newest(series(None, 80.0, None, 90.0, None), lambda s: s.utilization_pct) == 90.0
    assert gpu.newest(series(None), lambda s: s.utilization_pct) is None
