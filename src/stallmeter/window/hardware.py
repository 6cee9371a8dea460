"""Signals of the hardware: what its samples and the device's timeline say. What was not measured is None."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from ..machine.budget import Budget
from ..records import GpuSample, HostSample
from . import exposed_wait as exposure
from . import gpu_samples as gpu
from . import network
from .store import MIN_STEADY_STEPS, Store
from .trends import Trend, trend


class HardwareSignals(Store):
    """What is known about the host, its network, the GPUs and the device's timeline."""

    @property
    def budget(self) -> Budget | None:
        """What the job may use; None in recordings that do not say."""
        facts = self.facts.get("budget")
        return Budget(**facts) if isinstance(facts, dict) else None

    # -- the host ------------------------------------------------------------------------------------------------------

    @property
    def usable_cpus(self) -> float | None:
        """CPUs that the job may use."""
        return self.host_median(lambda s: s.usable_cpus)

    @property
    def cpus_per_rank(self) -> float | None:
        """CPUs that this rank may use: its part of those that the job may use, where several ranks share a node."""
        budget = self.budget
        if budget is None or budget.ranks_on_node == 1:
            return self.usable_cpus
        return budget.cpus_per_rank

    @property
    def cpu_throttled_pct(self) -> float | None:
        """Share of the quota's periods in which the job was throttled, percent."""
        return self.host_median(lambda s: s.cpu_throttled_pct)

    @property
    def others_cpus(self) -> float | None:
        """CPUs that processes outside the job keep busy on its CPUs; None where other ranks may be among them."""
        budget = self.budget
        shared = budget is not None and budget.ranks_on_node > 1 and not budget.bound_per_rank
        return self.host_median(lambda s: None if shared and s.ranks_cpus is None else s.others_cpus)

    @property
    def main_cpus(self) -> float | None:
        """CPUs that the training process alone keeps busy."""
        return self.host_median(lambda s: s.main_cpus)

    @property
    def job_cpus(self) -> float | None:
        """CPUs that this rank's own processes keep busy, workers included."""
        return self.host_median(lambda s: s.job_cpus)

    @property
    def cpu_busy_pct(self) -> float | None:
        """Share of the usable CPUs that this rank, other ranks and others keep busy, median over the run."""
        return self.host_median(_cpu_busy_pct)

    @property
    def iowait_pct(self) -> float | None:
        """Share of the host's CPU time idle while something waits for storage, median over the run."""
        return self.host_median(lambda s: s.cpu_iowait_pct)

    @property
    def memory_peak_pct(self) -> float | None:
        """Highest share of the memory limit in use."""
        return self._memory_peak_pct

    @property
    def memory_left_bytes(self) -> float | None:
        """Memory left under the limit in the newest sample that tells."""
        for s in reversed(self.host.items):
            if s.memory_limit_bytes is not None and s.memory_limit_used_bytes is not None:
                return max(0, s.memory_limit_bytes - s.memory_limit_used_bytes)
        return None

    @property
    def rss_trend(self) -> Trend | None:
        """Trend of the job's resident memory, bytes."""
        return self.host_trend("job_rss_bytes")

    def host_median(self, of: Callable[[HostSample], float | None]) -> float | None:
        """Median of a host signal over the run; None when it was never measured."""
        values = [v for s in self.host.items if (v := of(s)) is not None]
        return statistics.median(values) if values else None

    def host_trend(self, name: str) -> Trend | None:
        """Trend of a signal of `HostSample` since the first steps, in its unit; None with too few samples."""
        begun = self._begun_s
        return self.remember(
            f"trend {name}",
            lambda: trend(
                [(s.time_s, v) for s in self.host.items if s.time_s >= begun and (v := getattr(s, name)) is not None]
            ),
        )

    @property
    def links(self) -> Mapping[str, network.Link] | None:
        """Traffic of each network interface over the run; None when there is none."""
        return self.remember("links", lambda: network.links(self.host.items)) or None

    # -- GPUs ----------------------------------------------------------------------------------------------------------

    @property
    def accelerator(self) -> str | None:
        """Class of the accelerator that the framework chose."""
        name = self.facts.get("accelerator")
        return name if isinstance(name, str) else None

    @property
    def gpu_count(self) -> int | None:
        """GPUs that the job may see and that can be measured."""
        return len(self.gpus) or None

    @property
    def own_gpus(self) -> Sequence[int]:
        """Positions, among the visible GPUs, of those that this rank uses: all where it is alone and nothing tells.

        The allocator of this process knows best, then NVML's list of processes, then the number of the rank on its
        node. Where several ranks see GPUs and none of these tells, there is none.
        """
        return self.remember("own GPUs", self._find_own_gpus)

    def _find_own_gpus(self) -> Sequence[int]:
        visible, budget = sorted(self.gpus), self.budget
        allocated = {index: a.reserved_peak_bytes for index, a in self.allocators.items() if index in self.gpus}
        named = {index: gpu.newest(self.gpus[index].items, lambda s: s.job_memory_bytes) for index in visible}
        if found := gpu.in_use(allocated) or gpu.in_use(named):
            return found
        if budget is None or budget.ranks_on_node == 1 or len(visible) == 1:
            return visible
        return [budget.local_rank] if budget.ranks_on_node <= len(visible) and budget.local_rank in visible else []

    @property
    def busiest_gpu_pct(self) -> float | None:
        """Mean utilization of this rank's GPU, the one that was used most, while steps ran."""
        busiest = self._busiest_gpu
        return None if busiest is None else busiest[0]

    @property
    def _busiest_gpu(self) -> tuple[float, int] | None:
        """Mean utilization and index of the GPU that was used most."""
        return self.remember("busiest GPU", self._find_busiest_gpu)

    def _find_busiest_gpu(self) -> tuple[float, int] | None:
        means = ((gpu.mean(self._at_work(index), lambda s: s.utilization_pct), -index) for index in self.own_gpus)
        found = max(((mean, order) for mean, order in means if mean is not None), default=None)
        return None if found is None else (found[0], -found[1])

    def _at_work(self, index: int) -> Sequence[GpuSample]:
        """Samples of a GPU since the first steps."""
        begun = self._begun_s
        return [s for s in self.gpus[index].items if s.time_s >= begun]

    @property
    def gpu_idleness(self) -> gpu.Idleness | None:
        """Idle samples of this rank's GPU, the one that was used most, while steps ran."""
        busiest = self._busiest_gpu
        if busiest is None:
            return None
        return self.remember("GPU idleness", lambda: gpu.idleness(self._at_work(busiest[1])))

    @property
    def gpu_throttling(self) -> gpu.Throttling | None:
        """What held the clocks down of this rank's GPU, the one where that happened most; None when none tells."""
        return self.remember("GPU throttling", self._find_throttling)

    def _find_throttling(self) -> gpu.Throttling | None:
        found = [t for index in self.own_gpus if (t := gpu.throttling(index, self._at_work(index))) is not None]
        return max(found, key=lambda t: (t.forced_pct, t.power_pct), default=None)

    @property
    def gpu_memory(self) -> gpu.Memory | None:
        """Highest use of memory of this rank's GPU, the one that was filled most; None when none tells."""
        return self.remember("GPU memory", self._find_gpu_memory)

    def _find_gpu_memory(self) -> gpu.Memory | None:
        known = ((index, self.gpu_memory_total_bytes(index)) for index in self.own_gpus)
        found = [
            gpu.memory(index, peak, int(total), self.allocators.get(index))
            for index, total in known
            if total and (peak := self.gpu_memory_peak_bytes.get(index)) is not None
        ]
        return max(found, key=lambda m: m.needed_pct, default=None)

    def gpu_memory_total_bytes(self, index: int) -> float | None:
        """Memory of a GPU; None when it does not tell."""
        return gpu.newest(self.gpus[index].items, lambda s: s.memory_total_bytes)

    @property
    def gpu_memory_trends(self) -> Mapping[int, Trend] | None:
        """Trend of the memory in use, bytes, of each GPU of this rank; None with too few samples."""
        trends = {index: self.gpu_trend(index, "memory_used_bytes") for index in self.own_gpus}
        return {index: known for index, known in trends.items() if known is not None} or None

    def gpu_trend(self, index: int, name: str) -> Trend | None:
        """Trend of a signal of `GpuSample` since the first steps, in its unit; None with too few samples."""
        return self.remember(
            f"GPU {index} trend {name}",
            lambda: trend([(s.time_s, v) for s in self._at_work(index) if (v := getattr(s, name)) is not None]),
        )

    def gpu_memory_left_bytes(self, index: int) -> float | None:
        """Memory that nobody uses on a GPU, as last seen."""
        used = gpu.newest(self.gpus[index].items, lambda s: s.memory_used_bytes)
        total = self.gpu_memory_total_bytes(index)
        return None if used is None or total is None else max(0.0, total - used)

    @property
    def sm_active_pct(self) -> float | None:
        """Mean share of the multiprocessors that had work, of the GPU that was used most; None before Hopper."""
        return self._busiest_mean(lambda s: s.sm_active_pct)

    @property
    def tensor_cores(self) -> gpu.TensorCores | None:
        """Use of the Tensor Cores of the GPU that was used most; None where neither setting nor use are known."""
        busiest, precision = self._busiest_gpu, self.facts.get("precision")
        if busiest is None:
            return None
        capability = gpu.newest(self.gpus[busiest[1]].items, lambda s: s.compute_capability)
        active = self._busiest_mean(lambda s: s.tensor_active_pct)
        full = precision.startswith(("32", "64")) if isinstance(precision, str) else None
        if capability is None or (full is None and active is None):
            return None
        return gpu.TensorCores(capability, full, active)

    def _busiest_mean(self, of: Callable[[GpuSample], float | None]) -> float | None:
        busiest = self._busiest_gpu
        return None if busiest is None else gpu.mean(self._at_work(busiest[1]), of)

    @property
    def gpu_trace_pct(self) -> float | None:
        """Highest utilization or share of memory in use that this rank's GPUs ever showed; None when one is unknown."""
        samples = [s for index in self.own_gpus for s in self.gpus[index].items]
        used = [v for s in samples if (v := s.utilization_pct) is not None]
        held = [
            100.0 * s.memory_used_bytes / s.memory_total_bytes
            for s in samples
            if s.memory_used_bytes is not None and s.memory_total_bytes
        ]
        return max(*used, *held) if min(len(used), len(held)) >= MIN_STEADY_STEPS else None

    # -- the device's timeline -----------------------------------------------------------------------------------------

    @property
    def exposed_share(self) -> float | None:
        """Share (0 to 1) of the data wait for which the device idled; None when that was not measured."""
        return self.remember("exposed", lambda: exposure.exposed_share(self.device_steps.items))

    @property
    def h2d_share_pct(self) -> float | None:
        """Host-to-device copies as a share of the steps' device time, percent."""
        share = self.remember("h2d", lambda: exposure.share_of(self.device_steps.items, lambda s: s.h2d_s))
        return None if share is None else 100.0 * share

    @property
    def caught_up_share(self) -> float | None:
        """Share (0 to 1) of the time between two steps' work in which the device had nothing left to do."""
        return self.remember("caught up", lambda: exposure.caught_up_share(self.device_steps.items))

    @property
    def device_pace_s(self) -> float | None:
        """Mean device time of a step if data were free."""
        return self.remember("pace", lambda: exposure.pace_s(self.device_steps.items))


def _cpu_busy_pct(sample: HostSample) -> float | None:
    if sample.job_cpus is None or sample.others_cpus is None or not sample.usable_cpus:
        return None
    busy = sample.job_cpus + (sample.ranks_cpus or 0.0) + sample.others_cpus
    return min(100.0, 100.0 * busy / sample.usable_cpus)
