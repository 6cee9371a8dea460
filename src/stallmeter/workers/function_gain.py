"""What a run would gain if one function, of those that make batches, took no time.

The num_workers model is asked with its part of a batch taken off: its wall time, and its CPU time, which is won back by
all who compete for the CPUs. A function that waits for a store that serves one worker after the other frees the store,
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..window import Window
from .costs import BatchShape, default_handover_s
from .forecast import forecast
from .gains import FIX_SAVES, with_more, with_some_more
from .measured import loop_waits, operation
from .model import Limits, LoaderCosts, predict_step_time_s
from .whatif import WAITS, eased, like_a_worker, receiving_s

SHARE_ERROR = 0.03
"""Of a function's share, 8 of 10 times; benchmarks/lines: 2 points in the median, 7 at the most. It decides what is
left of a batch that consists of little else."""


VALIDATION = "validation"

SWITCH_S = 0.005
"""After so long Python has a thread give up its lock where another one asks for it (`sys.getswitchinterval`)."""


CPU_ERROR = 0.1
"""Of what a loop keeps busy and of what a job can have, CPUs; our choice."""


@dataclass(frozen=True, slots=True)
class FunctionGain:
    """The run without one function."""

    batch_s: float
    """A batch as it is."""
    batch_without_s: float
    step_without_s: float
    workers: int
    gain_pct: float
    interval_pct: tuple[float, float] | None
    in_validation_s: float = 0.0
    """Of the whole run: what it takes in validations, which the gain holds as well."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """What the workers cost the loop because both want the same CPUs, seconds in each step."""

    loop_s: float
    """The loop waits for a CPU."""
    handover_s: float
    """A hand-over takes more than usual: a worker that has no CPU answers late."""
    held_s: float
    """A hand-over takes more than usual though there are CPUs: the next batch, in Python code, holds the interpreter's
    lock, which the worker's thread that sends needs. No longer than that batch takes, nor than a switch interval."""


def gain_without_function(
    window: Window, wall_share: float, cpu_share: float | None, waits_share: float | None = None
) -> FunctionGain | None:
    """Predict what training gains if a function took no time; None where the model knows too little.

    Args:
        window: Of the run.
        wall_share: Its part of a batch's time, 0 to 1.
        cpu_share: Its part of a batch's CPU time; None where that was not measured.
        waits_share: Its part of the time in which a batch waits; None where that was not measured.
    """
    outlook, known = forecast(window), operation(window)
    if outlook is None or known is None or not outlook.without.observed_s:
        return None
    costs, limits = outlook.asked or known
    wall = _share(wall_share)
    cpu = wall if cpu_share is None else _share(cpu_share)
    crowd, forked = _crowd(window, costs, limits), _is_forked(window)
    within = replace(limits, shared_s=limits.shared_s * (1.0 - (waits_share or 0.0)))

    def gain_pct(off: float) -> float | None:
        """Return the gain if the shares are off by so much."""
        shares = _share(wall + off), _share(cpu + off)
        return outlook.without.gain_pct(_step_without_s(costs, within, *shares, crowd, first=forked))

    gain, least, most = gain_pct(0.0), gain_pct(-SHARE_ERROR), gain_pct(SHARE_ERROR)
    if gain is None:
        return None
    if crowd.held_s:  # the machine may be slow at handing over, whatever the workers do
        least = outlook.without.gain_pct(
            _step_without_s(costs, within, wall, cpu, replace(crowd, held_s=0.0), first=forked)
        )
    saved = FIX_SAVES[0] * gain / (100.0 + gain)
    of_a_part = outlook.of_run(100.0 * saved / (1.0 - saved)) or 0.0
    around = [outlook.interval_pct(one, eased=True) for one in (least, gain, most)]
    known_around = [one for one in around if one is not None] + [(of_a_part, of_a_part)]
    return FunctionGain(
        batch_s=costs.service_s,
        batch_without_s=costs.service_s * (1.0 - wall),
        step_without_s=outlook.without.observed_s / (1.0 + gain / 100.0),
        workers=costs.current,
        gain_pct=outlook.of_run(gain) or 0.0,
        interval_pct=(min(low for low, _ in known_around), max(high for _, high in known_around)),
    )


def with_validation(found: FunctionGain, window: Window, *, file: str, function: str) -> FunctionGain:
    """Return the gain with what the function takes in validations, where looks at the training thread find it there.

    That is where a validation's loader makes its batches in the loop, with the same function as the training's. Half of
    it is sure: some dozens of looks tell a share no better.

    Args:
        found: What training gains where the training's batches lack the function.
        window: Of the run.
        file: Where the function is defined.
        function: Its name in there.
    """
    part, between = part_in_validation(window, file=file, function=function), found.interval_pct
    if not part:
        return found
    return replace(
        found,
        gain_pct=with_more(found.gain_pct, part),
        interval_pct=None if between is None else with_some_more(between, part),
        in_validation_s=part * (window.ledger.training_s or 0.0),
    )


def part_in_validation(window: Window, *, file: str, function: str) -> float:
    """Return which part (0 to 1) of the training a function takes in validations, by looks at the training thread.

    Args:
        window: Of the run.
        file: Where the function is defined.
        function: Its name in there.
    """
    look, training_s = window.code.at("loop", VALIDATION), window.ledger.training_s
    spots = () if look is None else [spot for spot in look.spots if (spot.file, spot.function) == (file, function)]
    if look is None or not spots or not look.wall_s or not training_s:
        return 0.0
    return spots[0].wall_s / look.wall_s * (window.spent.bucket_s(VALIDATION) or 0.0) / training_s


def _share(share: float) -> float:
    return min(1.0, max(0.0, share))


def _held_after_s(costs: LoaderCosts, wall: float, step_s: float, crowd: Crowd) -> float:
    """Return what a hand-over waits for the worker's next batch once that takes less: all of it, if there is one."""
    service_s = costs.service_s * (1.0 - wall)
    busy = _share(service_s / (max(1, costs.current) * step_s)) if step_s > 0 else 1.0
    return min(crowd.held_s, busy * service_s)


def _have_cpus(costs: LoaderCosts, limits: Limits, step_s: float) -> bool:
    """Whether there is a CPU for each worker that is at work at a time, and for the loop, with what threads it has."""
    batch_s = max(costs.service_s, costs.cpu_s)
    if limits.available_cpus is None or costs.current <= 0 or batch_s >= costs.current * step_s or step_s <= 0:
        return False
    loop = max(1.0, (costs.loop_cpu_s - receiving_s(costs)) / costs.work_s) if costs.work_s > 0 else 1.0
    return loop + math.ceil(batch_s / step_s) <= limits.available_cpus + CPU_ERROR


def _step_without_s(costs: LoaderCosts, limits: Limits, wall: float, cpu: float, crowd: Crowd, *, first: bool) -> float:
    """Return the step once a part of a batch's wall and CPU time is gone.

    Workers that still set the pace make more batches meanwhile, and keep the CPUs as busy as before. Where they rest
    until the loop takes a batch, so many are at work at a time as a batch takes steps: if these and the loop have a CPU
    each, nobody waits. How much of the crowd goes follows from the step, and the step from that.
    """
    now_s = step_s = predict_step_time_s(costs, limits, costs.current)
    gone, held_s = cpu, crowd.held_s
    for _ in range(_ROUNDS + 1):
        after = _without(costs, wall, cpu, crowd, first=first, gone=gone, held_s=held_s)
        step_s = predict_step_time_s(after, limits, costs.current)
        busy = (1.0 - cpu) * now_s / step_s if step_s > 0 else 0.0
        gone = (gone + (1.0 if _have_cpus(after, limits, step_s) else _share(1.0 - busy))) / 2.0
        held_s = (held_s + _held_after_s(costs, wall, step_s, crowd)) / 2.0
    return step_s


_ROUNDS = 6
"""After so many halvings the crowd that is left is known to a percent."""


def _without(
    costs: LoaderCosts, wall: float, cpu: float, crowd: Crowd, *, first: bool, gone: float, held_s: float
) -> LoaderCosts:
    """Return the costs once a part of a batch's wall and CPU time is gone.

    Args:
        costs: As measured.
        wall: Part of the wall time, 0 to 1.
        cpu: Part of the CPU time, 0 to 1.
        crowd: What the job's own workers cost the loop beside that.
        first: Whether what every epoch's start takes is the wait for a first batch.
        gone: Part of the crowd that goes, 0 to 1.
        held_s: What a hand-over then waits for the worker's next batch.
    """
    freed_s = gone * crowd.handover_s + crowd.held_s - held_s
    quieter = eased(costs, gone * crowd.loop_s)
    return replace(
        quieter,
        service_s=costs.service_s * (1.0 - wall),
        cpu_s=costs.cpu_s * (1.0 - cpu),
        neighbour_wait_s=costs.neighbour_wait_s * (1.0 - cpu),
        own_wait_s=costs.own_wait_s * (1.0 - cpu),
        handover_s=None if costs.handover_s is None else costs.handover_s - freed_s,
        start_once_s=costs.start_once_s * (1.0 - wall * first),
    )


def _is_forked(window: Window) -> bool:
    """Whether workers are there at once, so that an epoch begins with the wait for a batch; others import first."""
    return window.loader.info is not None and window.loader.info.start_method == "fork"


def _crowd(window: Window, costs: LoaderCosts, limits: Limits) -> Crowd:
    if not costs.current:  # who makes the batches is the loop itself, and waits for nobody
        return Crowd(0.0, 0.0, 0.0)
    cpu_wait_share, content = window.workers.cpu_wait_share or 0.0, window.loader.content
    waits = loop_waits(window, costs) or like_a_worker(costs, limits, cpu_wait_share)
    loop_s, more_s = waits.own_s, 0.0
    if costs.handover_s is not None and content is not None:
        more_s = max(0.0, costs.handover_s - default_handover_s(BatchShape.of(content)))
    return Crowd(loop_s, more_s, 0.0) if cpu_wait_share >= WAITS else Crowd(loop_s, 0.0, min(more_s, SWITCH_S))


def shares(total_s: Sequence[float | None], part_s: Sequence[float | None]) -> tuple[float, float | None, float | None]:
    """Return a part's share of wall, CPU and waiting time.

    Args:
        total_s: Wall and CPU time of the whole; the second is None where it was not measured.
        part_s: The same of the part.
    """
    wall, cpu = total_s
    part_wall, part_cpu = part_s
    share = (part_wall or 0.0) / wall if wall else 0.0
    if cpu is None or part_cpu is None:
        return share, None, None
    waited = max(0.0, (wall or 0.0) - cpu)
    return share, part_cpu / cpu if cpu else 0.0, max(0.0, (part_wall or 0.0) - part_cpu) / waited if waited else 0.0
