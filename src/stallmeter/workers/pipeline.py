"""What makes the batches where torch's workers do not, and what a step would take if that were otherwise.

There is no number to recommend: how many threads or processes a library has, and how they share their work, is its own
affair. What can be told is a bound. However many make batches, a step takes as long as the loop's own work, and as the
CPU time that the whole job spends on it lasts on the CPUs that it may use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .costs import limits_from

INSTEAD = ("spent.data_wait_share_pct", "loader.producers.looks", "steps.work_s", "loader.info")
"""Signals that stand in for those of torch's workers."""

CONFIDENCE = 0.75
"""Who is at work was seen, how long each takes was not: less than where workers time themselves; our choice."""

OWN_THREADS = "threads of the program"
"""Culprit where they do not keep the loop waiting, but take the CPUs that its steps need."""

ONE_LOCK = "a lock of the program's own"
"""Culprit where threads that make batches stand in line for one."""

CHEAPER = Advice.of("Make one batch cheaper: simpler or batched transforms, a faster format, a cache.")

ERROR = 0.25
"""Of a step time predicted like this, 8 of 10 times; our choice."""

MOST = 0.5
"""Of the wait, of those at work."""

OUTSIDE = 2 / 3
"""Share of those at work that are in other processes, from which on these make the batches. Of threads that ask a
server which the program has started each has its partner there: a half."""

RECEIVING = 0.3
"""Share of those at work that are in other processes, up to which these wait for somebody to take their batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Threads or processes that make batches, and the steps that wait for them. Times in seconds."""

    kind: str
    """Class of what the loop iterates."""
    step_s: float
    work_s: float
    """A step without the wait for data."""
    cpu_bound_s: float | None
    """What the CPU time of a step takes on all CPUs that the job may use; None where they are not known."""
    spread: float
    """Share of the available CPUs that those who make batches can use as they are, 0 to 1."""
    loop_share: float
    """Share of the wait in which the loop's thread makes the batch itself."""
    at_work: float
    """Mean number of producers at work in the wait; of threads those of this process alone."""
    blocked_share: float
    """Of those who make the batch, whoever it is: the share that is blocked."""
    outside: bool
    """Whether most of them are other processes."""
    receives: bool
    """Whether there are processes that make batches, and what takes the time is receiving them in this one."""

    @property
    def in_loop(self) -> bool:
        """Whether the loop's own thread makes most of the batches."""
        return self.loop_share >= MOST

    @property
    def more_s(self) -> float | None:
        """Step time if enough made batches at the same time."""
        if self.cpu_bound_s is None:
            return None
        return min(self.step_s, max(self.work_s, self.cpu_bound_s, self.spread * self.step_s))

    @property
    def more_gain_pct(self) -> float | None:
        """Rise of throughput of that, percent."""
        return self.gain_pct(self.more_s)

    @property
    def free_gain_pct(self) -> float:
        """Rise of throughput, percent, if batches cost nothing."""
        return self.gain_pct(min(self.work_s, self.step_s)) or 0.0

    def gain_pct(self, step_s: float | None) -> float | None:
        """Return the rise of throughput, percent, with steps of this length; None where that is not known."""
        return None if not step_s or step_s <= 0 else max(0.0, 100.0 * (self.step_s / step_s - 1.0))

    def interval_pct(self, gain_pct: float | None) -> tuple[float, float] | None:
        """Return between which gains the truth lies in 8 of 10 runs, percent."""
        if gain_pct is None:
            return None
        factor = 1.0 + gain_pct / 100.0
        return 100.0 * max(0.0, factor / (1.0 + ERROR) - 1.0), 100.0 * (factor * (1.0 + ERROR) - 1.0)

    @property
    def who(self) -> str:
        """Who makes the batches, in words."""
        return "processes" if self.outside else "threads"


def pipeline_of(window: Window) -> Pipeline | None:
    """Return what is known of a loader without torch's workers; None with them, and where too little was seen."""
    loader, producers = window.loader.info, window.loader.producers
    if loader is None or loader.probed or producers.looks is None:
        return None
    return window.remember("pipeline", lambda: _find(window, loader.kind))


def made_by_threads(window: Window) -> bool:
    """Whether the loop asks something for its batches that is no loader with workers: threads may make them."""
    loader = window.loader.info
    return loader is not None and not loader.probed and not window.loader.asks_none


def threads_for_a_batch_s(window: Window) -> float:
    """Return the CPU seconds that threads of the program compute in a step whose batch the loop makes; 0 with workers.

    A dataset may decode in a pool of its own: the loop's thread waits for that, and seems to wait for storage.
    """
    cpus, step = window.host.loop.threads_cpus, window.steps.step_time_s
    return 0.0 if window.loader.num_workers != 0 or cpus is None or step is None else cpus * step.mean


def _find(window: Window, kind: str) -> Pipeline | None:
    producers, step, work = window.loader.producers, window.steps.step_time_s, window.steps.work_s
    loop_share = producers.loop_share
    if step is None or work is None or loop_share is None:
        return None
    blocked = producers.loop_blocked_share if loop_share >= MOST else producers.blocked_share
    outside = producers.outside_share or 0.0
    by_others = outside >= OUTSIDE
    available = limits_from(window.host.samples.items, budget=window.facts.budget).available_cpus
    job = window.host.job_cpus
    return Pipeline(
        kind=kind[:40],
        step_s=step.mean,
        work_s=work.mean,
        cpu_bound_s=None if not available or job is None else step.mean * job / available,
        spread=min(1.0, (producers.computing or 0.0) / available) if available and loop_share < MOST else 0.0,
        loop_share=loop_share,
        at_work=(producers.at_work or 0.0) * (1.0 if by_others else 1.0 - outside),
        blocked_share=blocked or 0.0,
        outside=by_others,
        receives=(producers.processes or 0.0) >= 1.0 and outside < RECEIVING and (blocked or 0.0) < MOST,
    )


class _Rule(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...


def counted_by_the_library(window: Window) -> tuple[Evidence, ...]:
    """Return what the library that makes the batches says of the waits: of the whole, and of its largest part."""
    known = window.loader.producers.library
    if known is None:
        return ()
    whole = Evidence(f"blocked, as {known.library} counts it", known.blocked_s, "s", source=known.library)
    if not known.parts:
        return (whole,)
    part, seconds = max(known.parts.items(), key=lambda item: item[1])
    return whole, Evidence(f"of that: {part}", seconds, "s", source=known.library)


def diagnosis_of(
    rule: _Rule,
    window: Window,
    pipeline: Pipeline,
    *,
    summary: str,
    warn_pct: float,
    evidence: Iterable[Evidence],
    advice: Iterable[Advice],
    supersedes: tuple[str, ...] = (),
    confidence: float = CONFIDENCE,
) -> Diagnosis:
    """Return a diagnosis of the whole data wait.

    Args:
        rule: That says it.
        window: What it has read.
        pipeline: What makes the batches.
        summary: Of the rule.
        warn_pct: The rule's threshold for the wait's share of the training time.
        evidence: Beside the wait.
        advice: The first first.
        supersedes: Other rules' ids that this one explains.
        confidence: Of the rule, 0 to 1.
    """
    share, lost = window.spent.data_wait_share_pct or 0.0, window.spent.bucket_s("data_wait") or 0.0
    return Diagnosis(
        rule=rule.id,
        supersedes=supersedes,
        severity=Severity.CRITICAL if share >= 2 * warn_pct else Severity.WARNING,
        title=rule.title,
        summary=summary,
        time_lost_s=lost,
        share_pct=window.ledger.share_pct(lost) or 0.0,
        confidence=confidence,
        evidence=(
            Evidence("data wait, share of training time", share, "%", warn_pct, "MLPerf Storage"),
            Evidence("wait for data in a step, mean", pipeline.step_s - pipeline.work_s, "s"),
            *evidence,
            *counted_by_the_library(window),
        ),
        advice=tuple(advice),
    )
