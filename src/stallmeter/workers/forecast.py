"""What another number of workers would do to the run in a window: the num_workers model on what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import SettingError
from ..records.diagnosis import Advice, WorkerAdvice
from ..window import Window
from . import (
    BatchShape,
    Forecast,
    Limits,
    LoaderCosts,
    OperatingPoint,
    PrefetchAdvice,
    advise,
    advise_prefetch,
    expected,
    limited,
    limits_from,
    loop_threads,
    predict_step_time_s,
    savings,
)
from .measured import costs_of, loop_waits, with_quiet_work
from .pinned import pinned, unless_pinned, with_all_cpus_s, within
from .plan import BOTH, best_plan, between_s, one_thread, soonest_step_s
from .sharing import ask, at_once, doubt, is_doubtful, learn_from_repeats, learn_from_waits
from .whatif import SHORT, WhatIf, what_if

MODEL_ERROR = 0.06
"""Of a predicted step time with the same costs of a batch, 8 of 10 times; benchmarks/workers: median 3 %."""

CHANGE_ERROR = 0.13
"""The same once a change is made: costs of a batch do not stay what they were; benchmarks/faults, odd seeds."""

NEIGHBOUR_ERROR = 0.35
"""More of it where others keep all CPUs busy; benchmarks/faults, odd seeds: they do not compute evenly."""

EASED_ERROR = 0.1
"""More of it where the loop gets CPUs that others leave; benchmarks/faults, odd seeds."""

CROWD_LEAST, CROWD_MOST = 0.6, 1.15
"""Of what a crowd costs, as single steps show it, how much a fix wins back, 8 of 10 times; our choice."""

REMAINS = 0.05
"""Part of a step that remains in any case: a larger gain is not believed; our choice."""

NEIGHBOURS_MATTER_PCT = 5.0
"""Rise of throughput from which on it is said what other jobs cost: twice the noise of a step time."""

MOST_OF_NEIGHBOURS = 2.0
"""So many times the share of the CPUs that neighbours hold they may hold up a step; our choice. Threads that wait for
each other lose more than one CPU's time, but a wait of a tenth is not theirs who hold a hundredth."""

MAX_IN_FLIGHT = 4096
"""Most batches in flight that the model is asked about; it plays a loader through batch by batch."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The model's advice, with what rules show of its basis."""

    advice: WorkerAdvice
    available_cpus: float
    """CPUs that loop and workers of this rank may keep busy."""
    without: WhatIf
    """What a step would take with one cause of waiting gone."""
    deeper: PrefetchAdvice | None = None
    """A larger prefetch factor that would help with the present number of workers."""
    limit: str = ""
    """What bounds the recommended number, in one sentence."""
    loop_threads: float | None = None
    """Threads of the loop that compete with the workers for CPUs; None where that costs nothing."""
    others_share: float = 0.0
    """Share (0 to 1) of the usable CPUs that other jobs keep busy."""
    is_doubtful: bool = False
    """Whether less is gained if workers share what they wait for, which nothing shows."""
    which: str | None = None
    """Which of several training loaders it is about; None where there is one."""
    unsharded_s: float | None = None
    """Step time with the present number of workers if the dataset had a shard for each; None where it has."""
    one_thread: Forecast | None = None
    """What one thread of the loop does beside the present workers; None where nothing is predicted of it."""
    steps_share: float = 1.0
    """Share (0 to 1) of the training time that its steps take; the rest are checkpoints, validation and starts."""
    with_cpus_s: float | None = None
    """Step time if workers could run on all CPUs of the process; None where they can, or that is not known."""
    asked: tuple[LoaderCosts, Limits] | None = None
    """What the model was asked with."""

    @property
    def recommended(self) -> int:
        """The number of workers predicted to be best."""
        return self.advice.recommended

    @property
    def gain_pct(self) -> float:
        """Predicted rise of throughput, percent; 0 where nothing better is predicted."""
        return self.advice.predicted_gain_pct or 0.0

    @property
    def cpus_for_full_speed(self) -> float:
        """CPUs with which loop and workers would not slow each other down; 0 where that is not known."""
        return 0.0 if self.asked is None else self.asked[0].cpus_for_full_speed or 0.0

    @property
    def are_cpus_short(self) -> bool:
        """Whether loop and workers keep nearly all CPUs busy that they may; False where that is not known."""
        if self.asked is None or not self.available_cpus:
            return False
        costs = self.asked[0]
        return (costs.cpu_s + costs.loop_cpu_s) / self.available_cpus >= SHORT * self.without.observed_s

    @property
    def crowding_gain_pct(self) -> float | None:
        """What steps gain, percent, if workers took no CPU from a loop that computes; None where that is not known.

        Where single steps show what they take while workers rest, that is it. Else only where loop and workers need
        nearly all CPUs, and at most what the workers compute in a step.
        """
        crowd_s = self._crowd_s
        if crowd_s is not None:
            return self._without_pct(crowd_s)
        if self.asked is None or not self.asked[0].current or not self.are_cpus_short:
            return None
        costs, without = self.asked[0], self.without
        step_s = without.observed_s
        gain = without.gain_pct(without.no_cpu_s)
        most = 100.0 * costs.cpu_s / (step_s - costs.cpu_s) if step_s > costs.cpu_s else math.inf
        return None if gain is None else min(gain, most)

    @property
    def crowding_interval_pct(self) -> tuple[float, float] | None:
        """Between which gains of training the truth of that lies in 8 of 10 runs, percent; None where it is not known.

        Batches that are made cheaper still take something of the CPUs, and come sooner as well.
        """
        crowd_s = self._crowd_s
        if crowd_s is None or self.asked is None:
            return self.interval_pct(self.crowding_gain_pct, eased=True)
        waits_s = max(0.0, self.without.observed_s - self.asked[0].work_s)
        found = (self._without_pct(CROWD_LEAST * crowd_s), self._without_pct(CROWD_MOST * crowd_s + waits_s))
        return self.of_run(found[0]) or 0.0, self.of_run(found[1]) or 0.0

    @property
    def _crowd_s(self) -> float | None:
        """By how much a mean step is longer than one beside which the workers rest; None where that was not seen.

        Only where the loop's threads and a worker are more than the CPUs: else it is something else that differs.
        """
        if self.asked is None:
            return None
        costs, _ = self.asked
        if costs.quiet_work_s is None or costs.crowded_work_s is None or not (costs.work_s and costs.service_s):
            return None
        wanted = costs.loop_cpu_s / costs.work_s + min(1.0, costs.cpu_s / costs.service_s)
        if not self.available_cpus or wanted < SHORT * self.available_cpus:
            return None
        return max(0.0, costs.work_s - costs.quiet_work_s)

    def _without_pct(self, saved_s: float) -> float:
        """Return what a step that takes so much less gains, percent; most of it stays whatever is said."""
        step_s = self.without.observed_s
        left_s = max(step_s - saved_s, REMAINS * step_s)
        return 100.0 * (step_s / left_s - 1.0) if left_s > 0 else 0.0

    @property
    def expect(self) -> str:
        """What the recommended number changes, in one sentence; empty where nothing is predicted."""
        return expected(self.advice)

    @property
    def saves(self) -> str:
        """What fewer workers save at the same speed; empty where they are not recommended for that."""
        return savings(self.advice)

    @property
    def place(self) -> str:
        """Where to change it, beginning with a space; empty where there is one training loader."""
        return "" if self.which is None else f" in {self.which}"

    @property
    def beside_it(self) -> str:
        """What is to be changed with the number, as the end of a sentence; empty where that is nothing."""
        threads = self.advice.torch_threads
        return "" if threads is None else f", and call torch.set_num_threads({threads})"

    def fixes(self, also: str = "") -> tuple[Advice, ...]:
        """Return the change as advice; with it, what to do about threads that compete with the workers.

        Args:
            also: Another setting to change with it, beginning with a space.
        """
        one_thread = self.beside_it
        change = Advice.of(
            f"Set num_workers={self.recommended}{also}{self.place}{one_thread}.",
            expect=self.expect,
            limit=BOTH if one_thread else self.limit,
            gain_pct=self.of_run(self.gain_pct),
            interval_pct=self._change_interval_pct,
        )
        if self.saves:
            return (replace(change, predicted_gain_pct=None),)
        return (change,) if one_thread else (change, *self.fewer_threads)

    @property
    def _change_interval_pct(self) -> tuple[float, float] | None:
        if self.asked is None:
            return self.interval_pct(self.gain_pct)
        if self.advice.torch_threads is None:
            found, soonest_s = self.interval_pct(self.gain_pct), soonest_step_s(*self.asked, self.recommended)
            sooner = None if soonest_s is None else self.interval_pct(self.without.gain_pct(soonest_s))
            return found if found is None or sooner is None else (found[0], max(found[1], sooner[1]))
        return self._threads_interval_pct(self.recommended)

    @property
    def fewer_threads(self) -> tuple[Advice, ...]:
        """What to do about threads of the loop that compete with the workers; empty where none do."""
        if self.advice.torch_threads is not None:
            return self.fixes() if self.gain_pct else ()
        then, do = self.one_thread, "Call torch.set_num_threads(1) in the training process."
        if then is not None and self.asked is not None:
            return (
                Advice.of(
                    do,
                    expect=f"Steps of {then.step_time_s * 1e3:.3g} ms: its threads no longer wait for the workers.",
                    gain_pct=self.of_run(self.without.gain_pct(then.step_time_s)),
                    interval_pct=self._threads_interval_pct(then.workers),
                ),
            )
        if self.loop_threads is None:
            return ()
        threads = f"{self.loop_threads:.1f} threads"
        return (Advice.of(do, limit=f"Helps while its {threads} and the workers compete for CPUs."),)

    def _threads_interval_pct(self, workers: int) -> tuple[float, float] | None:
        """Return between which gains of training those of so many workers and one thread lie in 8 of 10 cases."""
        if self.asked is None:
            return None
        steps_s = between_s(*self.asked, workers, error=CHANGE_ERROR)
        most, least = (self.of_run(100.0 * max(0.0, self.without.observed_s / s - 1.0)) for s in steps_s)
        return 0.0 if self.is_doubtful else least or 0.0, most or 0.0

    def of_run(self, gain_pct: float | None) -> float | None:
        """Return what training gains, percent, where its steps gain so much: validation and checkpoints stay."""
        if gain_pct is None:
            return None
        left = 1.0 - self.steps_share * gain_pct / (100.0 + gain_pct)
        return 100.0 * (1.0 / left - 1.0)

    def interval_pct(
        self, gain_pct: float | None, *, eased: bool = False, whole: bool = False
    ) -> tuple[float, float] | None:
        """Return between which gains of training the truth lies in 8 of 10 runs, percent; None where none is predicted.

        Args:
            gain_pct: Of a step, as predicted by the model.
            eased: Whether it holds what the loop gains when fewer compete with it for CPUs.
            whole: Whether it is a gain of training already.
        """
        if gain_pct is None:
            return None
        least, most = self._between(gain_pct, CHANGE_ERROR + EASED_ERROR * eased)
        return (least, most) if whole else (self.of_run(least) or 0.0, self.of_run(most) or 0.0)

    def _between(self, gain_pct: float, model_error: float) -> tuple[float, float]:
        observed_s = self.without.observed_s
        off = abs(self.without.now_s / observed_s - 1.0) if observed_s else 0.0
        error = model_error + off + NEIGHBOUR_ERROR * self.others_share
        factor = 1.0 + gain_pct / 100.0
        least = (1.0 if self.is_doubtful else factor) / (1.0 + error)  # one disk may give no more than it does
        return 100.0 * max(0.0, least - 1.0), 100.0 * (factor * (1.0 + error) - 1.0)

    @property
    def is_certain(self) -> bool:
        """Whether the predicted gain is more than the model's error."""
        return self._between(self.gain_pct, MODEL_ERROR)[0] > 0

    @property
    def neighbours(self) -> str:
        """What other jobs on these CPUs add to a step, as a sentence to follow another; empty where it is little."""
        without = self.without
        gain = without.gain_pct(without.alone_s)
        if without.alone_s is None or gain is None or gain < NEIGHBOURS_MATTER_PCT or self.asked is None:
            return ""
        limits = self.asked[1]
        if gain > MOST_OF_NEIGHBOURS * 100.0 * limits.neighbour_cpus / (limits.available_cpus or math.inf):
            return ""
        return f" Other jobs hold CPUs as well: without them a step would be {gain:.0f} % faster."

    @property
    def confidence(self) -> float:
        """0 to 1."""
        return self.advice.confidence


def forecast(window: Window) -> Outlook | None:
    """Ask the model; None when too few batches or steps were measured for it, or the CPUs are not known."""
    current, loader = window.loader.num_workers, window.loader.info
    if current is None or current * ((loader and loader.prefetch_factor) or 1) > MAX_IN_FLIGHT:
        return None
    if loader is not None and loader.makes_on_device and not current:  # forked workers could not use the device
        return None
    return window.remember("forecast", lambda: _forecast(window, current))


TURNS = 0.75
"""Of several loaders one that fewer of the steps had a batch of takes turns with others: its steps are not known."""


def _forecast(window: Window, current: int) -> Outlook | None:
    content = window.loader.content
    steps = window.ledger.record.steps if window.ledger.record is not None else 0
    if window.loader.which and current and len(window.workers.batches) < TURNS * steps:
        return None
    try:
        costs = costs_of(window, current)
        limits = limits_from(
            window.host.samples.items,
            budget=window.facts.budget,
            memory=window.workers.memory.items,
            loader=window.loader.info,
            batch_bytes=None if content is None else content.bytes,
            shards=window.loader.shards,
        )
        if costs is None:
            return None
        bound = pinned(window.workers.memory.items)
        limits = replace(limits, available_cpus=within(limits.available_cpus, bound, window.host.job_cpus))
        costs, limits = learn_from_waits(window, costs, limits)
        if limits.available_cpus is None:
            return None
        if window.loader.which is None:  # of several loaders it is not known what the others' batches would take
            costs = with_quiet_work(window, costs)
        previous = _previous(window)
        number = learn_from_repeats(window, costs, limits)  # for what another number would do, and that alone
        advice = _unless_tried(advise(*number, previous=previous), window)
        doubtful, more = is_doubtful(window, advice), None
        most = at_once(advice) if doubtful else None
        if most is not None:
            more = advice.recommended
            advice = _unless_tried(advise(number[0], replace(number[1], max_workers=most), previous=previous), window)
        advice = unless_pinned(advice, bound)
        if window.loader.which is not None:
            advice = replace(advice, reason=f"{window.loader.which} sets the pace: {advice.reason}")
        return Outlook(
            advice=doubt(advice, more) if doubtful else advice,
            available_cpus=limits.available_cpus,
            without=_without(window, costs, limits, number),
            deeper=advise_prefetch(costs, limits, current),
            limit=_limit(window, ask(more) if doubtful else limited(*number, advice, previous=previous), advice),
            loop_threads=loop_threads(costs, advice),
            one_thread=one_thread(costs, limits),
            others_share=min(1.0, (window.host.others_cpus or 0.0) / (window.host.usable_cpus or 1.0)),
            is_doubtful=doubtful,
            which=window.loader.which,
            steps_share=_steps_share(window, costs),
            with_cpus_s=with_all_cpus_s(costs, limits, bound, window.host.cpus_per_rank, loop_waits(window, costs)),
            asked=(costs, limits),
            unsharded_s=predict_step_time_s(costs, replace(limits, shards=None), current)
            if window.workers.idle
            else None,
        )
    except SettingError:  # what was measured makes no sense, for example after the system clock was set back
        return None


def _limit(window: Window, limit: str, advice: WorkerAdvice) -> str:
    loader = window.loader.info
    if advice.recommended or not advice.current or loader is None or not loader.init_function:
        return limit
    return f"Then {loader.init_function} is not called: what the dataset needs of it must be done before."


BESIDE = ("checkpoint", "validation")
"""Buckets that come again and again beside the steps."""


def _steps_share(window: Window, costs: LoaderCosts) -> float:
    """Return the share of the training time without what comes again beside its steps.

    A first start comes once. Where it is known what starts cost they are a part of the steps that the model tells of.
    """
    training_s, epochs = window.ledger.training_s, window.ledger.epochs or 0
    if not training_s:
        return 1.0
    told = costs.current and costs.start_once_s + costs.start_each_s > 0
    names = (*BESIDE, "worker_startup") if epochs > 1 and not told else BESIDE
    beside_s = window.spent.bucket_s(*names) or 0.0
    return min(1.0, max(0.0, 1.0 - beside_s / training_s))


def _without(window: Window, costs: LoaderCosts, limits: Limits, number: tuple[LoaderCosts, Limits]) -> WhatIf:
    blocked, service, content = window.workers.blocked_share, window.workers.service_s, window.loader.content
    found = what_if(
        costs,
        limits,
        blocked_s=None if blocked is None or service is None else blocked * costs.service_s,
        usable_cpus=window.host.cpus_per_rank,
        cpu_wait_share=window.workers.cpu_wait_share,
        batch=None if content is None else BatchShape.of(content),
        parts=parts_of_batch(window),
        loop_waits=loop_waits(window, costs),
    )
    return found if number[1] is limits else replace(found, best_workers_s=best_plan(*number).best.step_time_s)


def parts_of_batch(window: Window) -> float:
    """Return how many single items, or parts, workers hand over for one batch that a wrapper puts together; else 1."""
    info = window.loader.info
    return 1.0 if info is None or info.batch_size is not None else max(1.0, info.batches_per_step or 1.0)


def _unless_tried(advice: WorkerAdvice, window: Window) -> WorkerAdvice:
    """What was tried in this run and was not better is not recommended again."""
    failed = next(
        (t for t in window.loader.trials if t.outcome == "reverted" and (t.before, t.workers) == _change(advice)), None
    )
    if failed is None:
        return advice
    achieved = "" if failed.achieved_gain_pct is None else f" ({failed.achieved_gain_pct:+.0f} % throughput)"
    return replace(
        advice,
        recommended=advice.current,
        predicted_step_time_s=None,
        predicted_gain_pct=0.0,
        reason=f"{failed.workers} workers were tried in this run and were not better beyond the noise{achieved}",
        saves_processes=None,
        saves_bytes=None,
        torch_threads=None,
    )


def _change(advice: WorkerAdvice) -> tuple[int, int]:
    return advice.current, advice.recommended


def _previous(window: Window) -> OperatingPoint | None:
    """How the loader did with the number of workers that it had before."""
    before = window.before
    if before is None or before.loader.num_workers is None:
        return None
    workers = before.loader.num_workers
    costs = costs_of(before, workers)
    if costs is None or costs.step_time_s is None:
        return None
    return OperatingPoint(workers=workers, service_s=costs.service_s, cpu_s=costs.cpu_s, step_time_s=costs.step_time_s)
