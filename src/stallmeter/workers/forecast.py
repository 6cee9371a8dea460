"""What another number of workers would do to the run in a window: the num_workers model on what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import SettingError
from ..records.diagnosis import Advice, WorkerAdvice
from ..window import Window
from . import (
    BatchShape,
    LoaderCosts,
    OperatingPoint,
    PrefetchAdvice,
    advise,
    advise_prefetch,
    costs_from,
    expected,
    limited,
    limits_from,
    loop_threads,
    predict_step_time_s,
)

MAX_IN_FLIGHT = 4096
"""Most batches in flight that the model is asked about; it plays a loader through batch by batch."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The model's advice, with what rules show of its basis."""

    advice: WorkerAdvice
    available_cpus: float
    """CPUs that loop and workers of this rank may keep busy."""
    deeper: PrefetchAdvice | None = None
    """A larger prefetch factor that would help with the present number of workers."""
    limit: str = ""
    """What bounds the recommended number, in one sentence."""
    loop_threads: float | None = None
    """Threads of the loop that compete with the workers for CPUs; None where that costs nothing."""
    which: str | None = None
    """Which of several training loaders it is about; None where there is one."""
    unsharded_s: float | None = None
    """Step time with the present number of workers if the dataset had a shard for each; None where it has."""

    @property
    def recommended(self) -> int:
        """The number of workers predicted to be best."""
        return self.advice.recommended

    @property
    def gain_pct(self) -> float:
        """Predicted rise of throughput, percent; 0 where nothing better is predicted."""
        return self.advice.predicted_gain_pct or 0.0

    @property
    def expect(self) -> str:
        """What the recommended number changes, in one sentence; empty where nothing is predicted."""
        return expected(self.advice)

    @property
    def place(self) -> str:
        """Where to change it, beginning with a space; empty where there is one training loader."""
        return "" if self.which is None else f" in {self.which}"

    def fixes(self, also: str = "") -> tuple[Advice, ...]:
        """Return the change as advice; with it, what to do about threads that compete with the workers.

        Args:
            also: Another setting to change with it, beginning with a space.
        """
        change = Advice.of(
            f"Set num_workers={self.recommended}{also}{self.place}.",
            expect=self.expect,
            limit=self.limit,
            gain_pct=self.gain_pct,
        )
        if self.loop_threads is None:
            return (change,)
        fewer = Advice.of(
            "Call torch.set_num_threads(1) in the training process.",
            limit=f"Helps while its {self.loop_threads:.1f} threads and the workers compete for CPUs.",
        )
        return (change, fewer)

    @property
    def confidence(self) -> float:
        """0 to 1."""
        return self.advice.confidence


def forecast(window: Window) -> Outlook | None:
    """Ask the model; None when too few batches or steps were measured for it, or the CPUs are not known."""
    current, loader = window.loader.num_workers, window.loader.info
    if current is None or current * ((loader and loader.prefetch_factor) or 1) > MAX_IN_FLIGHT:
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
        costs = _costs(window, current)
        limits = limits_from(
            window.host.samples.items,
            budget=window.facts.budget,
            memory=window.workers.memory.items,
            loader=window.loader.info,
            batch_bytes=None if content is None else content.bytes,
            shards=window.loader.shards,
        )
        if costs is None or limits.available_cpus is None:
            return None
        previous = _previous(window)
        advice = _unless_tried(advise(costs, limits, previous=previous), window)
        if window.loader.which is not None:
            advice = replace(advice, reason=f"{window.loader.which} sets the pace: {advice.reason}")
        return Outlook(
            advice,
            limits.available_cpus,
            advise_prefetch(costs, limits, current),
            limited(costs, limits, advice, previous=previous),
            loop_threads(costs, advice.limited_by),
            window.loader.which,
            predict_step_time_s(costs, replace(limits, shards=None), current) if window.workers.idle else None,
        )
    except SettingError:  # what was measured makes no sense, for example after the system clock was set back
        return None


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
    )


def _change(advice: WorkerAdvice) -> tuple[int, int]:
    return advice.current, advice.recommended


def _costs(window: Window, current: int) -> LoaderCosts | None:
    content = window.loader.content
    return costs_from(
        window.workers.batches.items,
        window.steps.steady,
        current=current,
        host=window.host.samples.items,
        loader=window.loader.info,
        batch=None if content is None else BatchShape(content.tensors, content.bytes),
        device_s=window.device.pace_s,
        per_step=(window.loader.info and window.loader.info.batches_per_step) or 1.0,
    )


def _previous(window: Window) -> OperatingPoint | None:
    """How the loader did with the number of workers that it had before."""
    before = window.before
    if before is None or before.loader.num_workers is None:
        return None
    workers = before.loader.num_workers
    costs = before.remember("costs", lambda: _costs(before, workers))
    if costs is None or costs.step_time_s is None:
        return None
    return OperatingPoint(workers=workers, service_s=costs.service_s, cpu_s=costs.cpu_s, step_time_s=costs.step_time_s)
