"""Frozen facts with units in their names: seconds as float, sizes in bytes, ``_pct`` 0-100. Not measured is None."""

from __future__ import annotations

from .code import SENDS_OBJECTS, CodeItem, CodeLook, CodeSpot, CodeStack, LockTrial
from .compiler import CompilerSample
from .device import AllocatorSample, DeepProfile, DeviceStep, Operator, SyncCalls
from .exchange import Arrivals, DdpTimes
from .forward_passes import (
    Convolutions,
    FixedFeatures,
    MadeWeights,
    RepeatedBackward,
    SameResults,
    ScoredPositions,
    WideNumbers,
)
from .hardware import GarbagePauses, GpuSample, HostSample, MemorySample, NetworkSample
from .loader import (
    NO_LOADER,
    BatchContent,
    EvaluationBatches,
    Fork,
    LibraryWait,
    LoaderInfo,
    ProducerLooks,
    WorkerBatch,
    WorkerChange,
    WorkerMemory,
    WorkerTrial,
    WorkerWaits,
)
from .modes import CpuAutocast, DebugModes
from .optimizer import DenseEmbeddings, DroppedGradients, OptimizerInfo, SubnormalTensors, UnusedGradients
from .steps import (
    BUCKETS,
    HINDSIGHT,
    OWN_NAME,
    SAMPLING,
    VALIDATION_PARTS,
    Event,
    LedgerRecord,
    StepRecord,
    UserMetrics,
    WindowRecord,
)

__all__ = [
    "BUCKETS",
    "HINDSIGHT",
    "NO_LOADER",
    "OWN_NAME",
    "SAMPLING",
    "SENDS_OBJECTS",
    "VALIDATION_PARTS",
    "AllocatorSample",
    "Arrivals",
    "BatchContent",
    "CodeItem",
    "CodeLook",
    "CodeSpot",
    "CodeStack",
    "CompilerSample",
    "Convolutions",
    "CpuAutocast",
    "DdpTimes",
    "DebugModes",
    "DeepProfile",
    "DenseEmbeddings",
    "DeviceStep",
    "DroppedGradients",
    "EvaluationBatches",
    "Event",
    "FixedFeatures",
    "Fork",
    "GarbagePauses",
    "GpuSample",
    "HostSample",
    "LedgerRecord",
    "LibraryWait",
    "LoaderInfo",
    "LockTrial",
    "MadeWeights",
    "MemorySample",
    "NetworkSample",
    "Operator",
    "OptimizerInfo",
    "ProducerLooks",
    "Record",
    "RepeatedBackward",
    "SameResults",
    "Sample",
    "ScoredPositions",
    "StepRecord",
    "SubnormalTensors",
    "SyncCalls",
    "Told",
    "UnusedGradients",
    "UserMetrics",
    "WideNumbers",
    "WindowRecord",
    "WorkerBatch",
    "WorkerChange",
    "WorkerMemory",
    "WorkerTrial",
    "WorkerWaits",
]

Sample = (
    HostSample
    | GpuSample
    | MemorySample
    | GarbagePauses
    | WorkerBatch
    | LoaderInfo
    | Fork
    | WorkerMemory
    | WorkerWaits
    | ProducerLooks
    | LibraryWait
    | DeviceStep
    | AllocatorSample
    | SyncCalls
    | DeepProfile
    | CompilerSample
    | CpuAutocast
    | WideNumbers
    | MadeWeights
    | FixedFeatures
    | RepeatedBackward
    | SameResults
    | Convolutions
    | DebugModes
    | UnusedGradients
    | DenseEmbeddings
    | DroppedGradients
    | SubnormalTensors
    | CodeLook
    | LockTrial
    | Arrivals
    | DdpTimes
    | Event
)
"""What a Source may return."""

Told = UserMetrics | Event | BatchContent | EvaluationBatches | OptimizerInfo | ScoredPositions
"""What the program's own threads have recorded."""

Record = StepRecord | LedgerRecord | WindowRecord | Told | WorkerChange | WorkerTrial | Sample
"""What a recording may hold, verdicts apart."""
