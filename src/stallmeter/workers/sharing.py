"""What is known of a lock or a store that all workers share, as the num_workers model takes it."""

from __future__ import annotations

from dataclasses import replace

from ..records.diagnosis import WorkerAdvice
from ..window import Window
from .model import Limits, LoaderCosts

MOSTLY = 0.5
"""Share of a batch's time that is blocked, from which on what is behind it decides about more workers."""

BLOCKED = 0.25
"""Share of a batch's time that is blocked, below which what workers wait for together decides nothing."""

NOT_SURE = 0.75
"""Factor on the confidence of a gain that is there only if the workers do not share what they wait for."""

REPEATED = 0.2
"""Part of a batch's time that is made for all workers' items, from which on it decides about their number; as where it
is told of. Our choice."""

AT_ONCE = 8
"""Workers, or twice the present number, beyond which nothing is recommended as long as it was not seen that workers do
not share what they wait for. Our choice: a server that sends 12 readers away now and then does so more with 43."""


def ask(more: int | None) -> str:
    """Return what advice that `is_doubtful` has to say of its limit.

    Args:
        more: Workers that would be best if they share nothing, where that is more than is recommended `at_once`.
    """
    if more is None:
        return "A store that all readers share would make the gain smaller: on_num_workers='apply' tries the number."
    return (
        f"A first step: {more} would be best if the readers share no store, which a run with it shows. "
        "on_num_workers='apply' goes on by itself."
    )


def learn_from_waits(window: Window, costs: LoaderCosts, limits: Limits) -> tuple[LoaderCosts, Limits]:
    """Put what workers were seen to share into costs and limits.

    A lock lets through at most as many batches as the time allows in which it is held for one; what was waited for it
    is no part of a batch's own time, for it depends on the number of workers. The same holds for a store.

    Args:
        window: Of one number of workers.
        costs: Measured in it.
        limits: Of the machine.
    """
    if (window.workers.blocked_share or 0.0) < BLOCKED:
        return costs, limits
    use, waited, wall = window.workers.waits.lock_use, window.workers.waits.lock_time_share, window.workers.batch_wall_s
    if use and waited and wall is not None and costs.step_time_s:
        held_s = use * costs.step_time_s
        own_s = max(costs.cpu_s, held_s, costs.service_s - waited * wall.mean)
        # The single times hold what was waited: played through again, others would wait as long.
        own = replace(costs, service_s=min(costs.service_s, own_s), profile=(), longest_s=())
        return own, replace(limits, shared_s=max(limits.shared_s, held_s), shared_by="lock")
    added_s, at_work = window.workers.waits.serial_s, window.workers.waits.at_work
    if added_s is None or at_work is None or at_work <= 1:
        return costs, limits
    # No store takes longer for a batch than the steps that are fed by it.
    added_s = min(added_s, costs.step_time_s or added_s)
    own_s = max(costs.cpu_s, added_s, costs.service_s - (at_work - 1) * added_s)
    own = replace(costs, service_s=min(costs.service_s, own_s), profile=(), longest_s=())
    return own, replace(limits, shared_s=max(limits.shared_s, added_s), adds_s=added_s)


def learn_from_repeats(window: Window, costs: LoaderCosts, limits: Limits) -> tuple[LoaderCosts, Limits]:
    """Put what each worker does for the items of all into costs and limits.

    A worker that is one of ``n`` makes ``n`` times as many items as it keeps. What that takes for one batch no number
    of workers makes shorter, and each of them adds it to the batches of all others.

    Args:
        window: Of one number of workers.
        costs: Measured in it.
        limits: Of the machine.

    Returns:
        The same where nothing of a batch is made for others, or that is not known.
    """
    look = window.code.at("workers")
    part = 0.0 if look is None or not look.wall_s else look.repeated_s / look.wall_s
    if part < REPEATED:
        return costs, limits
    workers = max(1, costs.current)
    adds_s = min(1.0, part) * costs.service_s / workers
    # The single times hold what was made for the others, and another number of them would have another part of it.
    alone = replace(costs, service_s=costs.service_s - (workers - 1) * adds_s, profile=(), longest_s=())
    found = replace(limits, shared_s=max(limits.shared_s, adds_s), adds_s=adds_s, shared_by="repeats")
    return alone, replace(found, adds_cpu_s=min(1.0, part) * costs.cpu_s / workers)


def is_doubtful(window: Window, advice: WorkerAdvice) -> bool:
    """Whether more workers are recommended as they are blocked, and nothing shows whether they share a store."""
    if advice.recommended <= max(1, advice.current) or (window.workers.blocked_share or 0.0) < MOSTLY:
        return False
    # Another number that was tried in this run has shown it.
    return window.before is None and advice.limited_by not in ("lock", "bandwidth", "repeats")


def at_once(advice: WorkerAdvice) -> int | None:
    """Return the most workers to try first where advice `is_doubtful`; None where it asks for no more than that."""
    most = max(AT_ONCE, 2 * advice.current)
    return most if advice.recommended > most else None


def doubt(advice: WorkerAdvice, more: int | None = None) -> WorkerAdvice:
    """Return advice that `is_doubtful`, less sure and with its reason.

    Args:
        advice: What is recommended.
        more: Workers that would be best if they share nothing, where that is more than is recommended `at_once`.
    """
    then = "" if more is None else f"; if not, {more} would be best"
    return replace(
        advice,
        confidence=round(NOT_SURE * advice.confidence, 2),
        reason=f"{advice.reason}. If the workers share the store that they wait for, less is gained{then}",
    )
