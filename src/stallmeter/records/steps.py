"""What the training loop did: its steps, the ledger of its time, periods of it, and what else is worth knowing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BUCKETS = (
    "start",
    "warmup",
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

HINDSIGHT = ("start", "warmup")
"""Buckets that no step has: before the first one, and what is only known of the first ones when others have come."""

OWN_NAME = "StallMonitor"
"""Name of stallmeter's own hooks among the callbacks, also in a loop without any: their cost is no finding."""

VALIDATION_PARTS = ("start", "wait")
"""What a validation loader takes: its iterator with the first batch that its workers make, and its other batches."""


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
    """Recorded only because it was slow, or its batch smaller, where steps come too fast to record all: no part of the
    even sample."""
    every: int = 1
    """One row of so many was recorded when this step was, see `rows`: it stands for as many steps."""

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
    validation_parts: Mapping[str, float] = field(default_factory=dict)
    """Share of the ``validation`` bucket that its own loader took, seconds: `VALIDATION_PARTS`. Empty: not measured."""
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


END = "end"
"""Name of the event that says why a run ended."""

SAMPLING = "sampling every"
"""Begin of the name of the event that says that stallmeter looks less often: its own affair, no finding."""

AT_EXIT = "interpreter exit"
"""What that event says where the program ended, and the run with it."""

STANDS = "no step ends"
"""Name of the event that says for how long the training thread has been in one place, and in which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something worth knowing that is no measurement: a source switched off, a tracker attached."""

    time_s: float
    name: str
    detail: str = ""


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
