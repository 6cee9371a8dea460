"""GPM, the performance counters of Hopper and later: how busy the multiprocessors and Tensor Cores really are."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from .devices import GpuDevice

MIN_INTERVAL_S = 0.1
"""NVML's documentation: two samples shall be at least 100 ms apart."""

_MIB = 1048576.0

METRICS = (
    ("utilization_pct", "NVML_GPM_METRIC_GRAPHICS_UTIL", 1.0),
    ("sm_active_pct", "NVML_GPM_METRIC_SM_UTIL", 1.0),
    ("sm_occupancy_pct", "NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    ("tensor_active_pct", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    ("dram_active_pct", "NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    ("pcie_tx_bytes_per_s", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", _MIB),
    ("pcie_rx_bytes_per_s", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", _MIB),
)
"""Field of a GpuSample, the binding's constant, and what one unit of GPM is in the field's unit."""


class Gpm:
    """Counters of one device between two readings.

    Args:
        nvml: The pynvml module, or what stands in for it.
        device: What to read.

    Raises:
        NVMLError: The driver has no GPM, or the buffers cannot be had.
        AttributeError: The binding has no GPM.
    """

    def __init__(self, nvml: Any, device: GpuDevice) -> None:
        self._nvml = nvml
        self._device = device
        self._samples: list[Any] = []
        self._taken_s: float | None = None
        self.supported = bool(nvml.nvmlGpmQueryDeviceSupport(device.board).isSupportedDevice)
        """Whether the device has these counters."""
        if self.supported:
            self._question = self._ask_for()
            for _ in range(2):
                self._samples.append(nvml.nvmlGpmSampleAlloc())

    def read(self, time_s: float) -> dict[str, float]:
        """Return fields of a GpuSample, means since the last reading; nothing the first time and when called too soon.

        Args:
            time_s: Unix time.

        Raises:
            NVMLError: The counters cannot be read.
        """
        if self._taken_s is not None and 0 <= time_s - self._taken_s < MIN_INTERVAL_S:
            return {}
        first, self._taken_s = self._taken_s is None, None
        before, now = self._samples
        self._take(now)
        self._taken_s = time_s
        self._samples.reverse()
        return {} if first else self._compare(before, now)

    def close(self) -> None:
        """Free the buffers."""
        samples, self._samples = self._samples, []
        for sample in samples:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)

    def _ask_for(self) -> Any:
        nvml = self._nvml
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(METRICS)
        for slot, (_, constant, _) in enumerate(METRICS):
            question.metrics[slot].metricId = getattr(nvml, constant)
        return question

    def _take(self, sample: Any) -> None:
        if self._device.gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(self._device.handle, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._device.board, self._device.gpu_instance, sample)

    def _compare(self, before: Any, now: Any) -> dict[str, float]:
        self._question.sample1, self._question.sample2 = before, now
        self._nvml.nvmlGpmMetricsGet(self._question)
        found = {}
        for slot, (field, _, scale) in enumerate(METRICS):
            answer = self._question.metrics[slot]
            if answer.nvmlReturn == 0 and math.isfinite(answer.value):
                found[field] = answer.value * scale
        return found
