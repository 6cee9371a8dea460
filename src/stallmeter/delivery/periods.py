"""What a reporting period looks like on a tracker: short keys with units, means and tails instead of raw steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ..records import DeviceStep, GpuSample, HostSample, StepRecord, WindowRecord
from ..records.stats import Reservoir, mean, percent, scaled, weighted_percentile, weighted_sum
from ..window import gpu_samples as gpu

MB = 1e6
BASE_PERIOD_S = 10.0
PERIODS_PER_RUN = 250
"""The period grows to 1/250 of the run so far, which keeps a curve under 2,000 points for 30 days."""


def period_s(elapsed_s: float, base_s: float = BASE_PERIOD_S) -> float:
    """Return the length of the reporting period after ``elapsed_s`` seconds of a run."""
    return max(base_s, elapsed_s / PERIODS_PER_RUN)


def step_metrics(steps: Sequence[StepRecord], duration_s: float, count: int) -> dict[str, float]:
    """Describe the steps of one period.

    Where steps come fast fewer of them are recorded: each stands for as many as its `StepRecord.every` says. Else what
    is slow for a while, and is recorded whole, would outweigh all that is fast.

    Args:
        steps: The steps, or samples of them.
        duration_s: Length of the period.
        count: How many steps it really had.
    """
    if not steps or duration_s <= 0:
        return {}
    weights = [s.every for s in steps]
    times, waits = [s.step_time_s for s in steps], [s.data_wait_s for s in steps]
    total = weighted_sum(times, weights)
    samples = [s.samples for s in steps if s.samples is not None]
    found = {
        "step_time_ms": total / sum(weights) * 1e3,
        "step_time_p95_ms": weighted_percentile(times, weights, 0.95) * 1e3,
        "step_time_max_ms": max(times) * 1e3,
        "data_wait_ms": weighted_sum(waits, weights) / sum(weights) * 1e3,
        "data_wait_p95_ms": weighted_percentile(waits, weights, 0.95) * 1e3,
        "data_wait_max_ms": max(waits) * 1e3,
        "steps_per_s": count / duration_s,
    }
    if total > 0:
        spent = [(s.callbacks_s or 0.0) + (s.logging_s or 0.0) for s in steps]
        found["data_wait_pct"] = 100.0 * weighted_sum(waits, weights) / total
        found["callbacks_pct"] = 100.0 * weighted_sum(spent, weights) / total
    if len(samples) == len(steps):
        found["samples_per_s"] = weighted_sum(samples, weights) / sum(weights) * count / duration_s
    return found


_HOST: Mapping[str, Callable[[HostSample], float | None]] = {
    "job_cpus": lambda s: s.job_cpus,
    "main_cpus": lambda s: s.main_cpus,
    "others_cpus": lambda s: s.others_cpus,
    "cpu_user_pct": lambda s: s.cpu_user_pct,
    "cpu_system_pct": lambda s: s.cpu_system_pct,
    "cpu_max_core_pct": lambda s: s.cpu_max_core_pct,
    "iowait_pct": lambda s: s.cpu_iowait_pct,
    "steal_pct": lambda s: s.cpu_steal_pct,
    "throttled_pct": lambda s: s.cpu_throttled_pct,
    "job_rss_mb": lambda s: scaled(s.job_rss_bytes, MB),
    "workers_rss_mb": lambda s: scaled(s.children_rss_bytes, MB),
    "memory_used_pct": lambda s: percent(s.memory_limit_used_bytes, s.memory_limit_bytes),
    "swap_used_mb": lambda s: scaled(s.swap_used_bytes, MB),
    "disk_read_mb_s": lambda s: scaled(s.disk_read_bytes_per_s, MB),
    "disk_write_mb_s": lambda s: scaled(s.disk_write_bytes_per_s, MB),
    "disk_busy_pct": lambda s: s.disk_busy_pct,
    "net_recv_mb_s": lambda s: scaled(sum(n.received_bytes_per_s for n in s.network), MB) if s.network else None,
    "net_sent_mb_s": lambda s: scaled(sum(n.sent_bytes_per_s for n in s.network), MB) if s.network else None,
    "psi_cpu_pct": lambda s: s.pressure_cpu_pct,
    "psi_io_pct": lambda s: s.pressure_io_pct,
    "psi_memory_pct": lambda s: s.pressure_memory_pct,
    "open_files": lambda s: s.open_files,
}

_GPU: Mapping[str, Callable[[GpuSample], float | None]] = {
    "util_pct": lambda s: s.utilization_pct,
    "mem_mb": lambda s: scaled(s.memory_used_bytes, MB),
    "mem_pct": lambda s: percent(s.memory_used_bytes, s.memory_total_bytes),
    "mem_ctl_pct": lambda s: s.memory_controller_pct,
    "power_w": lambda s: s.power_w,
    "temp_c": lambda s: s.temperature_c,
    "sm_mhz": lambda s: s.sm_clock_mhz,
    "mem_mhz": lambda s: s.memory_clock_mhz,
    "job_mem_mb": lambda s: scaled(s.job_memory_bytes, MB),
    "sm_pct": lambda s: s.sm_active_pct,
    "occupancy_pct": lambda s: s.sm_occupancy_pct,
    "tensor_pct": lambda s: s.tensor_active_pct,
    "dram_pct": lambda s: s.dram_active_pct,
    "pcie_tx_mb_s": lambda s: scaled(s.pcie_tx_bytes_per_s, MB),
    "pcie_rx_mb_s": lambda s: scaled(s.pcie_rx_bytes_per_s, MB),
    "heat_slowed_pct": lambda s: _share(s.throttle_reasons, gpu.THERMAL),
    "hw_slowed_pct": lambda s: _share(s.throttle_reasons, gpu.HARDWARE),
    "power_capped_pct": lambda s: _share(s.throttle_reasons, gpu.POWER),
    "ecc_corrected": lambda s: s.ecc_corrected,
    "ecc_uncorrected": lambda s: s.ecc_uncorrected,
}


def hardware_metrics(host: Sequence[HostSample], gpus: Iterable[GpuSample]) -> dict[str, float]:
    """Return the mean of each hardware metric over one period; what was not measured has no key."""
    found = {key: value for key, of in _HOST.items() if (value := mean(map(of, host))) is not None}
    by_index: dict[int, list[GpuSample]] = {}
    for sample in gpus:
        by_index.setdefault(sample.index, []).append(sample)
    for index, samples in sorted(by_index.items()):
        for key, of_gpu in _GPU.items():
            value = mean(map(of_gpu, samples))
            if value is not None:
                found[f"gpu{index}_{key}"] = value
    return found


class Period:
    """Collects what happens until a WindowRecord is due.

    Args:
        started_s: Unix time at which it begins.
        size: Most steps kept; beyond it every second one is left out, again and again.
    """

    def __init__(self, started_s: float, size: int = 4096) -> None:
        self.started_s = started_s
        self._count = 0
        self._steps: Reservoir[StepRecord] = Reservoir(size)
        self._longest_s = self._longest_wait_s = 0.0
        self._exposed_s, self._timed = 0.0, 0
        self._host: list[HostSample] = []
        self._gpus: list[GpuSample] = []

    def add(self, record: object) -> None:
        """Take a step, its part on the device, or a hardware sample; anything else is ignored."""
        if isinstance(record, StepRecord):
            self._add_step(record)
        elif isinstance(record, DeviceStep):
            if record.exposed_wait_s is not None:
                self._exposed_s += record.exposed_wait_s
                self._timed += 1
        elif isinstance(record, HostSample):
            self._host.append(record)
        elif isinstance(record, GpuSample):
            self._gpus.append(record)

    def count(self, steps: int) -> None:
        """Say how many steps there were, of which `add` gets a sample and the outliers."""
        self._count += steps

    def _add_step(self, step: StepRecord) -> None:
        self._longest_s = max(self._longest_s, step.step_time_s)
        self._longest_wait_s = max(self._longest_wait_s, step.data_wait_s)
        if not step.outlier:
            self._steps.add(step)

    def close(self, time_s: float, tracker_step: int) -> WindowRecord | None:
        """Return the period's record; None when nothing happened in it."""
        duration = time_s - self.started_s
        metrics = step_metrics(self._steps.items, duration, max(self._count, len(self._steps)))
        if metrics:  # the slowest of all, which the sample may not hold
            metrics["step_time_max_ms"] = self._longest_s * 1e3
            metrics["data_wait_max_ms"] = self._longest_wait_s * 1e3
        if metrics and self._timed:
            metrics["exposed_wait_ms"] = 1e3 * self._exposed_s / self._timed
        hardware = hardware_metrics(self._host, self._gpus)
        if not metrics and not hardware:
            return None
        return WindowRecord(
            time_s=time_s, tracker_step=tracker_step, duration_s=duration, metrics=metrics, hardware=hardware
        )


def _share(reasons: Collection[str] | None, of: Collection[str]) -> float | None:
    """100 for a sample with one of these reasons, 0 for one without: their mean is a share of the time."""
    return None if reasons is None else 100.0 * any(reason in of for reason in reasons)
