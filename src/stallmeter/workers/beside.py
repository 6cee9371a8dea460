"""What the loop's own work takes while workers rest, and while one of them makes a batch: from single steps.

A loop that computes with several threads loses far more to a worker than that one's CPU time: the threads of an
operation wait for the slowest, by spinning, and one that is without a CPU for a time slice of milliseconds holds up an
operation of microseconds. Measured with 2 threads on 2 CPUs: 6 ms a step while the workers rested, 16 while they did
not. What the mean step takes is a mixture of the two, and says neither.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..records import HostSample, StepRecord, WorkerBatch

if TYPE_CHECKING:
    from .model import Limits, LoaderCosts

RESTS = 0.1
"""Workers at work in the mean of a step's own work, up to which they rest; our choice."""

CROWDS = 0.5
"""As many from which on they do not."""

SPINS_S = 0.02
"""For so long at the most a thread of an operation spins after it: libgomp's 300,000 rounds take some 15 ms."""

IN_STEPS = 0.8
"""Part of the time that steps must make up for the mean CPU use of the process to be theirs; our choice."""

KNOWN = 0.95
"""Part of a step's own work for which it must be known what a worker did."""

HELPS = 0.3
"""CPUs that other threads keep busy while a batch is made from which on they help to make it; our choice."""

ENOUGH = 5
"""Steps of each kind: the mean of fewer is a guess; as `costs.MIN_STEPS`."""

ERRORS = 3.0
"""Standard errors by which the two must differ: else nothing is known of either."""


@dataclass(frozen=True, slots=True)
class WorkBeside:
    """Mean work of a step, seconds."""

    quiet_s: float
    """While the workers rested."""
    crowded_s: float
    """While at least half a worker was at work."""


def work_beside(
    steps: Sequence[StepRecord], batches: Sequence[WorkerBatch], *, complete: bool = False
) -> WorkBeside | None:
    """Compare the steps beside which workers made batches with those beside which they rested.

    Args:
        steps: Steady ones. Those with a validation or a checkpoint in their midst are left out.
        batches: Of the workers, in any order.
        complete: Whether these are all that they made, but for some that were looked into: then a worker rests once an
            epoch's last batch is made. Else it is only known to rest before a batch that says for how long it did.

    Returns:
        None with fewer than 5 steps of either kind, and where they do not differ beyond chance.
    """
    by_worker: dict[int, list[WorkerBatch]] = defaultdict(list)
    for batch in sorted((b for b in batches if b.worker >= 0), key=lambda b: b.time_s):
        by_worker[batch.worker].append(batch)
    lanes = [_Lane.of(made, complete=complete) for made in by_worker.values()]
    quiet_s, crowded_s = [], []
    for step in steps:
        work_s = step.step_time_s - step.data_wait_s
        if work_s <= 0 or step.checkpoint_s or step.total_s > step.step_time_s:
            continue
        begins = step.time_s - work_s
        parts = [lane.parts(begins, step.time_s) for lane in lanes]
        busy = math.fsum(busy_s for busy_s, _ in parts) / work_s
        if busy >= CROWDS:
            crowded_s.append(work_s)
        elif busy <= RESTS and parts and all(known_s >= KNOWN * work_s for _, known_s in parts):
            quiet_s.append(work_s)
    if min(len(quiet_s), len(crowded_s)) < ENOUGH:
        return None
    quiet, crowded = _without_ends(quiet_s), _without_ends(crowded_s)
    found = WorkBeside(math.fsum(quiet) / len(quiet), math.fsum(crowded) / len(crowded))
    error_s = math.hypot(_error(quiet), _error(crowded))
    return found if abs(found.crowded_s - found.quiet_s) >= ERRORS * error_s else None


def lost_beside_s(costs: LoaderCosts, limits: Limits, workers: int) -> float:
    """Return what a step's own work takes longer than now with fewer workers, which are then at work for more of it.

    As a share of the time in which one of them is at work the loop comes on as slowly as it was seen to beside one. A
    single worker makes its batch beside all of a step, four of them theirs together beside a quarter of the steps.
    """
    quiet_s, crowded_s, cpus = costs.quiet_work_s, costs.crowded_work_s, limits.available_cpus
    if quiet_s is None or crowded_s is None or not cpus or workers >= costs.current or crowded_s <= quiet_s:
        return 0.0
    threads = min(cpus, max(1.0, costs.loop_cpu_s / costs.work_s)) if costs.work_s else 1.0
    at_work_s = costs.service_s * max(1.0, (threads + workers) / cpus) / workers
    work_s = min(crowded_s, quiet_s + (1.0 - quiet_s / crowded_s) * at_work_s)
    return max(0.0, work_s - costs.work_s)


def in_threads_s(
    costs: LoaderCosts, steps: Sequence[StepRecord], host: Sequence[HostSample], threads_cpus: float = 0.0
) -> float:
    """Return the CPU time, seconds, that other threads of the loop's spend on a batch that it makes itself.

    Only the loop's own thread is timed meanwhile. What the process computes beyond all that its CPUs could do in the
    step's own work belongs to the batches: of torch's operations on them, which have one thread in a worker. Threads
    that have nothing to do spin for a while after an operation, which is no work. Threads that Python code started
    compute no operation of the step either.

    Args:
        costs: As measured, without workers.
        steps: Steady ones, in the order of time.
        host: Samples of the same time.
        threads_cpus: CPUs that threads which Python code started kept busy.
    """
    usable = [sample.usable_cpus for sample in host if sample.usable_cpus is not None]
    if costs.current or not usable or len(steps) < ENOUGH:
        return 0.0
    passed_s = steps[-1].time_s - steps[0].time_s
    if math.fsum(step.step_time_s * step.every for step in steps) < IN_STEPS * passed_s:
        return 0.0
    beyond_s = costs.loop_cpu_s - statistics.fmean(usable) * costs.work_s - SPINS_S
    return max(0.0, beyond_s, min(threads_cpus * (costs.step_time_s or 0.0), costs.loop_cpu_s - costs.work_s))


@dataclass(frozen=True, slots=True)
class BatchThreads:
    """What threads beside the loop's own spend while it makes a batch, and what of it is work. Seconds of a step."""

    spent_s: float
    """CPU time of the process, less that of the loop's thread."""
    worked_s: float
    """As much of it as the one thread of a worker has to do as well."""


def batch_threads(
    batches: Sequence[WorkerBatch], *, cpus: float, per_step: float = 1.0, shares: tuple[float, float] | None = None
) -> BatchThreads | None:
    """Tell what threads of one operation compute for a batch from what they spin away between two operations.

    A thread spins for up to 20 ms after an operation, so that an item with a short one every few milliseconds keeps all
    threads busy for all of its time. They work no longer than the operations take: of a batch's time what calls of
    libraries that have such threads take, and half of what is spent in the program's own functions themselves, where
    an operator is no call that a profile shows.

    Args:
        batches: Made in the loop.
        cpus: That may be kept busy.
        per_step: Batches of a step.
        shares: Of a batch's time, in calls of such libraries, and in the program's own functions; None where nobody
            looked. All but a last spinning is taken for work then.

    Returns:
        None where the CPU time of the process was not read.
    """
    known = [(b.process_cpu_s - b.cpu_s, b.wall_s) for b in batches if b.worker < 0 and b.process_cpu_s is not None]
    if len(known) < ENOUGH:
        return None
    spent_s, wall_s = (per_step * max(0.0, math.fsum(part) / len(known)) for part in zip(*known, strict=True))
    beyond_s = max(0.0, spent_s - SPINS_S)
    if shares is None:
        return BatchThreads(spent_s, beyond_s)
    called_s, own_s = (max(0.0, cpus - 1.0) * share * wall_s for share in shares)
    worked_s = min(spent_s, called_s)
    return BatchThreads(spent_s, worked_s + min(max(0.0, beyond_s - worked_s), own_s / 2.0))


def are_a_librarys(threads: BatchThreads, costs: LoaderCosts, python_cpus: float) -> bool:
    """Whether the threads that help to make a batch are those of a library that is not torch, of its BLAS say.

    Where torch has one thread, what else computes is neither its own nor, beyond what they use, threads of Python's.

    Args:
        threads: Of a batch that the loop makes.
        costs: As measured.
        python_cpus: CPUs that threads which Python code started kept busy.
    """
    others_s = threads.spent_s - python_cpus * (costs.step_time_s or 0.0)
    return costs.torch_threads == 1 and others_s >= HELPS * costs.service_s > 0.0


def spun_s(costs: LoaderCosts, cpus: float, ran_s: float | None) -> float:
    """Return the CPU time, seconds, that threads spin away in the loop's own work of a step.

    The loop's thread takes part in each operation of its threads. Where they take more than all CPUs could do while it
    runs, they spin: after the batch that it made before, say, while it waits for a device.

    Args:
        costs: As measured.
        cpus: That may be kept busy.
        ran_s: Of that work, how long the loop's own thread ran; None where that is not known.
    """
    if ran_s is None or cpus <= 1.0:
        return 0.0
    return max(0.0, min(costs.loop_cpu_s - cpus * min(ran_s, costs.work_s), (cpus - 1.0) * SPINS_S))


def shared_already_s(batches: Sequence[WorkerBatch], sending_s: float) -> float:
    """Return how long workers put a batch into shared memory while they collate: half of that time at the most.

    Args:
        batches: Of the workers.
        sending_s: What it takes for such a batch.
    """
    collated_s = [batch.collate_s for batch in batches if batch.worker >= 0 and batch.collate_s is not None]
    return min(sending_s, statistics.fmean(collated_s) / 2.0) if collated_s else 0.0


class _Turn(NamedTuple):
    """A worker rested, and made a batch. Unix times, seconds."""

    rested_from: float
    began: float
    ended: float


class _Lane(NamedTuple):
    """What is known of one worker, in the order of time."""

    turns: Sequence[_Turn]
    ends: Sequence[float]

    @classmethod
    def of(cls, made: Sequence[WorkerBatch], *, complete: bool) -> _Lane:
        """Return it by its batches. Those that were looked into are left out: for so long nothing is known of it."""
        turns, before = [], math.inf
        for batch in made:
            began = batch.time_s - batch.wall_s
            # The first batch of another process: the one before had come to its end.
            rested_from = before if complete and batch.idle_s is None else began - (batch.idle_s or 0.0)
            turns.append(_Turn(min(rested_from, began), began, batch.time_s))
            before = batch.time_s
        if complete:
            turns.append(_Turn(before, math.inf, math.inf))
        return cls(turns, [turn.ended for turn in turns])

    def parts(self, begins: float, ends: float) -> tuple[float, float]:
        """Return for how long it made batches between two times, and for how long it is known what it did."""
        busy_s = known_s = 0.0
        for at in range(bisect_right(self.ends, begins), len(self.turns)):
            turn = self.turns[at]
            busy_s += max(0.0, min(ends, turn.ended) - max(begins, turn.began))
            known_s += max(0.0, min(ends, turn.ended) - max(begins, turn.rested_from))
            if turn.began >= ends:
                break
        return busy_s, known_s


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _without_ends(values: Sequence[float]) -> Sequence[float]:
    """Return values without the lowest and the highest tenth: a hiccup of the machine is of neither kind."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    return ordered[cut : len(ordered) - cut]
