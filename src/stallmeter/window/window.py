"""One run on one rank, as far as rules and reports may know it: parts, each with the signals of one topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ..records import (
    AllocatorSample,
    BatchContent,
    CodeLook,
    CompilerSample,
    Convolutions,
    CpuAutocast,
    DebugModes,
    DeepProfile,
    DenseEmbeddings,
    DeviceStep,
    DroppedGradients,
    EvaluationBatches,
    Event,
    FixedFeatures,
    Fork,
    GarbagePauses,
    GpuSample,
    HostSample,
    LedgerRecord,
    LibraryWait,
    LoaderInfo,
    LockTrial,
    MadeWeights,
    MemorySample,
    OptimizerInfo,
    ProducerLooks,
    Record,
    RepeatedBackward,
    SameResults,
    ScoredPositions,
    StepRecord,
    SubnormalTensors,
    SyncCalls,
    UnusedGradients,
    WideNumbers,
    WorkerBatch,
    WorkerChange,
    WorkerMemory,
    WorkerTrial,
    WorkerWaits,
)
from ..records.stats import Reservoir
from .code import CodeSignals
from .device import DeviceSignals
from .facts import Facts
from .gpu import GpuSignals
from .host import HostSignals
from .ledger import LedgerSignals
from .loader import LoaderSignals
from .memo import Memo
from .pace import Pace
from .phases import Phases
from .queue import QueueSignals
from .sizes import SizeSignals
from .spent import SpentSignals
from .steps import StepSignals
from .workers import WorkerSignals

T = TypeVar("T")

PART = {
    StepRecord: "steps",
    LedgerRecord: "ledger",
    HostSample: "host",
    MemorySample: "host",
    GarbagePauses: "host",
    GpuSample: "gpu",
    AllocatorSample: "gpu",
    WorkerBatch: "workers",
    WorkerMemory: "workers",
    Fork: "workers",
    WorkerWaits: "workers",
    ProducerLooks: "loader",
    LibraryWait: "loader",
    LoaderInfo: "loader",
    BatchContent: "loader",
    WorkerTrial: "loader",
    DeviceStep: "device",
    SyncCalls: "device",
    DeepProfile: "device",
    CompilerSample: "device",
    DebugModes: "device",
    CodeLook: "code",
    LockTrial: "code",
    CpuAutocast: "spent",
    EvaluationBatches: "spent",
    OptimizerInfo: "spent",
    UnusedGradients: "spent",
    DenseEmbeddings: "spent",
    DroppedGradients: "spent",
    SubnormalTensors: "spent",
    ScoredPositions: "spent",
    WideNumbers: "spent",
    MadeWeights: "spent",
    FixedFeatures: "spent",
    RepeatedBackward: "spent",
    SameResults: "spent",
    Convolutions: "spent",
    Event: "events",
}
"""Which part of a window takes which kind of record. Kinds that no signal needs are not listed."""

READINGS = 128
"""Readings of the ledger that are kept, spread evenly over the run."""

SMALLER = 256
"""Steps with smaller batches that are kept: a median of as many is known to a twentieth of their spread."""


class Window:
    """What is known of a run. A signal that was not measured is None.

    It is bounded however long the run is: most steps and samples are kept as a sample spread evenly over the whole run.

    Args:
        facts: Static facts, shared with the caller.
        steps: Most steps kept.
        samples: Most samples kept of the host, of each GPU and of the workers' memory.
        batches: Most worker batches kept.
    """

    def __init__(
        self, facts: Facts | None = None, *, steps: int = 4096, samples: int = 1024, batches: int = 4096
    ) -> None:
        self.facts = Facts() if facts is None else facts
        """What is known of the run from its start on."""
        self.events: deque[Event] = deque(maxlen=256)
        """The newest events."""
        self.before: Window | None = None
        """The window before the number of workers was changed; None without a change."""
        readings: Reservoir[LedgerRecord] = Reservoir(READINGS)
        self.ledger = LedgerSignals(readings)
        pace = Pace(batches=batches)
        self.loader = LoaderSignals(pace)
        self.workers = WorkerSignals(pace, samples=samples)
        looked: dict[float, float] = {}
        smaller: Reservoir[StepRecord] = Reservoir(SMALLER)
        self.steps = StepSignals(
            self.loader,
            self.ledger,
            size=steps,
            readings=readings,
            workers=self.workers,
            looked=looked,
            smaller=smaller,
        )
        self.sizes = SizeSignals(self.steps, smaller)
        self.queue = QueueSignals(self.steps, self.loader)
        self.host = HostSignals(self.facts, self.steps, size=samples)
        self.gpu = GpuSignals(self.facts, self.steps, size=samples)
        self.device = DeviceSignals(size=steps)
        self.code = CodeSignals(self.steps, self.ledger, self.events, readings, looked)
        self.spent = SpentSignals(self.ledger, self.device, self.gpu)
        # The others are made of these.
        parts = (self.ledger, self.workers, self.loader, self.host, self.gpu, self.device, self.code)
        self._memo = Memo(*(part.memo for part in parts))
        self._phases: Phases[Window] | None = None

    def append(self, record: Record) -> None:
        """Take a record into the history. Kinds that no signal needs are ignored."""
        if isinstance(record, WorkerChange) and self._phases is None:
            self._phases = Phases(self, self._begin_phase)
        if self._phases is not None:
            self._phases.append(record)
        part = PART.get(type(record))
        if part is not None:
            getattr(self, part).append(record)

    def present(self) -> Window:
        """The history since the number of workers was last changed: what rules may judge."""
        return self if self._phases is None else self._phases.present()

    def remember(self, key: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returned the last time, unless a record came in between."""
        return self._memo(key, make)

    def _begin_phase(self, change: WorkerChange, past: Window) -> Window:
        # The loader's own record may have come before the change was known.
        past.loader.set_workers(change.before)
        past.before = None
        phase = Window(self.facts)
        phase.before = past
        phase.loader.follow(self.loader)
        phase.spent.follow(self.spent)
        phase.loader.set_workers(change.workers)
        return phase
