"""Frozen facts with units in their names: seconds as float, sizes in bytes, ``_pct`` 0-100. Not measured is None."""

from __future__ import annotations

from .device import AllocatorSample, DeepProfile, DeviceStep, Operator, SyncCalls
from .hardware import GarbagePauses, GpuSample, HostSample, MemorySample, NetworkSample
from .loader import BatchContent, Fork, LoaderInfo, WorkerBatch, WorkerChange, WorkerMemory, WorkerTrial
from .steps import BUCKETS, Event, LedgerRecord, StepRecord, UserMetrics, WindowRecord

__all__ = [
    "BUCKETS",
    "AllocatorSample",
    "BatchContent",
    "DeepProfile",
    "DeviceStep",
    "Event",
    "Fork",
    "GarbagePauses",
    "GpuSample",
    "HostSample",
    "LedgerRecord",
    "LoaderInfo",
    "MemorySample",
    "NetworkSample",
    "Operator",
    "Record",
    "Sample",
    "StepRecord",
    "SyncCalls",
    "UserMetrics",
    "WindowRecord",
    "WorkerBatch",
    "WorkerChange",
    "WorkerMemory",
    "WorkerTrial",
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
    | DeviceStep
    | AllocatorSample
    | SyncCalls
    | DeepProfile
    | Event
)
"""What a Source may return."""

Record = StepRecord | LedgerRecord | WindowRecord | UserMetrics | BatchContent | WorkerChange | WorkerTrial | Sample
"""What a recording may hold, verdicts apart."""
