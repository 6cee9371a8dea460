"""Bounded history of one run: what a window keeps and how it is filled.

A store holds a fixed number of records however long the run is: a sample of the steps spread evenly over the whole run,
the newest hardware samples, and the ledger, which is exact.
"""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..records import (
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
    Record,
    StepRecord,
    SyncCalls,
    WorkerBatch,
    WorkerChange,
    WorkerMemory,
    WorkerTrial,
)
from ..records.stats import Reservoir, Stats, stats

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

WARMUP_STEPS = 3
"""First steps of a run that say nothing about the rest: caches, autotuning, lazy initialisation."""

SLOW_STEPS = 10
"""Slowest steps that are kept whole, as examples."""

OPENERS = 256
"""First steps of epochs that are kept: they are judged only where an epoch has no other step."""

SETTLED_STEPS = 256
"""So many steady steps tell what the first wait of an epoch is to be compared with; before, it is compared anew."""

MIN_STEADY_STEPS = 5
"""Below this many steady steps a median is no basis for a verdict."""


class Store:
    """History of one run on one rank.

    Args:
        steps: Most step records kept.
        samples: Most samples kept of the host, of each GPU and of the workers' memory.
        batches: Most worker batches kept.
    """

    def __init__(self, *, steps: int = 4096, samples: int = 1024, batches: int = 4096) -> None:
        self.ledger: LedgerRecord | None = None
        self.loader: LoaderInfo | None = None
        self.first_steps: list[StepRecord] = []
        """The steps of the warm-up."""
        self._samples = samples
        self.host: Reservoir[HostSample] = Reservoir(samples)
        self._memory_peak_pct: float | None = None
        """Highest share of the memory limit in use, of all samples: of those that are kept a peak may be missing."""
        self.gpus: dict[int, Reservoir[GpuSample]] = {}
        self.gpu_memory_peak_bytes: dict[int, int] = {}
        """Highest use of each GPU's memory, of all samples."""
        self.batches: Reservoir[WorkerBatch] = Reservoir(batches)
        self.worker_memory: Reservoir[WorkerMemory] = Reservoir(samples)
        self.forks: deque[Fork] = deque(maxlen=4096)
        self.device_steps: Reservoir[DeviceStep] = Reservoir(steps)
        """Steady steps on the device's timeline."""
        self.allocators: dict[int, AllocatorSample] = {}
        """The newest sample of each device; peaks and counts in it are of the whole run."""
        self.syncs: SyncCalls | None = None
        """Calls that waited for the device in the steps that were probed; None when none were."""
        self.profile: DeepProfile | None = None
        self.events: deque[Event] = deque(maxlen=256)
        self.facts: dict[str, Any] = {}
        """Static facts of the recording's header."""
        self._steady: Reservoir[StepRecord] = Reservoir(steps)
        self._openers: Reservoir[StepRecord] = Reservoir(OPENERS)
        self._slowest: list[tuple[float, int, int, StepRecord]] = []
        self._first_waits: deque[float] = deque(maxlen=64)
        self._startup_excess_s = 0.0
        self._cache: dict[str, object] = {}
        self.content: BatchContent | None = None
        """What a batch holds."""
        self.trials: list[WorkerTrial] = []
        """Numbers of workers that were tried, each as it stands now."""
        self.before: Self | None = None
        """The steps with the number of workers before the present one."""
        self._since: tuple[float, LedgerRecord | None] | None = None
        self._phase: Self | None = None

    def present(self) -> Self:
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
                self._append_host(record)
            case GpuSample():
                self._append_gpu(record)
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

    def _append_host(self, sample: HostSample) -> None:
        self.host.add(sample)
        used, limit = sample.memory_limit_used_bytes, sample.memory_limit_bytes
        if used is not None and limit:
            self._memory_peak_pct = max(100.0 * used / limit, self._memory_peak_pct or 0.0)

    def _append_gpu(self, sample: GpuSample) -> None:
        self.gpus.setdefault(sample.index, Reservoir(self._samples)).add(sample)
        if sample.memory_used_bytes is not None:
            peaks = self.gpu_memory_peak_bytes
            peaks[sample.index] = max(sample.memory_used_bytes, peaks.get(sample.index, 0))

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

    def _begin_phase(self: Self, change: WorkerChange) -> None:
        past = self._phase or self._copy()
        # The loader's own record may have come before the change was known.
        past.loader = self.loader and replace(self.loader, num_workers=change.before)
        past.before = None
        phase = type(self)()
        phase.facts, phase.content, phase.trials, phase.before = self.facts, self.content, self.trials, past
        phase.loader = self.loader and replace(self.loader, num_workers=change.workers)
        phase._since = (change.time_s, self.ledger)
        self._phase = phase

    def _copy(self) -> Self:
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, dict, deque, Reservoir)):
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
                if len(self._steady) == SETTLED_STEPS:
                    self._settle_first_waits()
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
        wait = self.data_wait_s if self._first_waits else None
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
        return self.remember(name, lambda: stats(v for s in self.steady if (v := of(s)) is not None))

    @property
    def data_wait_s(self) -> Stats | None:
        """Data wait of steady steps."""
        return self._stats_of("data_wait_s", lambda s: s.data_wait_s)

    @property
    def _begun_s(self) -> float:
        """Unix time of the first steps that are known."""
        return next((s.time_s for s in (*self.first_steps[:1], *self._steady.items[:1])), float("-inf"))


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
