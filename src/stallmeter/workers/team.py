"""A loop whose operations are computed by several threads, beside workers on the same CPUs.

Threads of one operation wait for the slowest of them, and torch's wait by spinning. While workers compute that have no
CPU for themselves, each of them shares one with a thread, which comes on half as fast there, and all others with it.
So a single worker gives such a loop nothing: what the loop loses beside a batch is what it would have spent on making
it. Several at once win something. Threads that are off at different moments lose more than those that are off together,
between a half and all of it for each: the mean of both is taken.

A loop that stands still for a part of each step, as it waits for a device, leaves its CPUs to the workers meanwhile.
But they begin with the next batch when the loop takes one, as it begins to compute, and are in its way for all of that.

Measured without stallmeter: 5 networks, 2 threads on 2 CPUs, batches in Python of 0.3 to 2.3 times the step's work. A
first worker made them 0.67 to 1.19 times as fast as none, 0.95 in the middle (docs/explain/workers-model.md).
Two of them that stand still as long as they compute: 0.94 to 1.14 times, and 1.0 to 1.2 for any number of workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model import Limits, LoaderCosts

_HALVINGS = 40
"""After so many the answer stands to a billionth."""


def threads_of_loop(costs: LoaderCosts, limits: Limits) -> float:
    """Return how many threads the loop keeps busy while it runs, 1 at least and as many as there are CPUs at most.

    Where torch's operations have one, what computes beside it is a library's of the dataset's, say, and nobody waits.
    """
    if not costs.runs_s or costs.torch_threads == 1:
        return 1.0
    at_once = costs.loop_cpu_s / costs.runs_s if costs.team is None else costs.team
    return max(1.0, min(at_once, max(2.0, limits.available_cpus or 2.0)))


def threads_beside_s(costs: LoaderCosts, limits: Limits, workers: int, slower: float = 1.0) -> float:
    """Return the shortest step (s) of a loop of several threads beside workers; 0 where it has one thread.

    And where it was measured beside workers, whose crowd is part of each step then.

    Args:
        costs: As measured.
        limits: For the CPUs.
        workers: 1 or more.
        slower: Multiplies the time that a worker computes.
    """
    cpus, threads = limits.available_cpus, threads_of_loop(costs, limits)
    if costs.current or not cpus or not workers or threads <= 1.0:
        return 0.0
    made_s = slower * (costs.cpu_s + costs.shared_memory_s)
    blocked_s = min(costs.blocked_s, costs.work_s)
    before_s = blocked_s if costs.blocked_first else 0.0
    shared_s = max(0.0, made_s - before_s * min(workers, cpus))
    runs_s = costs.ready_step_s - blocked_s

    def beside_s(whole: int) -> float:
        if whole < 2:  # one alone is in nobody's way
            return max(costs.ready_step_s, made_s / min(workers, cpus))
        return before_s + _shared_s(runs_s, shared_s, workers, cpus, whole, rests_s=blocked_s - before_s)

    # Between two whole numbers: the one for a part of the loop's time, the other for the rest. A CPU that is free for a
    # tenth of the time is not the workers': they are at work when they have their indices, not when it is free.
    fewer = int(threads)
    part = threads - fewer
    return part * beside_s(fewer + 1) + (1.0 - part) * beside_s(fewer)


def _shared_s(
    ready_s: float, made_s: float, workers: int, cpus: float, threads: float, *, rests_s: float = 0.0
) -> float:
    """Return the step of a loop whose threads all must run, beside workers that compute for so long in each.

    Args:
        ready_s: What its threads take alone.
        made_s: What workers compute in a step.
        workers: At work.
        cpus: For both.
        threads: Of the loop.
        rests_s: For so long the threads rest after that: what is left for the workers is made meanwhile.
    """
    own = min(float(workers), max(0.0, cpus - threads))  # workers with a CPU that no thread wants
    most = min(workers - own, threads)

    def beside(meeting: float) -> tuple[float, float]:
        """The step, and what workers compute in it, with so many of them on CPUs of the loop's at each moment."""
        step_s = ready_s / _progress(meeting)
        return step_s, step_s * (own + meeting / 2.0)

    step_s, done_s = beside(most)
    if done_s <= made_s:  # they are at work all the time, also where the loop waits for them
        return step_s + max(rests_s, (made_s - done_s) / min(float(workers), cpus))
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if beside(middle)[1] < made_s else (low, middle)
    return beside(high)[0] + rests_s


def _progress(meeting: float) -> float:
    """Return how fast the loop's work goes on, of 1, beside so many workers on its CPUs."""
    if meeting <= 1.0:
        return 1.0 - meeting / 2.0
    return float(0.5 ** (1.0 + (meeting - 1.0) / 2.0))
