"""Bounded history of one run and the signals that rules may read. A signal that was not measured is None.

The window holds a fixed number of records however long the run is: a sample of the steps spread evenly over the whole
run, the newest hardware samples, and the ledger, which is exact.
"""

from __future__ import annotations

import copy
import heapq
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any, Generic, TypeVar

from . import exposure, gpu
from .budget import Budget
from .records import (
    AllocatorSample,
    BatchContent,
    DeepProfile,
    DeviceStep,
    Event,
    Fork,
    GpuSample,
    HostSample,
    LedgerRecord,
    LoaderInfo,
    NetworkSample,
    Record,
    StepRecord,
    SyncCalls,
    WorkerBatch,
    WorkerChange,
    WorkerMemory,
    WorkerTrial,
)

T = TypeVar("T")

WARMUP_STEPS = 3
"""First steps of a run that say nothing about the rest: caches, autotuning, lazy initialisation."""

SLOW_STEPS = 10
"""Slowest steps that are kept whole, as examples."""

MIN_STEADY_STEPS = 5
"""Below this many steady steps a median is no basis for a verdict."""

MIN_TREND_SAMPLES = 12
"""Below this many samples a slope is no trend."""

TREND_POINTS = 48
"""Longer series are cut into this many blocks: all pairs of points are compared."""

BODY = ("h2d", "forward", "backward", "compute")
"""Buckets of a step's own work."""

LOSSES = ("data_wait", "callbacks", "logging", "checkpoint")
"""Buckets that hold the steps up all through a run."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Robust description of a series, in the unit of its values."""

    count: int
    mean: float
    trimmed_mean: float
    """Mean without the lowest and highest tenth."""
    median: float
    p95: float
    max: float


def stats(values: Iterable[float]) -> Stats | None:
    """Describe a series; None when it is empty."""
    ordered = sorted(values)
    if not ordered:
        return None
    n = len(ordered)
    cut = n // 10
    kept = ordered[cut : n - cut]
    return Stats(
        count=n,
        mean=sum(ordered) / n,
        trimmed_mean=sum(kept) / len(kept),
        median=statistics.median(ordered),
        p95=ordered[min(n - 1, int(0.95 * n))],
        max=ordered[-1],
    )


@dataclass(frozen=True, slots=True)
class Outliers:
    """Steps that took much longer than the others, scaled from the sample to the whole run."""

    count: int
    excess_s: float
    """Seconds beyond the median step, all of them together."""
    longest_s: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Robust straight line through a series, in the unit of its values."""

    start: float
    """Value of the line at its beginning."""
    growth: float
    """Rise of the line from its beginning to its end."""
    per_s: float
    """Rise per second."""
    recent_per_s: float
    """The same over the second half."""
    noise: float
    """Spread of the values around the line (scaled median absolute deviation: 1 sigma if they are normal)."""

    @property
    def lasts(self) -> bool:
        """Whether it still rises at the end, at no less than half the pace: no cache that has filled up."""
        return self.per_s > 0 and self.recent_per_s >= 0.5 * self.per_s


@dataclass(frozen=True, slots=True)
class Link:
    """Traffic of one network interface."""

    load_pct: float | None
    """Busier direction as a share of the link's speed, median over the run; None when the speed is not known."""
    sent_bytes_per_s: tuple[float, float, float] | None
    """Mean rate in the first, second and last third of the run; None with too few samples."""


class Sample(Generic[T]):
    """At most ``size`` items spread evenly over everything that was added: every 2^k-th one is kept."""

    __slots__ = ("_seen", "_size", "items", "stride")

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen = 0
        self.stride = 1
        self.items: list[T] = []

    def add(self, item: T) -> None:
        """Offer an item."""
        if self._seen % self.stride == 0:
            self.items.append(item)
            if len(self.items) > self._size:
                self.items = self.items[::2]
                self.stride *= 2
        self._seen += 1

    def __len__(self) -> int:
        return self._seen

    def __copy__(self) -> Sample[T]:
        twin: Sample[T] = Sample(self._size)
        twin._seen, twin.stride, twin.items = self._seen, self.stride, self.items[:]
        return twin


class Window:
    """History of one run on one rank.

    Args:
        steps: Most step records kept.
        samples: Most hardware samples kept of each kind.
        batches: Most worker batches kept.
    """

    def __init__(self, *, steps: int = 4096, samples: int = 3600, batches: int = 4096) -> None:
        self.ledger: LedgerRecord | None = None
        self.loader: LoaderInfo | None = None
        self.first_steps: list[StepRecord] = []
        """The steps of the warm-up."""
        self.host: Sample[HostSample] = Sample(samples)
        self.gpus: dict[int, Sample[GpuSample]] = {}
        self.batches: Sample[WorkerBatch] = Sample(batches)
        self.worker_memory: Sample[WorkerMemory] = Sample(samples)
        self.forks: deque[Fork] = deque(maxlen=4096)
        self.device_steps: Sample[DeviceStep] = Sample(steps)
        """Steady steps on the device's timeline."""
        self.allocators: dict[int, AllocatorSample] = {}
        """The newest sample of each device; peaks and counts in it are of the whole run."""
        self.syncs: SyncCalls | None = None
        """Calls that waited for the device in the steps that were probed; None when none were."""
        self.profile: DeepProfile | None = None
        self.events: deque[Event] = deque(maxlen=256)
        self.facts: dict[str, Any] = {}
        """Static facts of the recording's header."""
        self._steady: Sample[StepRecord] = Sample(steps)
        self._openers: Sample[StepRecord] = Sample(steps)
        self._slowest: list[tuple[float, int, int, StepRecord]] = []
        self._first_waits: deque[float] = deque(maxlen=64)
        self._startup_excess_s = 0.0
        self._cache: dict[str, object] = {}
        self.content: BatchContent | None = None
        """What a batch holds."""
        self.trials: list[WorkerTrial] = []
        """Numbers of workers that were tried, each as it stands now."""
        self.before: Window | None = None
        """The steps with the number of workers before the present one."""
        self._since: tuple[float, LedgerRecord | None] | None = None
        self._phase: Window | None = None

    def present(self) -> Window:
        """The history since the number of workers was last changed: what rules may judge.

        Steps and batches of two numbers of workers must not be mixed. Until enough steps were taken with the new number
        it is the history before the change; without a change it is everything.
        """
        phase = self._phase
        if phase is None:
            return self
        if phase.ledger is None or len(phase._steady) < 2 * MIN_STEADY_STEPS:
            return phase.before or self
        return phase

    @property
    def budget(self) -> Budget | None:
        """What the job may use; None in recordings that do not say."""
        facts = self.facts.get("budget")
        return Budget(**facts) if isinstance(facts, dict) else None

    def remember(self, key: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returned the last time, unless a record came in between."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]  # type: ignore[return-value]

    def append(self, record: Record) -> None:
        """Take a record into the history. Kinds that no signal needs are ignored."""
        self._cache.clear()
        if self._phase is not None:
            self._phase._append_since(record)
        match record:
            case StepRecord():
                self._append_step(record)
            case LedgerRecord():
                self.ledger = record
            case HostSample():
                self.host.add(record)
            case GpuSample():
                self.gpus.setdefault(record.index, Sample(3600)).add(record)
            case WorkerBatch():
                self.batches.add(record)
            case LoaderInfo():
                self.loader = record
            case WorkerMemory():
                self.worker_memory.add(record)
            case Fork():
                self.forks.append(record)
            case Event():
                self.events.append(record)
            case _:
                self._append_rare(record)

    def _append_rare(self, record: Record) -> None:
        match record:
            case BatchContent():
                self.content = record
            case WorkerTrial():
                self._append_trial(record)
            case WorkerChange():
                self._begin_phase(record)
            case _:
                self._append_device(record)

    def _append_device(self, record: Record) -> None:
        match record:
            case DeviceStep() if not record.epoch_start and record.index >= WARMUP_STEPS:
                self.device_steps.add(record)
            case AllocatorSample():
                self.allocators[record.index] = record
            case SyncCalls():
                self.syncs = record
            case DeepProfile():
                self.profile = record
            case _:
                pass

    def _append_trial(self, trial: WorkerTrial) -> None:
        last = self.trials[-1] if self.trials else None
        if last is not None and (last.outcome, last.workers) == ("measuring", trial.workers):
            self.trials.pop()
        self.trials.append(trial)

    def _begin_phase(self, change: WorkerChange) -> None:
        past = self._phase or self._copy()
        # The loader's own record may have come before the change was known.
        past.loader = self.loader and replace(self.loader, num_workers=change.before)
        past.before = None
        phase = Window()
        phase.facts, phase.content, phase.trials, phase.before = self.facts, self.content, self.trials, past
        phase.loader = self.loader and replace(self.loader, num_workers=change.workers)
        phase._since = (change.time_s, self.ledger)
        self._phase = phase

    def _copy(self) -> Window:
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, dict, deque, Sample)):
                setattr(twin, name, copy.copy(value))
        return twin

    def _append_since(self, record: Record) -> None:
        """Take a record into a history that began in the middle of the run."""
        assert self._since is not None
        began_s, base = self._since
        if isinstance(record, WorkerBatch) and record.time_s <= began_s:
            return
        if isinstance(record, LedgerRecord) and base is not None:
            record = _difference(record, base)
        if not isinstance(record, (WorkerChange, WorkerTrial)):
            self.append(record)

    def _append_step(self, step: StepRecord) -> None:
        if step.epoch_start:
            self._first_waits.append(step.data_wait_s)
            self._settle_first_waits()
            if step.index >= WARMUP_STEPS and not step.outlier:
                self._openers.add(step)
        elif step.index < WARMUP_STEPS:
            self.first_steps.append(step)
        else:
            if not step.outlier:
                self._steady.add(step)
            self._keep_slowest(step)

    def _keep_slowest(self, step: StepRecord) -> None:
        item = (step.step_time_s, -step.index, id(step), step)  # records themselves have no order
        if len(self._slowest) < SLOW_STEPS:
            heapq.heappush(self._slowest, item)
        elif item > self._slowest[0]:
            heapq.heapreplace(self._slowest, item)

    def _settle_first_waits(self) -> None:
        wait = self.data_wait_s
        if wait is None or wait.count < MIN_STEADY_STEPS:
            return
        while self._first_waits:
            self._startup_excess_s += max(0.0, self._first_waits.popleft() - wait.median)

    @property
    def startup_excess_s(self) -> float:
        """Seconds by which the first waits of epochs exceeded the steady wait: workers that had to start.

        0 without workers, where the first wait is an ordinary one.
        """
        if self.loader is not None and self.loader.num_workers == 0:
            return 0.0
        wait = self.data_wait_s
        pending = 0.0
        if wait is not None and wait.count >= MIN_STEADY_STEPS:
            pending = sum(max(0.0, first - wait.median) for first in self._first_waits)
        return self._startup_excess_s + pending

    @property
    def steady(self) -> Sequence[StepRecord]:
        """A sample of all steps but the warm-up and the first of each epoch; the warm-up itself in very short runs.

        Where each epoch has one step, these are taken if no workers start with them: they are ordinary steps then.
        """
        if not self._steady.items and self.loader is not None and self.loader.num_workers == 0:
            return self._openers.items or self.first_steps
        return self._steady.items or self.first_steps

    @property
    def slow_steps(self) -> Sequence[StepRecord]:
        """The `SLOW_STEPS` slowest of all steady steps, the slowest first."""
        return [item[-1] for item in sorted(self._slowest, reverse=True)]

    def _stats_of(self, name: str, of: Callable[[StepRecord], float | None]) -> Stats | None:
        if name not in self._cache:
            self._cache[name] = stats(v for s in self.steady if (v := of(s)) is not None)
        return self._cache[name]  # type: ignore[return-value]

    @property
    def step_time_s(self) -> Stats | None:
        """Time of steady steps, validation left out."""
        return self._stats_of("step_time_s", lambda s: s.step_time_s)

    @property
    def data_wait_s(self) -> Stats | None:
        """Data wait of steady steps."""
        return self._stats_of("data_wait_s", lambda s: s.data_wait_s)

    @property
    def work_s(self) -> Stats | None:
        """Time of steady steps without the data wait: what a step costs when data are free."""
        return self._stats_of("work_s", lambda s: s.step_time_s - s.data_wait_s)

    @property
    def wall_s(self) -> float | None:
        """Wall time of the run."""
        return None if self.ledger is None else self.ledger.wall_s

    @property
    def _spent(self) -> Mapping[str, float]:
        """Seconds of wall time by bucket. Data wait that the device hid behind its queued work is compute."""
        return self.remember("spent", self._settle_spent)

    def _settle_spent(self) -> Mapping[str, float]:
        if self.ledger is None:
            return {}
        buckets, share = self.ledger.buckets, self.exposed_share
        if share is None:
            return buckets
        hidden = (1.0 - share) * buckets.get("data_wait", 0.0)
        moved = {"data_wait": buckets.get("data_wait", 0.0) - hidden, "compute": buckets.get("compute", 0.0) + hidden}
        return {**buckets, **moved}

    def bucket_s(self, bucket: str) -> float | None:
        """Seconds of wall time in a bucket, hidden data wait counted as compute."""
        return self._spent.get(bucket)

    def share_pct(self, seconds: float) -> float | None:
        """A number of seconds as a percentage of the wall time."""
        wall = self.wall_s
        return None if not wall else 100.0 * seconds / wall

    @property
    def training_s(self) -> float | None:
        """Wall time without the start: what a share of training refers to."""
        if self.ledger is None:
            return None
        return self.ledger.wall_s - self.ledger.buckets.get("start", 0.0)

    @property
    def data_wait_share_pct(self) -> float | None:
        """Data wait as a share of the training time: the exposed one where it was measured, else the host's."""
        wait, training = self.bucket_s("data_wait"), self.training_s
        if wait is None or not training:
            return None
        return 100.0 * wait / training

    @property
    def host_wait_share_pct(self) -> float | None:
        """Data wait by the host's clock as a share of the training time, whether or not it cost anything."""
        if self.ledger is None or not self.training_s or "data_wait" not in self.ledger.buckets:
            return None
        return 100.0 * self.ledger.buckets["data_wait"] / self.training_s

    @property
    def coverage_pct(self) -> float | None:
        """Share of the wall time in a named bucket."""
        other = self.bucket_s("other")
        share = None if other is None else self.share_pct(other)
        return None if share is None else 100.0 - share

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second of training time."""
        if self.ledger is None or not self.training_s:
            return None
        return self.ledger.steps / self.training_s

    @property
    def samples_per_s(self) -> float | None:
        """Items per second of training time; None when batch sizes are unknown."""
        if self.ledger is None or self.ledger.samples is None or not self.training_s:
            return None
        return self.ledger.samples / self.training_s

    @property
    def num_workers(self) -> int | None:
        """Workers of the training loader."""
        return None if self.loader is None else self.loader.num_workers

    # -- the loop ---------------------------------------------------------------------------------------------------

    def training_share_pct(self, seconds: float) -> float | None:
        """A number of seconds as a percentage of the training time."""
        return None if not self.training_s else 100.0 * seconds / self.training_s

    @property
    def callbacks_by_name_s(self) -> Mapping[str, float] | None:
        """Seconds in each callback, by class name."""
        return None if self.ledger is None else self.ledger.callbacks

    @property
    def logging_by_name_s(self) -> Mapping[str, float] | None:
        """Seconds in each logger, by class name."""
        return None if self.ledger is None else self.ledger.logging

    @property
    def start_s(self) -> float | None:
        """Seconds before the first step."""
        return self.bucket_s("start")

    @property
    def epochs(self) -> int | None:
        """Epochs begun."""
        return None if self.ledger is None else self.ledger.epochs

    # -- the wait and the prefetch queue ------------------------------------------------------------------------------

    def wait_share(self, of: Callable[[StepRecord], bool | None]) -> float | None:
        """Share (0 to 1) of the steady data wait in steps of which something is known to be true.

        None when less than half of the wait is in steps of which it is known.
        """
        known = true = total = 0.0
        for step in self.steady:
            total += step.data_wait_s
            answer = of(step)
            if answer is not None:
                known += step.data_wait_s
                true += step.data_wait_s if answer else 0.0
        return true / known if known > 0 and known >= 0.5 * total else None

    @property
    def ready_wait_share(self) -> float | None:
        """Share of the wait in steps whose batch was ready when it was asked for: it only had to be handed over."""
        return self.wait_share(lambda s: s.head_ready)

    @property
    def blocked_wait_share(self) -> float | None:
        """Share of the wait in steps whose batch was late while others were ready behind it."""
        return self.wait_share(
            lambda s: None if s.head_ready is None or s.ready is None else not s.head_ready and s.ready > 0
        )

    @property
    def handover_s(self) -> float | None:
        """Median wait for a batch that was ready: the cost of handing it over between processes."""
        waits = [s.data_wait_s for s in self.steady if s.head_ready]
        return statistics.median(waits) if len(waits) >= MIN_STEADY_STEPS else None

    @property
    def top_wait_share(self) -> float | None:
        """Share of the steady data wait in the tenth of the steps that waited longest."""
        waits = sorted((s.data_wait_s for s in self.steady), reverse=True)
        total = sum(waits)
        if len(waits) < 2 * MIN_STEADY_STEPS or total <= 0:
            return None
        return sum(waits[: -(-len(waits) // 10)]) / total

    # -- inside the workers -------------------------------------------------------------------------------------------

    def batch_stats(self, name: str, of: Callable[[WorkerBatch], float | None]) -> Stats | None:
        """Describe a quantity over the probed batches; None below five of them."""
        key = f"batch {name}"
        if key not in self._cache:
            self._cache[key] = stats(v for b in self.batches.items if (v := of(b)) is not None)
        found: Stats | None = self._cache[key]  # type: ignore[assignment]
        return found if found is not None and found.count >= MIN_STEADY_STEPS else None

    @property
    def batch_wall_s(self) -> Stats | None:
        """Time a worker spends on a batch."""
        return self.batch_stats("wall", lambda b: b.wall_s)

    @property
    def service_s(self) -> Stats | None:
        """Time a worker spends on a batch, waiting for a CPU left out."""
        return self.batch_stats("service", lambda b: b.service_s)

    @property
    def batch_cpu_s(self) -> Stats | None:
        """CPU time of a batch, threads of decoders included."""
        return self.batch_stats("cpu", _batch_cpu_s)

    @property
    def batch_queue_s(self) -> Stats | None:
        """Time a worker was ready to run a batch but had no CPU."""
        return self.batch_stats("queue", lambda b: b.run_queue_s)

    @property
    def blocked_share(self) -> float | None:
        """Share (0 to 1) of the service time in which workers waited for storage, network or a lock."""
        blocked = self.batch_stats("blocked", lambda b: b.blocked_s)
        service = self.service_s
        if blocked is None or service is None or service.trimmed_mean <= 0:
            return None
        return min(1.0, blocked.trimmed_mean / service.trimmed_mean)

    @property
    def queue_share(self) -> float | None:
        """Share (0 to 1) of the workers' time spent waiting for a CPU."""
        queue, wall = self.batch_queue_s, self.batch_wall_s
        if queue is None or wall is None or wall.trimmed_mean <= 0:
            return None
        return min(1.0, queue.trimmed_mean / wall.trimmed_mean)

    @property
    def fork_s(self) -> float | None:
        """Seconds the training thread was held by forks; None when forks are not watched."""
        return sum(f.wall_s for f in self.forks) if self.forks else None

    # -- the host -----------------------------------------------------------------------------------------------------

    @property
    def usable_cpus(self) -> float | None:
        """CPUs that the job may use."""
        return self.host_median(lambda s: s.usable_cpus)

    @property
    def cpu_throttled_pct(self) -> float | None:
        """Share of the quota's periods in which the job was throttled, percent."""
        return self.host_median(lambda s: s.cpu_throttled_pct)

    @property
    def others_cpus(self) -> float | None:
        """CPUs that other processes keep busy on the CPUs of this job."""
        return self.host_median(lambda s: s.others_cpus)

    @property
    def main_cpus(self) -> float | None:
        """CPUs that the training process alone keeps busy."""
        return self.host_median(lambda s: s.main_cpus)

    @property
    def job_cpus(self) -> float | None:
        """CPUs that the job keeps busy, workers included."""
        return self.host_median(lambda s: s.job_cpus)

    def host_median(self, of: Callable[[HostSample], float | None]) -> float | None:
        """Median of a host signal over the run; None when it was never measured."""
        values = [v for s in self.host.items if (v := of(s)) is not None]
        return statistics.median(values) if values else None

    # -- after the step ------------------------------------------------------------------------------------------------

    @property
    def body_s(self) -> Stats | None:
        """Time of steady steps in copy, forward, backward and the loop's own body.

        Optimizer and framework are left out: both have work to do in some steps only.
        """
        return self._stats_of("body_s", _body_s)

    def outliers(self, factor: float) -> Outliers | None:
        """Find steps whose body takes ``factor`` times the median or more; None when bodies were not measured."""
        body = self.body_s
        if body is None or body.median <= 0 or self.ledger is None:
            return None
        above = [b for s in self.steady if (b := _body_s(s)) >= factor * body.median]
        stride = max(self._steady.stride, self.ledger.steps // max(1, len(self.steady)))
        slow = [b for s in self.slow_steps if (b := _body_s(s)) is not None]
        # The ledger knows exactly how much all steps took beyond their median; a sample may overstate it.
        total = sum(self.ledger.buckets.get(name, 0.0) for name in BODY)
        most = max(0.0, total - self.ledger.steps * body.median)
        return Outliers(
            count=len(above) * stride,
            excess_s=min(most, stride * sum(b - body.median for b in above)),
            longest_s=max((b for b in (*above, *slow) if above), default=0.0),
        )

    @property
    def step_share_pct(self) -> float | None:
        """Work of the steps themselves, the framework's included, as a share of training without validation."""
        training, validation = self.training_s, self.bucket_s("validation")
        if self.ledger is None or training is None or validation is None or training <= validation:
            return None
        work = sum(self._spent.get(name, 0.0) for name in (*BODY, "optimizer", "loop"))
        return 100.0 * work / (training - validation)

    @property
    def largest_loss_pct(self) -> float | None:
        """Largest of the buckets that hold the steps up, as a share of training time."""
        if self.ledger is None:
            return None
        return self.training_share_pct(max(self._spent.get(name, 0.0) for name in LOSSES))

    @property
    def save_s(self) -> Stats | None:
        """Time that steps with a checkpoint in them were held by it."""
        return self.remember("save_s", lambda: stats(s.checkpoint_s for s in self.steady if s.checkpoint_s))

    # -- memory, network and devices -----------------------------------------------------------------------------------

    @property
    def cpu_busy_pct(self) -> float | None:
        """Share of the usable CPUs that the job and others keep busy, median over the run."""
        return self.host_median(_cpu_busy_pct)

    @property
    def iowait_pct(self) -> float | None:
        """Share of the host's CPU time idle while something waits for storage, median over the run."""
        return self.host_median(lambda s: s.cpu_iowait_pct)

    @property
    def memory_peak_pct(self) -> float | None:
        """Highest share of the memory limit in use."""
        return max((pct for s in self.host.items if (pct := _memory_pct(s)) is not None), default=None)

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

    @property
    def links(self) -> Mapping[str, Link] | None:
        """Traffic of each network interface over the run; None when there is none."""
        return self.remember("links", lambda: _links(self.host.items)) or None

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
    def busiest_gpu_pct(self) -> float | None:
        """Mean utilization of the GPU that was used most, while steps ran."""
        busiest = self._busiest_gpu
        return None if busiest is None else busiest[0]

    @property
    def _busiest_gpu(self) -> tuple[float, int] | None:
        """Mean utilization and index of the GPU that was used most."""
        return self.remember("busiest GPU", self._find_busiest_gpu)

    def _find_busiest_gpu(self) -> tuple[float, int] | None:
        means = ((gpu.mean(self._at_work(index), lambda s: s.utilization_pct), -index) for index in self.gpus)
        found = max(((mean, order) for mean, order in means if mean is not None), default=None)
        return None if found is None else (found[0], -found[1])

    def _at_work(self, index: int) -> Sequence[GpuSample]:
        """Samples of a GPU since the first steps."""
        begun = self._begun_s
        return [s for s in self.gpus[index].items if s.time_s >= begun]

    @property
    def gpu_idleness(self) -> gpu.Idleness | None:
        """Idle samples of the GPU that was used most, while steps ran."""
        busiest = self._busiest_gpu
        if busiest is None:
            return None
        return self.remember("GPU idleness", lambda: gpu.idleness(self._at_work(busiest[1])))

    @property
    def gpu_throttling(self) -> gpu.Throttling | None:
        """What held the clocks down of the GPU where that happened most; None when no GPU tells."""
        return self.remember("GPU throttling", self._find_throttling)

    def _find_throttling(self) -> gpu.Throttling | None:
        found = [t for index in sorted(self.gpus) if (t := gpu.throttling(index, self._at_work(index))) is not None]
        return max(found, key=lambda t: (t.forced_pct, t.power_pct), default=None)

    @property
    def gpu_memory(self) -> gpu.Memory | None:
        """Highest use of memory of the GPU that was filled most; None when no GPU tells."""
        return self.remember("GPU memory", self._find_gpu_memory)

    def _find_gpu_memory(self) -> gpu.Memory | None:
        found = [
            m for i in sorted(self.gpus) if (m := gpu.memory(i, self.gpus[i].items, self.allocators.get(i))) is not None
        ]
        return max(found, key=lambda m: m.needed_pct, default=None)

    @property
    def gpu_memory_trends(self) -> Mapping[int, Trend] | None:
        """Trend of the memory in use, bytes, of each GPU; None with too few samples."""
        trends = {index: self.gpu_trend(index, "memory_used_bytes") for index in self.gpus}
        return {index: known for index, known in trends.items() if known is not None} or None

    def gpu_trend(self, index: int, name: str) -> Trend | None:
        """Trend of a signal of `GpuSample` since the first steps, in its unit; None with too few samples."""
        return self.remember(
            f"GPU {index} trend {name}",
            lambda: trend([(s.time_s, v) for s in self._at_work(index) if (v := getattr(s, name)) is not None]),
        )

    def gpu_memory_left_bytes(self, index: int) -> float | None:
        """Memory that nobody uses on a GPU, as last seen."""
        items = self.gpus[index].items
        used, total = (gpu.newest(items, of) for of in (lambda s: s.memory_used_bytes, lambda s: s.memory_total_bytes))
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
    def step_work_s(self) -> float | None:
        """Seconds of the steps' own work and the optimizer's."""
        return None if self.ledger is None else sum(self._spent.get(name, 0.0) for name in (*BODY, "optimizer"))

    @property
    def batch_size(self) -> int | None:
        """Items in a batch of the training loader."""
        return None if self.loader is None else self.loader.batch_size

    # -- the device's timeline ----------------------------------------------------------------------------------------

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

    @property
    def pin_memory(self) -> bool | None:
        """Whether the training loader puts its batches into pinned memory."""
        return None if self.loader is None else self.loader.pin_memory

    @property
    def idle_in_steps_s(self) -> float | None:
        """Seconds in which the GPU idled inside the steps' own work.

        All the time that the GPU used most was idle, without what other buckets explain: exposed data wait, worker
        start-up, callbacks, loggers, checkpoints, validation, and copies, which do not count as utilization.
        """
        busy, training = self.busiest_gpu_pct, self.training_s
        if busy is None or training is None:
            return None
        named = ("data_wait", "worker_startup", "callbacks", "logging", "checkpoint", "validation")
        explained = sum(self._spent.get(name, 0.0) for name in named)
        copies = (self.h2d_share_pct or 0.0) / 100.0 * training
        return max(0.0, training * (1.0 - busy / 100.0) - explained - copies)

    @property
    def gpu_trace_pct(self) -> float | None:
        """Highest utilization or share of memory in use that any GPU ever showed; None when one of them is unknown."""
        samples = [s for known in self.gpus.values() for s in known.items]
        used = [v for s in samples if (v := s.utilization_pct) is not None]
        held = [
            100.0 * s.memory_used_bytes / s.memory_total_bytes
            for s in samples
            if s.memory_used_bytes is not None and s.memory_total_bytes
        ]
        return max(*used, *held) if min(len(used), len(held)) >= MIN_STEADY_STEPS else None

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
    def _begun_s(self) -> float:
        """Unix time of the first steps that are known."""
        return next((s.time_s for s in (*self.first_steps[:1], *self._steady.items[:1])), float("-inf"))


def _batch_cpu_s(batch: WorkerBatch) -> float:
    """In a worker the process makes nothing but batches; in the loop thread only the thread's own time counts."""
    if batch.worker < 0 or batch.process_cpu_s is None:
        return batch.cpu_s
    return max(batch.cpu_s, batch.process_cpu_s)


def _difference(ledger: LedgerRecord, base: LedgerRecord) -> LedgerRecord:
    """The ledger since an earlier reading. A bucket never falls below 0: start-up is booked from it with hindsight."""

    def less(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, float]:
        return {name: max(0.0, seconds - then.get(name, 0.0)) for name, seconds in now.items()}

    cpu_s = None if ledger.thread_cpu_s is None else ledger.thread_cpu_s - (base.thread_cpu_s or 0.0)
    return replace(
        ledger,
        wall_s=ledger.wall_s - base.wall_s,
        steps=ledger.steps - base.steps,
        epochs=ledger.epochs - base.epochs,
        buckets=less(ledger.buckets, base.buckets),
        callbacks=less(ledger.callbacks, base.callbacks),
        logging=less(ledger.logging, base.logging),
        own_s=ledger.own_s - base.own_s,
        thread_cpu_s=cpu_s,
        samples=None if ledger.samples is None else ledger.samples - (base.samples or 0),
    )


def _body_s(step: StepRecord) -> float:
    return sum(s or 0.0 for s in (step.h2d_s, step.forward_s, step.backward_s, step.compute_s))


def _cpu_busy_pct(sample: HostSample) -> float | None:
    if sample.job_cpus is None or sample.others_cpus is None or not sample.usable_cpus:
        return None
    return min(100.0, 100.0 * (sample.job_cpus + sample.others_cpus) / sample.usable_cpus)


def _memory_pct(sample: HostSample) -> float | None:
    if sample.memory_limit_used_bytes is None or not sample.memory_limit_bytes:
        return None
    return 100.0 * sample.memory_limit_used_bytes / sample.memory_limit_bytes


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Fit a Theil-Sen line, the median of all slopes between two points; None when there are too few.

    Args:
        points: Unix times and values, oldest first. The first quarter is warm-up and left out.
    """
    kept = points[len(points) // 4 :]
    if len(kept) < MIN_TREND_SAMPLES:
        return None
    blocks = min(len(kept), TREND_POINTS)
    cuts = [i * len(kept) // blocks for i in range(blocks + 1)]
    parts = [kept[a:b] for a, b in pairwise(cuts)]
    thin = [(statistics.median(t for t, _ in part), statistics.median(v for _, v in part)) for part in parts]
    slope, recent = _slope(thin), _slope(thin[len(thin) // 2 :])
    if slope is None or recent is None:
        return None
    began_s, ended_s = kept[0][0], kept[-1][0]
    start = statistics.median(v - slope * (t - began_s) for t, v in thin)
    noise = 1.4826 * statistics.median(abs(v - start - slope * (t - began_s)) for t, v in thin)
    return Trend(start=start, growth=slope * (ended_s - began_s), per_s=slope, recent_per_s=recent, noise=noise)


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    slopes = [(w - v) / (u - t) for (t, v), (u, w) in combinations(points, 2) if u > t]
    return statistics.median(slopes) if slopes else None


def _links(samples: Sequence[HostSample]) -> dict[str, Link]:
    by_name: dict[str, list[NetworkSample]] = {}
    for interface in (i for s in samples for i in s.network):
        by_name.setdefault(interface.name, []).append(interface)
    return {name: _link(found) for name, found in by_name.items()}


def _link(samples: Sequence[NetworkSample]) -> Link:
    loads = [
        100.0 * max(s.received_bytes_per_s, s.sent_bytes_per_s) / s.speed_bytes_per_s
        for s in samples
        if s.speed_bytes_per_s
    ]
    third = len(samples) // 3
    sent = [s.sent_bytes_per_s for s in samples]
    return Link(
        load_pct=statistics.median(loads) if len(loads) >= MIN_STEADY_STEPS else None,
        sent_bytes_per_s=(
            (sum(sent[:third]) / third, sum(sent[third:-third]) / (len(sent) - 2 * third), sum(sent[-third:]) / third)
            if third >= MIN_STEADY_STEPS
            else None
        ),
    )
