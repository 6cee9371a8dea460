"""Frozen facts with units in their names: seconds as float, sizes in bytes, ``_pct`` 0-100. Not measured is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BUCKETS = (
    "start",
    "worker_startup",
    "data_wait",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "callbacks",
    "logging",
    "checkpoint",
    "validation",
    "loop",
    "compute",
    "other",
)
"""Where wall time can go. The buckets of a ledger sum to its wall time; see `docs/explain/how-it-works.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One batch through the loop, from asking for it to asking for the next one."""

    index: int
    """Number of the step in this run, from 0."""
    epoch: int
    optimizer_step: int | None
    """Weight updates done when the step ended; None when the loop does not say."""
    tracker_step: int
    """The x axis that the run's own logger uses for this step."""
    samples: int | None
    """Items in the batch; None when its size cannot be known without reading tensor values."""
    time_s: float
    """Unix time at the end of the step."""
    total_s: float
    """Sum of all buckets below."""
    data_wait_s: float
    """The loop thread blocked in ``next(loader)``. In an epoch's first step this includes the wait for its workers."""
    worker_startup_s: float | None = None
    h2d_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    callbacks_s: float | None = None
    logging_s: float | None = None
    checkpoint_s: float | None = None
    validation_s: float | None = None
    loop_s: float | None = None
    compute_s: float | None = None
    other_s: float | None = None
    epoch_start: bool = False
    """True for the first step of an epoch."""
    ready: int | None = None
    """Batches ready in the prefetch queue when this one was asked for; None when the loader cannot be asked."""
    head_ready: bool | None = None
    """True when the very batch that came next was already there (it then cost only the hand-over)."""
    outlier: bool = False
    """Recorded only because it was slow, where steps come too fast to record all: no part of the even sample."""

    @property
    def step_time_s(self) -> float:
        """The step without the validation that ran inside it: what one more batch costs."""
        return self.total_s - (self.validation_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """The whole run so far: exclusive seconds per bucket. They sum to ``wall_s``."""

    time_s: float
    """Unix time of the reading."""
    wall_s: float
    steps: int
    epochs: int
    buckets: Mapping[str, float]
    callbacks: Mapping[str, float] = field(default_factory=dict)
    """Share of the ``callbacks`` bucket by callback name, seconds."""
    logging: Mapping[str, float] = field(default_factory=dict)
    """Share of the ``logging`` bucket by logger, seconds."""
    own_s: float = 0.0
    """Seconds that stallmeter's own hooks took on the training thread (part of ``callbacks``)."""
    thread_cpu_s: float | None = None
    """CPU seconds of stallmeter's own threads."""
    lost_steps: int = 0
    """Steps without detail because they came faster than they could be recorded; their time is in ``buckets``."""
    recorded_steps: int = 0
    """Steps written with full detail; above 100 steps/s they are sampled, outliers and epoch starts always kept."""
    samples: int | None = None
    """Items in all batches so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBatch:
    """One batch as its DataLoader worker (or, with 0 workers, the loop thread) made it."""

    worker: int
    """Worker id; -1 for the loop thread."""
    time_s: float
    """Unix time when the batch was finished."""
    wall_s: float
    cpu_s: float
    """CPU time of the fetching thread."""
    process_cpu_s: float | None = None
    """CPU time of the whole worker process, which counts decoder threads too."""
    run_queue_s: float | None = None
    """Time spent runnable but waiting for a CPU."""
    collate_s: float | None = None
    read_bytes: int | None = None
    """Bytes that came from a block device."""
    items: int | None = None

    @property
    def blocked_s(self) -> float | None:
        """Time neither computing nor queued for a CPU: waiting for storage, network or a lock."""
        if self.run_queue_s is None:
            return None
        return max(0.0, self.wall_s - self.cpu_s - self.run_queue_s)

    @property
    def service_s(self) -> float:
        """Time for one batch if a CPU had always been free."""
        return max(0.0, self.wall_s - (self.run_queue_s or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderInfo:
    """How the training loader is set up, and whether its workers could be probed."""

    time_s: float
    kind: str
    """Class name of the loader."""
    num_workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    start_method: str | None = None
    """fork, spawn or forkserver; None without workers."""
    iterable: bool | None = None
    stateful: bool | None = None
    in_order: bool | None = None
    probed: bool = False
    why_not: str | None = None
    """Why the workers could not be probed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """The training process forked: worker processes that start by fork do."""

    time_s: float
    wall_s: float
    """Time the training thread was held, what other packages do around a fork included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Memory of the loader's workers at one moment."""

    time_s: float
    workers: int
    rss_bytes: int
    """Sum of resident sizes; shared pages count once per worker."""
    uss_bytes: int | None = None
    """Sum of memory unique to each worker: what one more worker costs. Sampled rarely."""


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
    cpu_throttled_pct: float | None = None
    """Share of quota periods in which the cgroup was throttled."""
    cpu_throttled_s: float | None = None
    """Throttled seconds in this period, summed over CPUs."""
    shm_free_bytes: int | None = None
    """Free space in /dev/shm."""
    cost_s: float | None = None
    """CPU seconds that taking this sample cost."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStep:
    """One step on the device's timeline, in seconds between events on the training's stream.

    The device's fields are None where its events could not be had or read: then the host's clock is all there is.
    """

    index: int
    """Number of the step, as in its `StepRecord`."""
    epoch_start: bool = False
    host_wait_s: float
    """The data wait of this step by the host's clock."""
    host_idle_s: float
    """Host time outside the wait and the step's own work: callbacks, loggers, the framework."""
    host_work_s: float
    """Host time of the step's own work: copy, forward, backward, optimizer, body."""
    total_s: float | None = None
    """From asking for the batch to asking for the next; validation left out."""
    exposed_wait_s: float | None = None
    """Data wait for which the device idled. The rest of the host's wait was hidden by work that was queued."""
    h2d_s: float | None = None
    forward_s: float | None = None
    """What lies between the first and the last of its work: gaps between kernels included."""
    backward_s: float | None = None
    optimizer_s: float | None = None
    compute_s: float | None = None
    """Of a plain loop's body, where no span divides it."""
    idle_s: float | None = None
    """Outside the wait and the step's own work: idle, unless a callback computes on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSample:
    """PyTorch's own memory allocator on one device at one moment."""

    time_s: float
    index: int
    """Number of the device in this process."""
    allocated_bytes: int | None = None
    """In tensors."""
    allocated_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    """Taken from the device, in tensors or kept for them."""
    reserved_peak_bytes: int | None = None
    alloc_retries: int | None = None
    """Allocations that only succeeded after the cache was given back, so far: each waits for the device."""
    ooms: int | None = None
    """Out-of-memory errors so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCalls:
    """Calls that made the host wait for the device, as counted in a few steps."""

    time_s: float
    first_step: int
    steps: int
    calls: Mapping[str, int] = field(default_factory=dict)
    """How many by place, ``file.py:line in function``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator in a profile, all its calls together."""

    name: str
    calls: int
    host_s: float
    """Host time of the operator itself, without those it calls."""
    device_s: float | None = None
    """The same on the device; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepProfile:
    """A short window of torch.profiler, and what it cost."""

    time_s: float
    cause: str
    """Rule whose verdict asked for it."""
    first_step: int
    steps: int
    held_s: float
    """Time that the training thread was held to start and to stop it."""
    slowdown_s: float | None = None
    """Time by which the profiled steps were longer than the median step, all of them together."""
    evaluated_s: float | None = None
    """Time that another thread took to evaluate and write it."""
    trace: str | None = None
    """File of the trace beside the recording; None when it was not kept."""
    trace_bytes: int | None = None
    operators: tuple[Operator, ...] = ()
    """The most expensive ones, most expensive first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something worth knowing that is no measurement: a source switched off, a tracker attached."""

    time_s: float
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContent:
    """What one batch of the training loader holds; looked at once."""

    time_s: float
    tensors: int
    bytes: int
    """Of all its tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChange:
    """The training loader got another number of workers between two epochs."""

    time_s: float
    step: int
    """The first step taken with it."""
    before: int
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTrial:
    """How a change of the number of workers did against its prediction."""

    time_s: float
    before: int
    workers: int
    predicted_gain_pct: float | None = None
    """Predicted rise of throughput; None where somebody else chose the number."""
    achieved_gain_pct: float | None = None
    """Measured rise of throughput, the start of the workers included; None while too few steps were measured."""
    outcome: str
    """measuring, kept, reverted, set (somebody else chose it), or unsettled (the run ended before it could be kept)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """Means and tails of one reporting period: what trackers are sent."""

    time_s: float
    """Unix time at the end of the period."""
    tracker_step: int
    duration_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Step metrics by key, for example ``data_wait_ms``."""
    hardware: Mapping[str, float] = field(default_factory=dict)
    """Hardware metrics by key, for example ``job_cpus`` or ``gpu0_util_pct``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMetrics:
    """What the user passed to ``Monitor.log``."""

    time_s: float
    tracker_step: int
    metrics: Mapping[str, float]


Sample = (
    HostSample
    | GpuSample
    | WorkerBatch
    | LoaderInfo
    | Fork
    | WorkerMemory
    | DeviceStep
    | AllocatorSample
    | SyncCalls
    | DeepProfile
    | Event
)
"""What a Source may return."""

Record = StepRecord | LedgerRecord | WindowRecord | UserMetrics | BatchContent | WorkerChange | WorkerTrial | Sample
"""What a recording may hold, verdicts apart."""
