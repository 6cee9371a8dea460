"""The host and its GPUs at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSample:
    """Traffic of one network interface."""

    name: str
    received_bytes_per_s: float
    sent_bytes_per_s: float
    speed_bytes_per_s: float | None = None
    """Link speed; None when the kernel does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """The host and this rank's own processes over one sampling period."""

    time_s: float
    """Unix time at the end of the period."""
    cpu_user_pct: float | None = None
    """Of all host CPUs together."""
    cpu_system_pct: float | None = None
    cpu_iowait_pct: float | None = None
    cpu_steal_pct: float | None = None
    cpu_max_core_pct: float | None = None
    """Busy share of the busiest CPU."""
    host_cpus: int | None = None
    host_busy_cpus: float | None = None
    """CPUs that the whole host kept busy (user + system + irq, without steal and iowait)."""
    usable_cpus: float | None = None
    """CPUs this job may use: affinity and cgroup quota."""
    job_cpus: float | None = None
    """CPUs that this rank's own processes kept busy, workers included, other ranks not."""
    main_cpus: float | None = None
    """CPUs that the training process alone kept busy."""
    loop_cpu_pct: float | None = None
    """Share of the period in which the training thread ran on a CPU."""
    loop_cpu_wait_pct: float | None = None
    """Share of the period in which the training thread could have run and had no CPU."""
    threads_cpus: float | None = None
    """CPUs that threads which Python code started in the training process kept busy, but for the one that trains and
    ours."""
    others_cpus: float | None = None
    """CPUs that processes outside the job kept busy on the CPUs this job may use. The job's other ranks are among them
    where ``ranks_cpus`` is not known."""
    ranks_cpus: float | None = None
    """CPUs that the job's other ranks on this host kept busy, without those that were bound to CPUs of their own; None
    with a single rank, and where not all of them are known."""
    job_processes: int | None = None
    job_rss_bytes: int | None = None
    main_rss_bytes: int | None = None
    children_rss_bytes: int | None = None
    job_uss_bytes: int | None = None
    """Sampled rarely: the kernel walks every page for it."""
    memory_used_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """The least of the host's memory and the cgroup's limit."""
    memory_limit_used_bytes: int | None = None
    """Used under that limit, without reclaimable file cache."""
    swap_used_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    swap_out_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    disk_busy_pct: float | None = None
    """Busy share of the busiest disk."""
    network: tuple[NetworkSample, ...] = ()
    pressure_cpu_pct: float | None = None
    """Share of the period in which some task waited for a CPU (pressure-stall information)."""
    pressure_io_pct: float | None = None
    pressure_memory_pct: float | None = None
    open_files: int | None = None
    """File descriptors that the training process has open. Asked for less often where there are very many."""
    workers_open_files: int | None = None
    """The most that one of its child processes has open."""
    open_files_limit: int | None = None
    """Most that the training process may have open (soft limit); None where there is no limit."""
    cpu_throttled_pct: float | None = None
    """Share of quota periods in which the cgroup was throttled."""
    cpu_throttled_s: float | None = None
    """Throttled seconds in this period, summed over CPUs."""
    shm_free_bytes: int | None = None
    """Free space in /dev/shm."""
    shm_size_bytes: int | None = None
    cost_s: float | None = None
    """CPU seconds that taking this sample cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Memory that this rank's processes hold themselves, without pages of files, which the kernel can take back.

    Taken several times a second at first, so that a leak shows in a short run.
    """

    time_s: float
    main_bytes: int
    """Of the training process: anonymous memory."""
    main_shared_bytes: int = 0
    """Of the training process: shared memory that it has touched, such as batches from workers."""
    main_free_bytes: int | None = None
    """Of the training process: what it has freed and the allocator keeps. Asked for seldom; None in between."""
    workers: int = 0
    """Its child processes."""
    workers_bytes: int = 0
    """Anonymous memory of all child processes. What a forked one shares with its parent is counted in both."""
    workers_grown_bytes: int = 0
    """By how much more the child processes of this moment hold than when each was first seen."""
    step: int | None = None
    """Steps begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbagePauses:
    """What Python's garbage collector took since the last such record. It holds the interpreter's lock meanwhile."""

    time_s: float
    passes: int
    """Collections of the oldest generation."""
    pause_s: float
    """In all collections, on whatever thread they ran."""
    training_s: float
    """On the training thread, between its first step and its end."""
    waiting_s: float = 0.0
    """Of these seconds those inside a data wait."""
    validation_s: float = 0.0
    """Of these seconds those inside validation."""
    longest_s: float = 0.0
    """The longest on the training thread."""
    blocks: int | None = None
    """Blocks of memory on Python's heap after a long pause: objects, roughly."""
    automatic: bool = True
    """Whether the collector runs by itself; False where the program has disabled it and calls it."""
    called_s: float = 0.0
    """Of `training_s` the seconds in passes that the program asked for, with ``gc.collect()``."""
    called_file: str = ""
    """Where it asks, since the beginning of the run mostly: the file, as it is shown; empty where it does not."""
    called_line: int = 0
    called_function: str = ""
    """Qualified; the user's own where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One visible GPU or MIG instance at one moment."""

    time_s: float
    index: int
    """Position among the devices this job may see."""
    uuid: str | None = None
    name: str | None = None
    utilization_pct: float | None = None
    """Share of the driver's sample period with at least one kernel running: not how hard it worked."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_controller_pct: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    temperature_limit_c: float | None = None
    """Temperature at which the driver begins to slow the clocks down."""
    throttle_reasons: tuple[str, ...] | None = None
    """What keeps the clocks below their maximum, names as in `sources.nvml.metrics`; empty when nothing does."""
    job_memory_bytes: int | None = None
    """Memory of this job's own processes. Sampled rarely."""
    pcie_tx_bytes_per_s: float | None = None
    """From the GPU to the host. Sampled rarely, except on Hopper and later."""
    pcie_rx_bytes_per_s: float | None = None
    """From the host to the GPU."""
    pcie_width: int | None = None
    """Lanes in use. Sampled rarely, as what follows up to the compute capability."""
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    """Falls to 1 while an idle GPU saves power."""
    pcie_generation_max: int | None = None
    ecc_corrected: int | None = None
    """Memory errors corrected since the driver was loaded."""
    ecc_uncorrected: int | None = None
    compute_capability: float | None = None
    """Of CUDA, for example 8.6."""
    sm_active_pct: float | None = None
    """Share of the streaming multiprocessors that had work, mean over the period. Hopper and later, as what follows."""
    sm_occupancy_pct: float | None = None
    """Warps in flight as a share of what the multiprocessors can hold."""
    tensor_active_pct: float | None = None
    """Share of the period in which Tensor Cores worked, mean over the multiprocessors."""
    dram_active_pct: float | None = None
    """Share of the memory bandwidth in use."""
