"""The training loader and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


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
    """CPU time of all threads of the process meanwhile: in a worker those are decoders, in the loop's anything."""
    run_queue_s: float | None = None
    """Time spent runnable but waiting for a CPU."""
    collate_s: float | None = None
    read_bytes: int | None = None
    """Bytes that came from a block device."""
    items: int | None = None
    idle_s: float | None = None
    """Time between the worker's batch before and this one: it waited for something to do. None for its first."""
    loader: int = 0
    """Which of the training's loaders, counted from 0."""
    ahead: int | None = None
    """Other workers that were making a batch when this one was begun."""
    in_flight: float | None = None
    """Workers that were making a batch while this one was made, itself included: mean over its time."""
    init_s: float | None = None
    """Of a worker's first batch: what the user's ``worker_init_fn`` took before it; no part of ``wall_s``."""
    spare_bytes: int | None = None
    """Bytes that a worker hands over with the batch's tensors beyond what these hold: of a view all that it is a view
    of. None where nobody looked, as at most batches."""

    @property
    def computed_s(self) -> float:
        """CPU time, threads of decoders in a worker included; the loop's process has others to do than batches."""
        return self.cpu_s if self.worker < 0 else max(self.cpu_s, self.process_cpu_s or 0.0)

    @property
    def blocked_s(self) -> float | None:
        """Time neither computing nor queued for a CPU: waiting for storage, network or a lock.

        A worker that waits for threads of its own computes, in them; the loop's process has others to do, too.
        """
        if self.run_queue_s is None:
            return None
        return max(0.0, self.wall_s - self.computed_s - self.run_queue_s)

    @property
    def service_s(self) -> float:
        """Time for one batch if a CPU had always been free."""
        return max(0.0, self.wall_s - (self.run_queue_s or 0.0))


NO_LOADER = "none"
"""Of a loop that makes its batches itself, or takes them from a queue: how long it waits for one is not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderInfo:
    """How the training loader is set up, and whether its workers could be probed."""

    time_s: float
    kind: str
    """Class name of the loader; `NO_LOADER` where the loop asks none."""
    num_workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    remade: bool = False
    """Whether the loop asks another one than before, in its place: its workers start anew, whatever their settings."""
    start_method: str | None = None
    """fork, spawn or forkserver; None without workers."""
    iterable: bool | None = None
    stateful: bool | None = None
    snapshot_every_batches: int | None = None
    """A worker sends its dataset's state with one batch in so many; None of a loader that keeps none."""
    in_order: bool | None = None
    probed: bool = False
    why_not: str | None = None
    """Why the workers could not be probed."""
    loader: int = 0
    """Which of the training's loaders, counted from 0."""
    shards_itself: bool | None = None
    """Whether an iterable dataset splits itself among workers; None where that is not known, or it is not iterable."""
    shards: int | None = None
    """Into how many parts the dataset can be split at most, where it says so: more workers than that are idle."""
    batches_per_step: float | None = None
    """Batches that a step takes: more than one where a wrapper re-batches them or gradients of several are accumulated;
    None where it is one."""
    indices_s: float | None = None
    """Mean time in which the loop's own thread chooses the items of a batch: its sampler; None where not measured."""
    torch_threads: int | None = None
    """Threads that torch's operations may have in the training process; None where not known."""
    makes_on_device: bool = False
    """Whether the loop's own thread makes its batches with the help of a CUDA device: forked workers could not."""
    init_file: str = ""
    """Where the user's ``worker_init_fn`` is defined, as the file is shown; empty without one."""
    init_line: int = 0
    init_function: str = ""
    """Its qualified name."""
    collate_file: str = ""
    """The same of the user's own ``collate_fn``."""
    collate_line: int = 0
    collate_function: str = ""
    items: int | None = None
    """Of a job of several ranks, items of the dataset, where a sampler of torch's that knows no rank draws from it."""
    items_drawn: int | None = None
    """How many of them it draws in a pass."""
    sampler: str = ""
    """Class of that sampler."""
    data_digest: str = ""
    """32 bits of what the dataset is made of: ranks that read the same data have the same. Empty: not known."""
    order_digest: str = ""
    """32 bits of the state that the order of a pass is drawn from."""

    def after(self, last: LoaderInfo) -> LoaderInfo:
        """Return this with what was found out of the loader before, as far as it may still be so."""
        keeps_ratio = self.batches_per_step is None and self.num_workers == last.num_workers
        return replace(
            self,
            batches_per_step=last.batches_per_step if keeps_ratio else self.batches_per_step,
            indices_s=last.indices_s if self.indices_s is None else self.indices_s,
            makes_on_device=self.makes_on_device or (last.makes_on_device and not self.num_workers),
        )

    @property
    def lives_on(self) -> bool:
        """Whether its workers live on from the epoch before."""
        return bool(self.persistent_workers) and not self.remade


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationBatches:
    """What evaluations that are over asked a loader for, since such a record was made last."""

    time_s: float
    batches: int
    batch_size: int
    """Items in a batch, as the loader states it."""
    of_training: bool = False
    """Whether they are of the dataset that is trained with."""
    items: int | None = None
    items_drawn: int | None = None
    sampler: str = ""
    data_digest: str = ""
    """These four of a job of several ranks, as in `LoaderInfo`, of the loader that was asked last."""


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
    cpus: int | None = None
    """CPUs that they may run on, all together; None where the system does not say, and in older recordings."""
    process_cpus: int | None = None
    """CPUs that the training process may run on: those of any of its threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWaits:
    """What workers that were making a batch waited in, at a few looks in a row."""

    time_s: float
    looks: int
    """In which at least one worker was making a batch."""
    workers: int
    """Those that were making one, all looks together."""
    running: int = 0
    """Of these, those that computed or were ready to; in the other numbers those that waited."""
    lock: int = 0
    """For a lock that other processes hold: a semaphore of multiprocessing, a lock on a file."""
    threads: int = 0
    """For threads of their own process, of which it is not clear what they wait for."""
    sleep: int = 0
    socket: int = 0
    """For the other end of a connection, or one of several."""
    file: int = 0
    """In a call to a file system, or for a page of a mapped file."""
    other: int = 0
    queued: int = 0
    """Those that waited for the one lock that is waited for most."""
    contended: int = 0
    """Looks in which at least one waited for that lock: somebody else held it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLooks:
    """What made the batches while the loop waited for data, where that was not torch's workers.

    Producers are threads of the training process but the one that trains, and threads of its child processes. Numbers
    of them are means over the looks.
    """

    time_s: float
    looks: int
    """In which the loop was waiting for data."""
    loop_running: int = 0
    """Of these, those in which the loop's own thread computed."""
    loop_blocked: int = 0
    """Those in which it waited for a file, a connection or in a sleep, and no producer was at work."""
    body_looks: int = 0
    """Looks in which the loop did not wait for data."""
    body_interpreter: int = 0
    """Of these, those in which it waited for Python's own lock, and so did a producer or held it."""
    body_blocked: int | None = None
    """Of `body_looks`, those that found the loop waiting for something else; None in recordings without it."""
    running: float = 0.0
    """Producers that computed or were ready to."""
    interpreter: float = 0.0
    """Producers that waited for Python's own lock."""
    sleep: float = 0.0
    socket: float = 0.0
    file: float = 0.0
    outside: float = 0.0
    """Of all these, those in other processes."""
    processes: int = 0
    """Child processes that had something to do since the last such record."""
    steps: int = 0
    """Steps since the last such record, as the times that follow."""
    period_s: float = 0.0
    cpu_s: float | None = None
    """CPU time of the producers."""
    run_queue_s: float | None = None
    """Time that producers were ready to run and had no CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryWait:
    """What the library that makes the batches has itself counted of the loop's waits, since the iteration began."""

    time_s: float
    library: str
    blocked_s: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """What it attributes them to, seconds; empty where it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContent:
    """What one batch of the training loader holds."""

    time_s: float
    tensors: int
    bytes: int
    """Of all its tensors."""
    pickled_bytes: int = 0
    """Of NumPy's arrays, texts and the like: workers send them through a pipe, where tensors lie in shared memory."""
    positions: int | None = None
    """Length to which its sequences are padded; None without an attention mask that can be read, and without runs of
    one value that tell of padding."""
    used_positions: int | None = None
    """Those of them in which any sequence has a token; None where neither a mask nor runs of one id tell."""
    filled: float | None = None
    """Share (0 to 1) of the positions up to the longest sequence, in all rows, that hold something; None where nothing
    tells of padding."""
    filled_by: str = ""
    """What tells of it: ``mask``, or runs of one value at an end of each row, of ``ids`` or of a ``signal``."""
    subnormal: float | None = None
    """Share (0 to 1) of its floating-point numbers that are subnormal, by a sample; None without any on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChange:
    """The training loader got another number of workers between two epochs, or another setting with the same number."""

    time_s: float
    step: int
    """The first step taken with it."""
    before: int
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTrial:
    """How a change of the number of workers, or of another setting of the loader, did against its prediction."""

    time_s: float
    setting: str = "num_workers"
    """What was changed: ``num_workers``, ``prefetch_factor``, ``persistent_workers``, ``pin_memory``,
    ``multiprocessing_context`` or ``torch.set_num_threads``."""
    before: int | str
    """Its value until then: a number, a truth value, or the name of a start method."""
    workers: int | str
    """The value that was tried."""
    predicted_gain_pct: float | None = None
    """Predicted rise of throughput; None where nothing was predicted, or somebody else chose the number."""
    achieved_gain_pct: float | None = None
    """Measured rise of throughput, the start of the workers included; None while too few steps were measured."""
    outcome: str
    """measuring, kept, reverted, set (somebody else chose it), abandoned (a rank of the job could not have it), or
    unsettled (the run ended before it could be kept)."""
