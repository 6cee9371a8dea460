"""What the device did in steps, and PyTorch's memory on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
