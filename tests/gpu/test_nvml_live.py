"""On a real NVIDIA GPU: what NVML says is true to what the GPU was given to do.

Run with ``pytest -m gpu tests/gpu``. Skipped without a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stallmeter.records import GpuSample
from stallmeter.sources.nvml import NvmlSource

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MAY_LACK = {
    "slowdown temperature",
    "PCIe link",
    "widest PCIe link",
    "PCIe traffic",
    "ECC errors",
    "memory of this job",
    "throttle reasons",
    "activity of SMs, Tensor Cores and memory",
}
"""What some driver, board or virtual machine does not give; all else is there on each."""


@pytest.fixture
def source() -> Iterator[NvmlSource]:
    made = NvmlSource()
    made.check()
    assert made.reason is None
    yield made
    made.close()


def while_busy(source: NvmlSource, work: Callable[[], Any], seconds: float = 1.5) -> GpuSample:
    """A sample that covers a second of work, which is kept queued."""

    def keep_busy(until: float) -> None:
        while time.perf_counter() < until:
            for _ in range(20):
                work()
            torch.cuda.synchronize()

    keep_busy(time.perf_counter() + 0.3)  # the clocks rise, algorithms are chosen
    source.sample(time.time())
    keep_busy(time.perf_counter() + seconds)
    (sample,) = (found for found in source.sample(time.time()) if isinstance(found, GpuSample))
    return sample


def test_what_every_gpu_says(source: NvmlSource) -> None:
    assert set(source.not_measured) <= MAY_LACK
    first = NvmlSource()
    (sample,) = (found for found in first.sample(time.time()) if isinstance(found, GpuSample))
    first.close()
    properties = torch.cuda.get_device_properties(0)
    assert sample.name == properties.name
    assert sample.compute_capability == float(f"{properties.major}.{properties.minor}")
    assert sample.memory_total_bytes == pytest.approx(properties.total_memory, rel=0.05)
    assert 0 < sample.power_w <= 1.5 * sample.power_limit_w
    assert 0 < sample.temperature_c < 110
    assert 0 < sample.sm_clock_mhz <= sample.sm_clock_max_mhz


def test_memory_in_use(source: NvmlSource) -> None:
    before = source.sample(time.time())[0].memory_used_bytes
    held = torch.ones(2 * 1024**3, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    after = source.sample(time.time())[0].memory_used_bytes
    assert after - before == pytest.approx(held.numel(), rel=0.1)


def test_busy_and_idle(source: NvmlSource) -> None:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    assert while_busy(source, lambda: a @ a).utilization_pct > 90
    time.sleep(0.5)
    source.sample(time.time())
    time.sleep(1.5)
    (idle,) = (found for found in source.sample(time.time()) if isinstance(found, GpuSample))
    assert idle.utilization_pct < 10


def test_tensor_cores(source: NvmlSource) -> None:
    """At work in 16 bits, and not in 32 bits while TF32 is off, which is PyTorch's default for products."""
    a = torch.randn(4096, 4096, device="cuda")
    half = a.to(torch.bfloat16)
    at_work = while_busy(source, lambda: half @ half)
    if at_work.tensor_active_pct is None:
        pytest.skip("no GPM: before Hopper")
    assert at_work.tensor_active_pct > 20
    assert at_work.sm_active_pct > 50
    assert torch.get_float32_matmul_precision() == "highest"
    assert while_busy(source, lambda: a @ a).tensor_active_pct < 1


def test_copies_to_the_device(source: NvmlSource) -> None:
    """Traffic over PCIe, in the direction of the copies."""
    batch = torch.ones(64 * 1024**2, dtype=torch.uint8).pin_memory()
    sample = while_busy(source, lambda: batch.to("cuda", non_blocking=True))
    if sample.pcie_rx_bytes_per_s is None:
        pytest.skip("PCIe traffic is not measured here")
    assert sample.pcie_rx_bytes_per_s > 1e9
    assert sample.pcie_tx_bytes_per_s < sample.pcie_rx_bytes_per_s
