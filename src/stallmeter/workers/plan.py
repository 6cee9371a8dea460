"""The best number of workers, and the one thread of the loop's own that it may have to be set together with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .model import NOISE, Forecast, Limits, LoaderCosts, best_workers, binding, predict_step_time_s
from .team import threads_of_loop

SCALING = 0.6
"""A step that ``n`` threads compute takes one of them ``n**0.6`` times as long: of five networks with two threads 1.05
to 1.8 times, 1.6 in the middle (docs/explain/workers-model.md)."""

SCALES_LEAST, SCALES_MOST = 0.1, 0.9
"""Between these lies that exponent for 8 of 10 of them."""

MAY_LOSE = 0.05
"""What a network may lose by one thread that several share as well as the best of those measured; our choice. Where a
batch took one CPU 0.8 of the time that two threads took for a step, two workers and one thread won 1.4 times."""

SEVERAL_THREADS = 1.5
"""CPU time of the loop over its wall time from which on it must compute with more than one thread: stallmeter's and the
tracker's threads add to it, too, but not half a CPU."""

LEAST_QUIET = 0.5
"""Part of what the loop's threads are said to take without workers that they take at the least. Of how long the loop's
own thread waits for a CPU the longest follows; measured were 0.5 and 0.6 of that, of two loops beside busy workers."""

BOTH = "Both together: workers alone take CPUs from the loop's threads, and one thread alone computes longer."


@dataclass(frozen=True, slots=True)
class Plan:
    """What to set, and what is predicted of it."""

    best: Forecast
    costs: LoaderCosts
    """What it was predicted from: with one thread those of the loop with one."""
    torch_threads: int | None = None
    """Threads of the loop that belong to it; None leaves them as they are."""


def with_threads(torch_threads: int | None) -> str:
    """Say what a number of workers is meant with, beginning with a space; empty where the number is all."""
    return "" if torch_threads is None else f" with torch.set_num_threads({torch_threads})"


def best_plan(costs: LoaderCosts, limits: Limits) -> Plan:
    """Return the best number of workers; with one thread of the loop where that is faster than any number alone.

    Both are changed together or not at all: a first worker gives a loop of several threads nothing, and one thread
    without workers is slower. One thread is only planned where next to nothing is lost by a network that several
    threads share as well as the best of those measured. Where the number stays, `one_thread` tells of the thread.
    """
    alone = Plan(best_workers(costs, limits), costs)
    if not _meet(costs, limits):
        return alone
    single = with_one_thread(costs, limits)
    best = best_workers(single, limits)
    if not best.workers or best.workers == costs.current:
        return alone
    return Plan(best, single, torch_threads=1) if _is_better(costs, limits, best, alone.best.step_time_s) else alone


def one_thread(costs: LoaderCosts, limits: Limits) -> Forecast | None:
    """Return what one thread of the loop does beside the present workers; None where it is not predicted to be faster.

    Args:
        costs: Measured beside them.
        limits: For the CPUs.
    """
    if not costs.current or not _meet(costs, limits):
        return None
    single = with_one_thread(costs, limits)
    now_s = predict_step_time_s(costs, limits, costs.current)
    step_s = predict_step_time_s(single, limits, costs.current)
    then = Forecast(workers=costs.current, step_time_s=step_s, limited_by=binding(single, limits, costs.current, ""))
    return then if _is_better(costs, limits, then, now_s) else None


def _meet(costs: LoaderCosts, limits: Limits) -> bool:
    """Whether threads of the loop are known to meet workers at the CPUs, and what a step takes without that."""
    if not limits.available_cpus or threads_of_loop(costs, limits) < SEVERAL_THREADS:
        return False
    return not costs.current or (costs.team is not None and costs.quiet_work_s is not None)


def _is_better(costs: LoaderCosts, limits: Limits, then: Forecast, step_s: float) -> bool:
    """Whether one thread with so many workers is faster, and little is lost by a network that would scale well."""
    if then.step_time_s * (1 + NOISE) >= step_s:
        return False
    return _takes_s(costs, limits, then.workers, scaling=SCALES_MOST) <= (1 + MAY_LOSE) * step_s


def between_s(costs: LoaderCosts, limits: Limits, workers: int, *, error: float = 0.0) -> tuple[float, float]:
    """Return the shortest and longest step (s) with so many workers and one thread of the loop, in 8 of 10 cases.

    Args:
        costs: As measured.
        limits: For the CPUs.
        workers: 1 or more.
        error: Of the model beside that, as a share.
    """
    longest_s = _takes_s(costs, limits, workers, scaling=SCALES_MOST)
    quiet_s = None if costs.quiet_work_s is None else costs.blocked_s + LEAST_QUIET * _own_s(costs)
    shortest_s = _takes_s(replace(costs, quiet_work_s=quiet_s), limits, workers, scaling=SCALES_LEAST)
    return shortest_s / (1.0 + error), longest_s * (1.0 + error)


def soonest_step_s(costs: LoaderCosts, limits: Limits, workers: int) -> float | None:
    """Return the step (s) of a loop of several threads that stands still first in it, out of the workers' way.

    None where that makes no difference: it is measured beside workers, has one thread, or never stands still.
    """
    if costs.current or not costs.blocked_s or threads_of_loop(costs, limits) <= 1.0:
        return None
    return predict_step_time_s(replace(costs, blocked_first=True), limits, workers)


def _takes_s(costs: LoaderCosts, limits: Limits, workers: int, *, scaling: float) -> float:
    return predict_step_time_s(with_one_thread(costs, limits, scaling), limits, workers)


def with_one_thread(costs: LoaderCosts, limits: Limits, scaling: float = SCALING) -> LoaderCosts:
    """Return the costs of a loop whose operations are computed by one thread, beside workers.

    Args:
        costs: As measured.
        limits: For the CPUs.
        scaling: 0 where more threads make a step no shorter, 1 where twice as many make it half as long.
    """
    slower = threads_of_loop(costs, limits) ** scaling
    runs_s = min(costs.indices_s, costs.runs_s) + slower * max(0.0, _own_s(costs) - costs.indices_s)
    work_s = min(costs.blocked_s, costs.work_s) + runs_s
    return replace(costs, work_s=work_s, quiet_work_s=None, crowded_work_s=None, quick_work_s=0.0, loop_cpu_s=runs_s)


def _own_s(costs: LoaderCosts) -> float:
    """Return for how long the loop's threads compute in a step while no worker is in their way."""
    return max(0.0, costs.alone_s - costs.blocked_s)
