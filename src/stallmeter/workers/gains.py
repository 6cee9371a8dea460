"""What a run gains when the cause of a loss is gone.

The time that is no longer spent is known from the ledger. It is not all won where something else is as slow behind it:
a loop that is held up less asks for its batches sooner, and workers that just kept up with it do not any more. What is
left of a training of ``T`` seconds and ``n`` steps when ``x`` seconds are saved is therefore ::

    max(T - x,  start of the workers + n * loader(t - x / n),  start of the workers + n * d)

with the step that the loader allows when the loop itself needs ``t - x / n`` (`predict_step_time_s`), and ``d``, the
time that the device computes in a step, which no host time can hide: between its events, and by its utilization, which
knows of the gaps between two kernels as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..window import Window
from ..window.exposed_wait import mean_s
from . import Limits, LoaderCosts, predict_step_time_s
from .measured import operation

LOADER_ERROR = 0.06
"""Of the step time that a loader is predicted to allow, in 8 of 10 cases; benchmarks/workers: median 3 %."""

RUN_NOISE = 0.08
"""What two runs of one program differ by, in 8 of 10 cases; benchmarks/faults, odd seeds."""

UNSEEN_LOADER = 0.5
"""Least share of the saved time that is won where workers were not measured: they may have no reserve."""

UNUSED = 1.5
"""Batches made for each that is used from which on some of them are dropped, and not only made ahead; our choice."""

FIX_SAVES = (0.6, 1.3)
"""Least and most of the seconds of a function that are saved, in 8 of 10 fixes, where it is made cheaper or runs less
often: 46 programs whose authors knew no rule, docs/explain/accuracy.md, of which 1.15 was the most. Few fixes leave
nothing behind. What a function puts into the CPUs' caches slows the step as well: metrics computed in each step won 1.3
to 1.7 times the seconds that they took (two programs of others, one of ours)."""

REMAINS = 0.02
"""Share of the time that is left at least: a larger gain is not believed."""

REMAINS_AT_LEAST = 0.4
"""Part of what is predicted to be left that is left at the least, where seconds are known by looks. What a fix saves
beside its own seconds is in proportion to these, what remains is not: our choice, beside a program of others that was
left with 0.75 of it (5.1 times as fast where 3.8 was promised), and would have been promised 32 times at the most."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A predicted rise of throughput in percent. Both are None where nothing can be predicted."""

    pct: float | None = None
    interval_pct: tuple[float, float] | None = None
    """Least and most of it, which hold it in 8 of 10 runs: what is uncertain, and what repeated runs differ by."""


UNKNOWN = Gain()


def with_more(gain_pct: float, part: float) -> float:
    """Return a gain of training, percent, with which a further part (0 to 1) of its time as it is now goes, too."""
    return 100.0 / max(REMAINS, 100.0 / (100.0 + gain_pct) - part) - 100.0


def with_some_more(interval_pct: tuple[float, float], part: float) -> tuple[float, float]:
    """Return least and most of a gain with a further part of the time that some dozens of looks tell: half is sure."""
    return with_more(interval_pct[0], part / 2.0), with_more(interval_pct[1], part)


def gain_of_the_loop(waits_pct: float, team: float | None = None) -> Gain:
    """Return what is won if the loop's thread no longer waits for a CPU, where nothing else is known of it.

    What holds the CPUs comes and goes unevenly. Threads of one operation wait for the slowest of them: where each could
    run and has no CPU for a part ``w`` of the time, ``n`` of them lose ``1 - (1 - w)^n``. Seen with 2 threads on 2 CPUs
    (Keras' `PyDataset`): 61 % of the time lost where the training thread waited for 37 % of it.

    Args:
        waits_pct: Share of the time in which it could run and had no CPU, percent.
        team: Threads that compute its operations; None where that is not known, and one is taken for it.
    """
    waits = min(1.0, max(0.0, waits_pct / 100.0))
    lost = 1.0 - (1.0 - waits) ** (team or 1.0)
    gain, least, most = (
        100.0 * (1.0 / (1.0 - min(0.9, share)) - 1.0) for share in (lost, 0.6 * waits, max(1.8 * waits, 1.15 * lost))
    )
    return Gain(gain, (least, most))


def part_that_grew(window: Window, seconds: float) -> float:
    """Return which part (0 to 1) of some seconds of the steps was added in the course of the run."""
    drift, ledger = window.steps.drift, window.ledger.record
    if drift is None or ledger is None or seconds <= 0:
        return 0.0
    return min(1.0, drift.excess_s * ledger.steps / seconds)


def skipped_s(window: Window) -> float:
    """Return the seconds in which the loop waits for batches that its workers make and nobody uses.

    An epoch that begins in its midst makes and drops what comes before, one after the other. What is made ahead and
    left over where an epoch is broken off delays nothing.

    Args:
        window: Of the run.
    """
    starts, ledger, epochs = window.workers.starts, window.ledger.record, window.ledger.epochs
    if starts is None or ledger is None or not epochs:
        return 0.0
    used = ledger.steps * starts.batches_per_step
    if starts.batches < UNUSED * used:
        return 0.0
    return epochs * max(0.0, (starts.batches - used) / epochs - starts.ahead) * starts.batch_s


def first_batch_s(window: Window) -> float:
    """Return the seconds that a first batch takes if no worker has to start: nothing is made ahead; 0 if not known.

    All workers make their first batches at the same time, and share the CPUs.

    Args:
        window: Of the run.
    """
    known = operation(window)
    if known is None:
        return 0.0
    costs, limits = known
    cpus = limits.available_cpus or math.inf
    return max(costs.service_s, costs.cpu_s * costs.current / cpus)


def started_in_validation_s(window: Window) -> float:
    """Return the seconds in which workers start for a validation, where those of training start anew as well.

    What its first batches take is no start. As many validations are taken to begin as there are epochs, or more where
    the steps show that.

    Args:
        window: Of the run.
    """
    loader, epochs, first_s = window.loader.info, window.ledger.epochs or 0, first_batch_s(window)
    if loader is None or not loader.num_workers or loader.lives_on or epochs < 2 or not first_s:
        return 0.0
    evaluated, size = window.spent.evaluated, window.loader.batch_size
    first_s *= evaluated.batch_size / size if evaluated is not None and size else 1.0
    times = epochs * max(1.0, window.steps.epochs.validations or 0.0)
    return max(0.0, (window.spent.validation_parts_s or {}).get("start", 0.0) - times * first_s)


def gain_by_looks(
    window: Window, saved_s: float, samples: int, *, in_steps: bool = True, starts_workers: bool = False
) -> Gain:
    """Predict what training gains by a change of a function whose seconds are known by looks at the stack.

    Args:
        window: Of the run.
        saved_s: Seconds that the fix saves.
        samples: Looks that met them; a part of one counts as one.
        in_steps: As of `gain_without`.
        starts_workers: As of `gain_without`.
    """
    error = 1.28 / math.sqrt(max(1, samples))  # what a share of so many looks is known to, in 8 of 10 cases
    least, most = FIX_SAVES
    left_s = max(0.0, (window.ledger.training_s or 0.0) - saved_s)
    beside = (1.0 - REMAINS_AT_LEAST) * left_s / saved_s if saved_s > 0 else 0.0
    return gain_without(
        window,
        saved_s,
        least=max(0.0, 1.0 - math.hypot(error, 1.0 - least)),
        most=1.0 + min(math.hypot(error, most - 1.0), beside),
        in_steps=in_steps,
        starts_workers=starts_workers,
    )


def gain_without(
    window: Window,
    saved_s: float | None,
    *,
    least: float = 1.0,
    most: float = 1.0,
    in_steps: bool = True,
    on_device: bool = False,
    starts_workers: bool = False,
    larger_kernels: bool = False,
) -> Gain:
    """Predict what training gains when some of its seconds are no longer spent.

    Args:
        window: Of the run.
        saved_s: Seconds of training time that the fix saves; None or 0 when that is not known.
        least: Times ``saved_s`` that it saves at least, in 8 of 10 runs.
        most: Times ``saved_s`` that it saves at most.
        in_steps: The time is part of the steps' own, in each or in some; else it is spent beside them, in checkpoints,
            validation or the start of workers.
        on_device: The time is the device's, so that what it computes is no lower bound.
        starts_workers: The time is that in which workers start.
        larger_kernels: The device gets fewer and larger operations, and may do in more of its multiprocessors what it
            does in a few of them now: at the most, half of what doing it in all of them would save (our choice; two
            programs on an H200 won 3.4 and 7.4 times, where 4.5 and 5.1 are the most with that).
    """
    training_s, ledger = window.ledger.training_s, window.ledger.record
    if ledger is None or not training_s or not saved_s or not math.isfinite(saved_s) or saved_s < 0:
        return UNKNOWN
    steps = max(1, ledger.steps)
    device_s = 0.0 if on_device else steps * (_device_work_s(window) or 0.0)
    started_s = window.spent.bucket_s("worker_startup") or 0.0
    loader = _loader(window)
    if loader is None and window.loader.num_workers:
        least *= UNSEEN_LOADER

    filled = (1.0 + _filled(window)) / 2.0 if larger_kernels else 1.0

    def left_s(saved: float, slower: float, cpu_saved: float, device_part: float = 1.0) -> float:
        start_s = max(0.0, started_s - saved) if starts_workers else started_s
        saved += (1.0 - device_part) * device_s
        left = max(training_s - saved, start_s + device_part * device_s if device_s else 0.0)
        if loader is not None:
            step_s = loader.step_s(saved / steps if in_steps else 0.0, cpu_saved)
            left = max(left, start_s + steps * slower * step_s)
        return min(left, training_s)

    return _gain(
        training_s,
        left_s(saved_s, 1.0, 0.5),
        left_s(least * saved_s, 1.0 + LOADER_ERROR, 0.0),
        left_s(most * saved_s, 1.0 - LOADER_ERROR, 1.0, filled),
    )


def gain_of_start(window: Window, saved_s: float | None, *, least: float = 1.0, most: float = 1.0) -> Gain:
    """Predict what the whole run gains when some seconds before its first step are no longer spent.

    Args:
        window: Of the run.
        saved_s: Seconds of wall time that the fix saves; None or 0 when that is not known.
        least: Times ``saved_s`` that it saves at least, in 8 of 10 runs.
        most: Times ``saved_s`` that it saves at most.
    """
    wall_s = window.ledger.wall_s
    if not wall_s or not saved_s or not math.isfinite(saved_s) or saved_s < 0:
        return UNKNOWN
    return _gain(wall_s, *(wall_s - part * saved_s for part in (1.0, least, most)))


def gain_with_more_cpus(window: Window) -> Gain:
    """Predict what training gains when CPUs limit neither the loop nor its workers, with as many workers as now."""
    training_s, ledger, loader = window.ledger.training_s, window.ledger.record, _loader(window)
    if ledger is None or not training_s or loader is None:
        return UNKNOWN
    free_s = replace(loader, limits=replace(loader.limits, available_cpus=None)).step_s(0.0)
    now_s = loader.costs.step_time_s or free_s
    saved_s = min(ledger.steps * max(0.0, now_s - free_s), window.spent.bucket_s("data_wait") or 0.0)
    # A quota stops the loop's own thread as well. What of that falls into its waits for data is not known.
    stopped_s = (window.host.loop.wait_pct or 0.0) / 100.0 * training_s
    parts = ((1.0, 0.5), (0.7, 0.0), (1.15, 1.0))
    left_s = [max(REMAINS * training_s, training_s - data * saved_s - own * stopped_s) for data, own in parts]
    return _gain(training_s, *left_s)


@dataclass(frozen=True, slots=True)
class _Loader:
    """What the workers can deliver."""

    costs: LoaderCosts
    limits: Limits

    def step_s(self, saved_s: float, cpu_saved: float = 0.5) -> float:
        """Return the step time that the workers allow when the loop needs so many seconds less for a step.

        Args:
            saved_s: Per step.
            cpu_saved: Share of that time in which it kept a CPU busy, as far as the loop does on average.
        """
        # How workers start is no part of a step here: what that takes is counted apart.
        starts_s = self.costs.start_once_s + self.costs.current * self.costs.start_each_s
        observed_s = max(0.0, (self.costs.step_time_s or 0.0) - starts_s)
        costs = replace(self.costs, start_once_s=0.0, start_each_s=0.0, start_none_s=0.0)
        saved_s = min(saved_s, costs.work_s)
        saved_share = saved_s / costs.work_s if costs.work_s else 0.0
        cpu_s = costs.loop_cpu_s * min(1.0, cpu_saved * saved_share)
        # A batch that lies ready is handed over in the loop's own time, which the ledger holds already.
        free = replace(costs, handover_s=0.0)
        now_s = predict_step_time_s(free, self.limits, costs.current)
        faster = replace(free, work_s=costs.work_s - saved_s, loop_cpu_s=costs.loop_cpu_s - cpu_s)
        then_s = predict_step_time_s(faster, self.limits, costs.current)
        # What is taken for slower than it is now was misjudged: it delivers what it delivers.
        return then_s * min(1.0, observed_s / now_s) if saved_s and observed_s and now_s else then_s


def _loader(window: Window) -> _Loader | None:
    """Return what is known of the workers; None without any: then each batch is made in the loop's own time."""
    if not window.loader.num_workers:
        return None
    known = operation(window)
    return None if known is None else _Loader(*known)


def _device_work_s(window: Window) -> float | None:
    """Mean time of a step in which the device has work, seconds; None when that was not measured."""
    total_s = mean_s(window.device.steps.items, lambda s: s.total_s)
    idle_s = mean_s(window.device.steps.items, lambda s: (s.exposed_wait_s or 0.0) + (s.idle_s or 0.0))
    if total_s is None or idle_s is None:
        return None
    between_s, busy = max(0.0, total_s - idle_s), window.gpu.utilization_pct
    training_s, ledger = window.ledger.training_s, window.ledger.record
    if busy is None or not training_s or ledger is None:
        return between_s
    copies_s = mean_s(window.device.steps.items, lambda s: s.h2d_s) or 0.0  # they do not count as utilization
    return min(between_s, busy / 100.0 * training_s / max(1, ledger.steps) + copies_s)


def _filled(window: Window) -> float:
    """Return which part (0 to 1) of a busy device's multiprocessors has work; 1 where that is not known."""
    active, busy = window.gpu.sm_active_pct, window.gpu.utilization_pct
    return min(1.0, max(REMAINS, active / busy)) if active is not None and busy else 1.0


def _gain(before_s: float, left_s: float, longest_s: float, shortest_s: float) -> Gain:
    """Compare times before and after. The interval grows by what two runs of the same program differ by."""
    expected, least, most = (before_s / max(after_s, REMAINS * before_s) for after_s in (left_s, longest_s, shortest_s))
    noise = RUN_NOISE * expected
    interval = expected - math.hypot(expected - least, noise), expected + math.hypot(most - expected, noise)
    return Gain(100.0 * (expected - 1.0), (100.0 * (interval[0] - 1.0), 100.0 * (interval[1] - 1.0)))
