"""What NVML is asked about a device, how often, and into which fields of a GpuSample it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .processes import job_memory

Read = Callable[[Any, Any], dict[str, Any]]
"""From the NVML module and a device handle to fields of a GpuSample."""

RARELY_S = 10.0
"""For what changes slowly or costs much: reading PCIe traffic holds the calling thread for 20 ms each way."""

STATIC_S = 60.0
"""For what hardly ever changes."""

THROTTLE_REASONS = (
    "gpu_idle",
    "application_clocks",
    "power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "power_brake",
    "display_clocks",
    "board_limit",
    "reliability",
)
"""Names of the bits of NVML's clocks-event reasons, lowest first (nvml.h, nvmlClocksEventReasons)."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One question; what the device cannot answer costs the question's own fields only."""

    name: str
    """In words, for the user."""
    reads: tuple[Read, ...]
    """The first that the device supports is used."""
    every_s: float = 0.0
    """Least time between two readings; 0 asks in every sample."""
    board: bool = False
    """True when all MIG instances of a GPU share it: it is then read from the GPU."""
    in_gpm: bool = False
    """True when GPM gives the same for less, where there is GPM."""


def _one(field: str, call: str, *kinds: str, scale: float = 1.0, per: float = 1.0) -> Read:
    """Read one number, times ``scale``, divided by ``per``; ``kinds`` are names of the binding's constants."""

    def read(nv: Any, gpu: Any) -> dict[str, Any]:
        return {field: getattr(nv, call)(gpu, *(getattr(nv, kind) for kind in kinds)) * scale / per}

    return read


def _whole(field: str, call: str, *kinds: str) -> Read:
    read = _one(field, call, *kinds)
    return lambda nv, gpu: {field: int(read(nv, gpu)[field])}


def _both(first: Read, second: Read) -> Read:
    return lambda nv, gpu: {**first(nv, gpu), **second(nv, gpu)}


def _utilization(nv: Any, gpu: Any) -> dict[str, Any]:
    rates = nv.nvmlDeviceGetUtilizationRates(gpu)
    return {"utilization_pct": float(rates.gpu), "memory_controller_pct": float(rates.memory)}


def _memory(info: Any) -> dict[str, Any]:
    return {"memory_used_bytes": int(info.used), "memory_total_bytes": int(info.total)}


def _limit_from_margin(nv: Any, gpu: Any) -> dict[str, Any]:
    margin = nv.nvmlDeviceGetMarginTemperature(gpu)
    return {"temperature_limit_c": float(nv.nvmlDeviceGetTemperatureV(gpu, nv.NVML_TEMPERATURE_GPU) + margin)}


def _throttle(call: str) -> Read:
    return lambda nv, gpu: {"throttle_reasons": throttle_reasons(getattr(nv, call)(gpu))}


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Name the bits of a mask; a bit that this version does not know is called by its number."""
    bits = (bit for bit in range(mask.bit_length()) if mask >> bit & 1)
    return tuple(THROTTLE_REASONS[bit] if bit < len(THROTTLE_REASONS) else f"bit_{bit}" for bit in bits)


def _capability(nv: Any, gpu: Any) -> dict[str, Any]:
    major, minor = nv.nvmlDeviceGetCudaComputeCapability(gpu)
    return {"compute_capability": float(f"{major}.{minor}")}


def _ecc(field: str, kind: str) -> Read:
    return _whole(field, "nvmlDeviceGetTotalEccErrors", kind, "NVML_VOLATILE_ECC")


def _processes(call: str) -> Read:
    return lambda nv, gpu: {"job_memory_bytes": job_memory(getattr(nv, call)(gpu))}


_THROUGHPUT = "nvmlDeviceGetPcieThroughput"

METRICS = (
    Metric("utilization", (_utilization,)),
    Metric(
        "memory",
        (
            lambda nv, gpu: _memory(nv.nvmlDeviceGetMemoryInfo(gpu, version=nv.nvmlMemory_v2)),
            # drivers before 510; it counts the driver's own memory as used
            lambda nv, gpu: _memory(nv.nvmlDeviceGetMemoryInfo(gpu)),
        ),
    ),
    Metric("power", (_one("power_w", "nvmlDeviceGetPowerUsage", per=1e3),)),
    Metric("power limit", (_one("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", per=1e3),)),
    Metric(
        "temperature",
        (
            _one("temperature_c", "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
            _one("temperature_c", "nvmlDeviceGetTemperatureV", "NVML_TEMPERATURE_GPU"),
        ),
        board=True,
    ),
    Metric("SM clock", (_one("sm_clock_mhz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),), board=True),
    Metric("memory clock", (_one("memory_clock_mhz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),), board=True),
    Metric(
        "throttle reasons",
        (_throttle("nvmlDeviceGetCurrentClocksEventReasons"), _throttle("nvmlDeviceGetCurrentClocksThrottleReasons")),
        board=True,
    ),
    Metric(
        "memory of this job",
        (_processes("nvmlDeviceGetComputeRunningProcesses_v3"), _processes("nvmlDeviceGetComputeRunningProcesses_v2")),
        every_s=RARELY_S,
    ),
    Metric(
        "PCIe traffic",
        (
            _both(
                _one("pcie_tx_bytes_per_s", _THROUGHPUT, "NVML_PCIE_UTIL_TX_BYTES", scale=1e3),
                _one("pcie_rx_bytes_per_s", _THROUGHPUT, "NVML_PCIE_UTIL_RX_BYTES", scale=1e3),
            ),
        ),
        every_s=RARELY_S,
        board=True,
        in_gpm=True,
    ),
    Metric(
        "PCIe link",
        (
            _both(
                _whole("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
                _whole("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
            ),
        ),
        every_s=RARELY_S,
        board=True,
    ),
    Metric(
        "ECC errors",
        (
            _both(
                _ecc("ecc_corrected", "NVML_MEMORY_ERROR_TYPE_CORRECTED"),
                _ecc("ecc_uncorrected", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
            ),
        ),
        every_s=RARELY_S,
        board=True,
    ),
    Metric(
        "highest SM clock",
        (_one("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),),
        every_s=STATIC_S,
        board=True,
    ),
    Metric(
        "highest memory clock",
        (_one("memory_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM"),),
        every_s=STATIC_S,
        board=True,
    ),
    Metric(
        "slowdown temperature",
        (
            _one("temperature_limit_c", "nvmlDeviceGetTemperatureThreshold", "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN"),
            _limit_from_margin,  # the older call is being withdrawn from Ada on
        ),
        every_s=STATIC_S,
        board=True,
    ),
    Metric(
        "widest PCIe link",
        (
            _both(
                _whole("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
                _whole("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
            ),
        ),
        every_s=STATIC_S,
        board=True,
    ),
    Metric("compute capability", (_capability,), every_s=STATIC_S, board=True),
)
"""Every question, the frequent ones first."""
