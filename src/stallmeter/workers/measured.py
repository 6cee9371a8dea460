"""What the batches and the steps of a window cost: what the num_workers model is asked with."""

from __future__ import annotations

from dataclasses import replace

from ..errors import SettingError
from ..window import Window
from .beside import KNOWN, are_a_librarys, batch_threads, in_threads_s, shared_already_s, spun_s, work_beside
from .costs import BatchShape, EpochStart, costs_from, limits_from
from .model import Limits, LoaderCosts
from .whatif import MOST_WAITED, LoopWaits, eased, inside_work_s

MOSTLY_SENDS = 0.5
"""Part of their CPU time in which workers send batches, from which on they are in the loop's way by that most of all;
our choice."""


def costs_of(window: Window, current: int) -> LoaderCosts | None:
    """Return what a batch costs. Several rules and gains ask in one verdict, and it is made of all batches."""
    return window.remember(f"costs {current}", lambda: _find_costs(window, current))


def _find_costs(window: Window, current: int) -> LoaderCosts | None:
    content = window.loader.content
    per_step = (window.loader.info and window.loader.info.batches_per_step) or 1.0
    made = window.workers.batches
    costs = costs_from(
        made.items,
        window.steps.steady or (),
        current=current,
        host=window.host.samples.items,
        budget=window.facts.budget,
        loader=window.loader.info,
        batch=None if content is None else BatchShape.of(content),
        device_s=window.device.pace_s,
        per_step=per_step,
        epoch=epoch_start(window),
    )
    return None if costs is None else _refined(window, costs, per_step)


def _refined(window: Window, costs: LoaderCosts, per_step: float) -> LoaderCosts:
    """Return costs with what single steps and batches show of how loop and workers get into each other's way."""
    if not costs.current:
        return _in_the_loop(window, costs, per_step)
    made, content, record = window.workers.batches, window.loader.content, window.ledger.record
    costs = replace(costs, team=window.host.loop.team, blocked_s=_blocked_s(window, costs))
    costs = _without_spinning(window, costs)
    if content is not None:
        sending_s = BatchShape.of(content).sending_s
        costs = replace(costs, shared_already_s=per_step * shared_already_s(made.items, sending_s))
    if costs.sent_cpu_s > MOSTLY_SENDS * costs.cpu_s:
        return _beside_senders(window, costs)
    # Some of the batches of a recording may be left out.
    complete = made.stride == 1 and record is not None and len(made) >= KNOWN * record.steps * per_step
    beside = work_beside(window.steps.steady or (), made.items, complete=complete)
    if beside is None:
        return costs
    # The sampler is asked in the wait for a batch, of which these know nothing, and is in the loop's way all the same.
    quiet_s, crowded_s = beside.quiet_s + costs.indices_s, beside.crowded_s + costs.indices_s
    return replace(costs, quiet_work_s=quiet_s, crowded_work_s=crowded_s)


def _beside_senders(window: Window, costs: LoaderCosts) -> LoaderCosts:
    """Return costs with the work of a loop that workers hold up by sending: single steps do not show when they do.

    Of its threads what its own ran is known. How long that one waited for the others is not: it counts as work.
    """
    waits = loop_waits(window, costs)
    if waits is None:
        return costs
    inside_s = min(MOST_WAITED * costs.work_s, inside_work_s(costs, waits.own_s))
    return replace(costs, quiet_work_s=costs.work_s - inside_s)


def _in_the_loop(window: Window, costs: LoaderCosts, per_step: float) -> LoaderCosts:
    """Return costs of a loop without workers, with what its threads do for a batch and what for the step."""
    steps, host = window.steps.steady or (), window.host
    threads_cpus, cpus = host.loop.threads_cpus or 0.0, host.cpus_per_rank or 1.0
    shares = window.code.batch_operations
    threads = batch_threads(window.workers.batches.items, cpus=cpus, per_step=per_step, shares=shares)
    if threads is None:
        more_s = in_threads_s(costs, steps, host.samples.items, threads_cpus)
        return replace(costs, cpu_s=costs.cpu_s + more_s, loop_cpu_s=costs.loop_cpu_s - more_s)
    # Threads that Python code started compute no operation of the step.
    worked_s = max(threads.worked_s, min(threads_cpus * (costs.step_time_s or 0.0), threads.spent_s))
    own = replace(
        costs,
        loop_cpu_s=max(0.0, costs.loop_cpu_s - threads.spent_s),
        blocked_s=_blocked_s(window, costs),
        library_threads=are_a_librarys(threads, costs, threads_cpus),
    )
    return replace(_without_spinning(window, own, made_s=costs.cpu_s), cpu_s=costs.cpu_s + worked_s)


def _blocked_s(window: Window, costs: LoaderCosts) -> float:
    """Return for how long the loop's thread does not run in a step's own work, beside what it waits for a batch."""
    loop, step_s = window.host.loop, costs.step_time_s or 0.0
    if loop.blocked_share is None or loop.runs_share is None:
        return 0.0
    if costs.current:
        in_batch_s, ran_s = max(0.0, step_s - costs.work_s), loop.runs_share * step_s
    else:
        in_batch_s, ran_s = max(0.0, costs.service_s - costs.cpu_s), max(0.0, loop.runs_share * step_s - costs.cpu_s)
    return max(0.0, min(loop.blocked_share * step_s - in_batch_s, costs.work_s - ran_s))


def _without_spinning(window: Window, costs: LoaderCosts, made_s: float = 0.0) -> LoaderCosts:
    """Return costs without what threads of the loop spin away while its own is blocked, for a device, say.

    Args:
        window: For how long the thread ran.
        costs: With the CPU time of all threads in the step's own work.
        made_s: CPU time of the thread in making the batch of a step.
    """
    runs, cpus = window.host.loop.runs_share, window.host.cpus_per_rank or 1.0
    ran_s = None if runs is None else max(0.0, runs * (costs.step_time_s or 0.0) - made_s)
    return replace(costs, loop_cpu_s=costs.loop_cpu_s - spun_s(costs, cpus, ran_s))


def epoch_start(window: Window) -> EpochStart | None:
    """What starting the workers costs an epoch; None where they live on, or there was one epoch only."""
    record, loader, epochs = window.ledger.record, window.loader.info, window.ledger.epochs or 0
    if record is None or loader is None or epochs < 2 or loader.lives_on:
        return None
    start_s = (window.spent.bucket_s("worker_startup") or 0.0) / epochs
    return EpochStart(record.steps / epochs, start_s, in_turn=loader.start_method == "fork")


def operation(window: Window) -> tuple[LoaderCosts, Limits] | None:
    """Return what a batch costs and what the workers may use; None when too little was measured for that."""
    return window.remember("operation", lambda: _operation(window))


def _operation(window: Window) -> tuple[LoaderCosts, Limits] | None:
    current, content = window.loader.num_workers, window.loader.content
    try:
        costs = None if current is None else costs_of(window, current)
        limits = limits_from(
            window.host.samples.items,
            budget=window.facts.budget,
            loader=window.loader.info,
            batch_bytes=None if content is None else content.bytes,
        )
    except SettingError:  # what was measured makes no sense, for example after the system clock was set back
        return None
    return None if costs is None else (with_quiet_work(window, costs), limits)


def with_quiet_work(window: Window, costs: LoaderCosts) -> LoaderCosts:
    """Return the costs with what the loop's work would be without a worker beside it."""
    waits = loop_waits(window, costs) if costs.current and costs.quiet_work_s is None else None
    if waits is None:
        return costs
    return replace(costs, quiet_work_s=eased(costs, waits.own_s).work_s)


def loop_waits(window: Window, costs: LoaderCosts) -> LoopWaits | None:
    """Return how long the loop's thread waits for a CPU in each step; None where that was not measured."""
    loop, step_s = window.host.loop, costs.step_time_s
    if loop.wait_pct is None or loop.neighbour_wait_pct is None or not step_s:
        return None
    workers_s = None if loop.workers_wait_pct is None else loop.workers_wait_pct / 100.0 * step_s
    return LoopWaits(loop.wait_pct / 100.0 * step_s, loop.neighbour_wait_pct / 100.0 * step_s, workers_s)
