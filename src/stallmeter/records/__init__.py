"""Frozen facts with units in their names: seconds as float, sizes in bytes, ``_pct`` 0-100. Not measured is None."""

from __future__ import annotations

from .device import AllocatorSample, DeepProfile, DeviceStep, Operator, SyncCalls
from .hardware import GpuSample, HostSample, NetworkSample
from .loader import BatchContent, Fork, LoaderInfo, WorkerBatch, WorkerChange, WorkerMemory, WorkerTrial, WorkerWaits
from .steps import BUCKETS, Event, LedgerRecord, StepRecord, UserMetrics, WindowRecord

__all__ = [
    "BUCKETS",
    "AllocatorSample",
    "BatchContent",
    "DeepProfile",
    "DeviceStep",
    "Event",
    "Fork",
    "GpuSample",
    "HostSample",
    "LedgerRecord",
    "LoaderInfo",
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
    "WorkerWaits",
]

Sample = (
    HostSample
    | GpuSample
    | WorkerBatch
    | LoaderInfo
    | Fork
    | WorkerMemory
    | WorkerWaits
    | DeviceStep
    | AllocatorSample
    | SyncCalls
    | DeepProfile
    | Event
)
"""What a Source may return."""

Record = StepRecord | LedgerRecord | WindowRecord | UserMetrics | BatchContent | WorkerChange | WorkerTrial | Sample
"""What a recording may hold, verdicts apart."""
