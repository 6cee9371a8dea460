"""What a step would take if one cause of waiting for data were gone: the num_workers model, asked with other costs.

Causes that lengthen the same wait can only be weighed against each other like this: what each of them adds depends on
the others. A slow hand-over costs nothing behind workers that are slower still, and a neighbour that takes a CPU costs
nothing where the device sets the pace.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from .costs import BatchShape, default_handover_s
from .model import HANDOVER_S, NEAR_BEST, Limits, LoaderCosts, predict_step_time_s
from .plan import best_plan

SLOW_BATCH = 4.0
"""A batch that takes so many times the median is a slow one; benchmarks/faults."""

SHORT = 0.85
"""Share of the CPUs' time that loop and workers need, from which on they get into each other's way."""

WAITS = 0.25
"""Share of its time that a worker waits for a CPU, from which on CPUs are short; benchmarks/faults."""

MOST_WAITED = 0.75
"""Of the time of loop or worker; a larger part that waits for a CPU is not believed."""

LOCKED = 0.9
"""Part of a step for which a lock that workers share is held, from which on it sets the pace; our choice."""

RARE = 0.15
"""Up to this share of the batches slow ones are exceptions; more of them are how the loader is."""

ENOUGH = 0.55
"""A setting that wins back this part of what work on code or data would is the better advice; our choice: it costs a
line. What a step takes then is known to some tenths of it."""


@dataclass(frozen=True, slots=True)
class LoopWaits:
    """How long the loop's own thread could run and had no CPU, seconds in each step."""

    all_s: float
    neighbours_s: float
    """Of it because of other jobs; the rest is the job's own crowd, the workers first of all."""
    workers_s: float | None = None
    """Of it because of this rank's own processes; None where that is not known, and all of the rest may be."""

    @property
    def own_s(self) -> float:
        """Seconds that the loop would not wait without its workers."""
        rest_s = max(0.0, self.all_s - self.neighbours_s)
        return rest_s if self.workers_s is None else min(rest_s, self.workers_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Predicted step times, seconds, each with one cause gone and everything else as it is."""

    observed_s: float
    """As it was measured."""
    now_s: float
    """As the model has it."""
    free_s: float
    """Data cost nothing at all."""
    best_workers_s: float
    """The best number of workers, with one thread of the loop where that belongs to it."""
    light_handover_s: float
    """A batch is one tensor of the same size."""
    even_s: float | None
    """Rare slow batches take as long as the others; None where there are none, or where batches come in any order."""
    unblocked_s: float | None
    """Workers never wait for storage, network or a lock; None where that was not measured."""
    no_cpu_s: float | None
    """Making a batch costs no CPU time; None like the one before."""
    alone_s: float | None
    """No other job uses these CPUs; None where others are not known."""
    no_indices_s: float | None = None
    """Choosing the items of a batch takes no time; None where it takes next to none."""
    unlocked_s: float | None = None
    """What workers do in a lock they do side by side; None where no lock sets the pace."""

    def recovers(self, step_s: float | None, *, beside_s: float = 0.0) -> float:
        """Return the share (0 to 1) of the loss to data that a predicted step wins back; 0 where it is not known.

        Args:
            step_s: The predicted step.
            beside_s: Lost in a mean step beside what the model knows of, and won back with it.
        """
        lost_s = self.now_s - self.free_s + beside_s
        if step_s is None or lost_s <= 0:
            return 0.0
        return min(1.0, max(0.0, (self.now_s - step_s + beside_s) / lost_s))

    def is_the_setting(self, step_s: float | None) -> bool:
        """Whether a predicted step is what to advise of several changes that win back the same time.

        A setting is changed in a line, so it comes before work on items, batches or sampler that wins a little more. Of
        settings the one that wins most is meant.
        """
        if step_s is None:
            return False
        works = (self.unblocked_s, self.no_cpu_s, self.light_handover_s, self.even_s, self.no_indices_s)
        saved_s = self.now_s - step_s
        most_s = max((self.now_s - s for s in works if s is not None), default=0.0)
        settings = (self.best_workers_s, self.alone_s)
        return saved_s >= ENOUGH * most_s and all(step_s <= s * (1 + NEAR_BEST) for s in settings if s is not None)

    @property
    def most_gain_pct(self) -> float:
        """Largest rise of throughput, percent, that one change of the loader is predicted to bring."""
        steps = (self.best_workers_s, self.light_handover_s, self.even_s, self.unblocked_s, self.no_cpu_s)
        return max(self.gain_pct(step_s) or 0.0 for step_s in steps)

    def gain_pct(self, step_s: float | None) -> float | None:
        """Return the rise of throughput, percent, that a predicted step means; None where it is not known.

        The part of the loss that comes back is taken of the step as it was measured: what the model misses of the loss
        is shared out like the rest.
        """
        if step_s is None or step_s <= 0:
            return None
        then_s = self.observed_s - self.recovers(step_s) * max(0.0, self.observed_s - self.free_s)
        # Where CPUs are short the loop itself is slower than it would be.
        then_s -= max(0.0, self.free_s - step_s)
        return 100.0 * (self.observed_s / then_s - 1.0) if then_s > 0 else None


def what_if(
    costs: LoaderCosts,
    limits: Limits,
    *,
    blocked_s: float | None = None,
    usable_cpus: float | None = None,
    cpu_wait_share: float | None = None,
    batch: BatchShape | None = None,
    parts: float = 1.0,
    loop_waits: LoopWaits | None = None,
) -> WhatIf:
    """Ask the model what a step takes with each cause gone.

    Args:
        costs: Measured with the present number of workers.
        limits: What the workers may use.
        blocked_s: Mean time of a batch in which its worker waited for storage, network or a lock.
        usable_cpus: CPUs that this rank may use when no other job does.
        cpu_wait_share: Share (0 to 1) of its time that a worker waits for a CPU.
        batch: What a batch consists of.
        parts: So many things are handed over for one batch of the loop, which is put together there.
        loop_waits: Of the loop's thread for a CPU. Without it, a loop that computes is taken to wait like a worker.
    """

    def step_s(other: LoaderCosts, within: Limits = limits) -> float:
        return predict_step_time_s(other, within, costs.current)

    now_s = step_s(costs)
    blocked = None if blocked_s is None else min(blocked_s, costs.service_s)
    handover_s = costs.default_handover_s if costs.handover_s is None else costs.handover_s
    waits = min(MOST_WAITED, cpu_wait_share or 0.0)
    # Where CPUs are short the loop's thread has to wait for one as well, and takes longer to receive a batch.
    needed_s = (costs.cpu_s + costs.loop_cpu_s) / (limits.available_cpus or math.inf)
    short = needed_s >= SHORT * now_s or waits >= WAITS
    usual_s = costs.default_handover_s if batch is None else default_handover_s(batch)
    quick_s = min(handover_s, usual_s) if short else handover_s
    if loop_waits is None:
        loop_waits = like_a_worker(costs, limits, cpu_wait_share)

    # A loop that makes its batches itself does so before its work, not beside it.
    crowd_s = loop_waits.all_s if costs.current else 0.0

    def quieter(waits_s: float, *, for_workers: bool) -> LoaderCosts:
        return replace(eased(costs, waits_s, for_workers=for_workers), handover_s=quick_s)

    even = without_slow_batches(costs)
    neighbours = limits.neighbour_cpus > 0 and usable_cpus is not None
    return WhatIf(
        observed_s=costs.step_time_s or now_s,
        now_s=now_s,
        free_s=min(now_s, costs.work_s),
        best_workers_s=best_plan(costs, limits).best.step_time_s,
        light_handover_s=step_s(_light(costs, handover_s, batch, parts)),
        even_s=None if even is None else step_s(even),
        unblocked_s=None
        if blocked is None
        else step_s(replace(costs, service_s=costs.service_s - blocked), replace(limits, shared_s=0.0, adds_s=0.0)),
        no_cpu_s=None
        if blocked is None
        else step_s(replace(quieter(crowd_s, for_workers=True), neighbour_wait_s=0.0, service_s=blocked, cpu_s=0.0)),
        alone_s=step_s(
            replace(quieter(loop_waits.neighbours_s, for_workers=False), neighbour_wait_s=0.0),
            replace(limits, available_cpus=usable_cpus, neighbour_cpus=0.0),
        )
        if neighbours
        else None,
        no_indices_s=step_s(_without_indices(costs)) if costs.indices_s else None,
        unlocked_s=step_s(costs, replace(limits, shared_s=0.0, adds_s=0.0))
        if limits.shared_by == "lock" and limits.shared_s >= LOCKED * now_s
        else None,
    )


def _light(costs: LoaderCosts, handover_s: float, batch: BatchShape | None, parts: float) -> LoaderCosts:
    """Return the costs with batches of one tensor: the part of the hand-over goes that comes with their number."""
    if batch is None:
        return replace(costs, handover_s=min(handover_s, HANDOVER_S))
    one = batch.as_one_tensor
    light_s = handover_s / parts * default_handover_s(one) / default_handover_s(batch)
    # Sending and receiving each tensor is work on both sides.
    return replace(
        costs,
        handover_s=light_s,
        cpu_s=max(0.0, costs.cpu_s - max(0.0, batch.sending_s - one.sending_s)),
        loop_cpu_s=max(0.0, costs.loop_cpu_s - (handover_s - light_s)),
    )


def _without_indices(costs: LoaderCosts) -> LoaderCosts:
    """Return the costs with a sampler that takes no time, and no CPU time: it computes as a rule."""
    return replace(
        costs,
        work_s=max(0.0, costs.work_s - costs.indices_s),
        quick_work_s=max(0.0, costs.quick_work_s - costs.indices_s),
        quiet_work_s=_less(costs.quiet_work_s, costs.indices_s),
        crowded_work_s=_less(costs.crowded_work_s, costs.indices_s),
        loop_cpu_s=max(0.0, costs.loop_cpu_s - costs.indices_s),
        indices_s=0.0,
    )


def _less(work_s: float | None, saved_s: float) -> float | None:
    return None if work_s is None else max(0.0, work_s - saved_s)


def in_turn(costs: LoaderCosts) -> float:
    """Return for which part (0 to 1) of their waits the loop's threads wait one at a time: beside a single worker.

    It takes the CPU of one of them at each moment, and never of two. Two workers do so of two.
    """
    if not costs.current or not costs.step_time_s:
        return 0.0
    at_work = (costs.service_s + costs.own_wait_s) / costs.step_time_s
    return min(1.0, max(0.0, 2.0 - at_work))


def inside_work_s(costs: LoaderCosts, waits_s: float) -> float:
    """Return how much of the waits of the loop's thread for a CPU lies in a step's own work, seconds.

    The thread computes in that, and while it receives or makes a batch; it cannot lack a CPU elsewhere.
    """
    computes_s = costs.work_s + (receiving_s(costs) if costs.current else costs.service_s)
    return waits_s * costs.work_s / computes_s if computes_s else 0.0


def eased(costs: LoaderCosts, waits_s: float, *, for_workers: bool = True) -> LoaderCosts:
    """Return the costs once the loop's thread waits less for a CPU: a step is shorter, and threads of it spin less.

    Threads that share an operation wait for the slowest of them. Where a worker takes the CPU from one, all lose that
    time, and those that are not waiting for a CPU spin meanwhile: what the loop's own thread waits stands for each, at
    moments of its own, or in turn. Beside one busy worker two threads that waited a third of the time lost 0.63 to 0.67
    of it (two programs of others): one after the other they lose 0.67, at random 0.55.

    Args:
        costs: As measured.
        waits_s: So much less in each step.
        for_workers: Whether it is workers that it waits for; else other jobs, of which nobody knows how many.
    """
    received_s, inside_s = receiving_s(costs), inside_work_s(costs, waits_s)
    least_s = (1.0 - MOST_WAITED) * costs.work_s
    ran_s = costs.work_s - inside_s
    believed = ran_s >= least_s > 0
    runs_s = ran_s - costs.blocked_s
    threads = max(1.0, (costs.loop_cpu_s - received_s) / runs_s) if believed and runs_s > 0 else 1.0
    left_s = ran_s
    if threads > 1.0:
        # Each operation is as late as the latest of its threads. Of the time all run in a part (1 - w)^n where each
        # waits at random, and in 1 - n w where one at a time does.
        at_random_s = costs.blocked_s + costs.runs_s * (runs_s / costs.runs_s) ** threads
        in_turn_s = costs.work_s - threads * inside_s
        part = in_turn(costs) if for_workers else 0.0
        left_s = part * min(at_random_s, in_turn_s) + (1.0 - part) * at_random_s
        if for_workers and costs.current and costs.step_time_s:  # they hold up others no longer than they compute
            left_s = max(left_s, min(ran_s, costs.work_s - costs.cpu_s * min(1.0, costs.work_s / costs.step_time_s)))
        if 0.0 < costs.quick_work_s < at_random_s:  # short steps show it themselves: some are spared
            left_s = min(at_random_s, max(costs.quick_work_s, in_turn_s))
    elif costs.loop_cpu_s - received_s <= costs.work_s:  # with several threads it is no bound for the time of one
        least_s = max(least_s, costs.loop_cpu_s - received_s)
    work_s = min(costs.work_s, max(least_s, left_s))
    spins = min(1.0, threads - 1.0)
    saved = 1.0 - work_s / costs.work_s if costs.work_s else 0.0
    return replace(costs, work_s=work_s, loop_cpu_s=costs.loop_cpu_s * (1.0 - spins * saved))


def receiving_s(costs: LoaderCosts) -> float:
    """Return what the loop's thread computes to receive a batch; what a hand-over takes beyond the usual is waiting."""
    taken_s = costs.default_handover_s if costs.handover_s is None else costs.handover_s
    return min(taken_s, costs.default_handover_s) if costs.current else 0.0


def like_a_worker(costs: LoaderCosts, limits: Limits, cpu_wait_share: float | None) -> LoopWaits:
    """Guess what the loop's thread waits for a CPU from what a worker does, and divide it by who runs beside it.

    Args:
        costs: As measured.
        limits: What the workers may use.
        cpu_wait_share: Share (0 to 1) of its time that a worker waits for a CPU.
    """
    waits = min(MOST_WAITED, cpu_wait_share or 0.0)
    all_s = min(MOST_WAITED * costs.work_s, costs.loop_cpu_s * waits / (1.0 - waits))
    own = costs.cpu_s / costs.step_time_s if costs.current and costs.step_time_s else 0.0
    beside = limits.neighbour_cpus + own
    return LoopWaits(all_s, all_s * limits.neighbour_cpus / beside if beside > 0 else 0.0)


def without_slow_batches(costs: LoaderCosts) -> LoaderCosts | None:
    """Return the costs with every rare slow batch as quick as a typical one; None where there are no such batches."""
    if not sum(costs.profile):
        return None
    typical_s = statistics.median(costs.profile)
    slow = [s for s in costs.profile if s >= SLOW_BATCH * typical_s]
    if not slow or typical_s <= 0 or len(slow) > RARE * len(costs.profile):
        return None
    profile = tuple(typical_s if s >= SLOW_BATCH * typical_s else s for s in costs.profile)
    shorter = math.fsum(profile) / math.fsum(costs.profile)
    service_s = costs.service_s * shorter
    return replace(costs, profile=profile, service_s=service_s, cpu_s=min(costs.cpu_s, service_s))
