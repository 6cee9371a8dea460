"""What trackers are sent: few keys with units, tails as well as means, never more points than a curve can bear."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.delivery.periods import Period, hardware_metrics, period_s, step_metrics
from stallmeter.records import GpuSample, HostSample, NetworkSample

from ..rules.windows import device_steps, step


def test_a_period_of_steps() -> None:
    steps = [step(i, total_s=0.1, data_wait_s=0.02, samples=8) for i in range(99)]
    steps.append(step(99, total_s=2.1, data_wait_s=0.02, validation_s=2.0, callbacks_s=0.01, samples=8))
    found = step_metrics(steps, 10.0, 100)
    assert found["step_time_ms"] == pytest.approx(100)
    assert found["step_time_max_ms"] == pytest.approx(100)
    assert found["data_wait_pct"] == pytest.approx(20)
    assert found["callbacks_pct"] == pytest.approx(0.1)
    assert found["steps_per_s"] == 10
    assert found["samples_per_s"] == 80
    assert len(found) <= 12


def test_each_step_counts_for_as_many_as_it_stands_for() -> None:
    """A slow second is recorded whole, of a fast one only one step in sixteen."""
    slow = [step(i, total_s=0.05, data_wait_s=0.0475, samples=4) for i in range(20)]
    fast = [step(20 + 16 * i, total_s=0.001, data_wait_s=0.0, samples=8, every=16) for i in range(63)]
    found = step_metrics(slow + fast, 2.0, 1020)
    assert found["data_wait_pct"] == pytest.approx(47, abs=1)
    assert found["step_time_ms"] == pytest.approx(2.0, abs=0.05)
    assert found["step_time_ms"] * found["steps_per_s"] == pytest.approx(1000, rel=0.02)
    assert found["step_time_p95_ms"] == pytest.approx(1)
    assert found["samples_per_s"] == pytest.approx((20 * 4 + 1000 * 8) / 2, rel=0.01)


def test_unknown_batch_sizes_give_no_throughput_in_samples() -> None:
    assert "samples_per_s" not in step_metrics([step(0, samples=None), step(1)], 1.0, 2)


def test_hardware_that_was_not_measured_has_no_key() -> None:
    eth = NetworkSample(name="eth0", received_bytes_per_s=3e6, sent_bytes_per_s=1e6)
    host = [
        HostSample(time_s=1.0, job_cpus=1.0, memory_limit_bytes=1000, memory_limit_used_bytes=250),
        HostSample(time_s=2.0, job_cpus=2.0, network=(eth, eth)),
    ]
    gpus = [GpuSample(time_s=1.0, index=1, utilization_pct=50.0, power_w=None), GpuSample(time_s=2.0, index=1)]
    assert hardware_metrics(host, gpus) == {
        "job_cpus": 1.5,
        "memory_used_pct": 25.0,
        "net_recv_mb_s": 6.0,
        "net_sent_mb_s": 2.0,
        "gpu1_util_pct": 50.0,
    }


def test_a_gpu_in_full() -> None:
    """What is sampled rarely has its mean too, and throttle reasons become shares of the samples."""
    rare = {"job_memory_bytes": 3 * 10**9, "pcie_tx_bytes_per_s": 2e6, "pcie_rx_bytes_per_s": 5e6, "ecc_corrected": 4}
    gpus = [
        GpuSample(
            time_s=float(i),
            index=0,
            sm_active_pct=60.0 + 10 * i,
            sm_occupancy_pct=30.0,
            tensor_active_pct=20.0,
            dram_active_pct=40.0,
            throttle_reasons=(("power_cap",), ("hw_slowdown", "hw_thermal"), (), ("power_cap", "gpu_idle"))[i],
            **(rare if i == 0 else {}),
        )
        for i in range(4)
    ]
    assert hardware_metrics([], gpus) == {
        "gpu0_job_mem_mb": 3000.0,
        "gpu0_sm_pct": 75.0,
        "gpu0_occupancy_pct": 30.0,
        "gpu0_tensor_pct": 20.0,
        "gpu0_dram_pct": 40.0,
        "gpu0_pcie_tx_mb_s": 2.0,
        "gpu0_pcie_rx_mb_s": 5.0,
        "gpu0_heat_slowed_pct": 25.0,
        "gpu0_hw_slowed_pct": 25.0,
        "gpu0_power_capped_pct": 50.0,
        "gpu0_ecc_corrected": 4.0,
    }


def test_a_period_thins_out_fast_steps_but_counts_them() -> None:
    period = Period(100.0, size=64)
    for i in range(10_000):
        period.add(step(i, samples=1))
    record = period.close(110.0, 9_999)
    assert record is not None
    assert record.metrics["steps_per_s"] == 1000
    assert record.metrics["samples_per_s"] == 1000
    assert (record.duration_s, record.tracker_step) == (10.0, 9_999)


def test_an_outlier_raises_the_maximum_and_nothing_else() -> None:
    period = Period(100.0)
    period.count(1000)
    for i in range(10):
        period.add(step(i))
    plain = step_metrics([step(0)], 10.0, 1000)
    period.add(step(10, total_s=3.5, data_wait_s=3.0, outlier=True))
    record = period.close(110.0, 999)
    assert record is not None
    assert record.metrics["steps_per_s"] == 100
    assert record.metrics["step_time_ms"] == pytest.approx(plain["step_time_ms"])
    assert record.metrics["step_time_max_ms"] > plain["step_time_max_ms"]
    assert record.metrics["data_wait_max_ms"] == 3000


def test_an_empty_period_is_no_record() -> None:
    assert Period(100.0).close(110.0, 0) is None


@given(st.integers(1, 30))
def test_a_curve_stays_below_two_thousand_points(days: int) -> None:
    elapsed, points = 0.0, 0
    while elapsed < days * 86_400:
        elapsed += period_s(elapsed)
        points += 1
    assert points <= 2_000


def test_the_exposed_wait_of_a_period() -> None:
    """The mean over the steps whose events could be read; no key without one."""
    period = Period(0.0)
    for i in range(4):
        period.add(step(i, data_wait_s=0.02))
    for record in (*device_steps(3, wait_s=0.02, exposed=0.5), *device_steps(1, exposed_wait_s=None)):
        period.add(record)
    closed = period.close(10.0, 3)
    assert closed is not None
    assert closed.metrics["exposed_wait_ms"] == pytest.approx(10.0)
    assert closed.metrics["data_wait_ms"] == pytest.approx(20.0)
    bare = Period(0.0)
    bare.add(step(0))
    assert "exposed_wait_ms" not in bare.close(10.0, 0).metrics  # type: ignore[union-attr]
