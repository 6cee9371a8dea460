"""What to recommend, how sure that is, and why: in the words that a user reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..records.diagnosis import WorkerAdvice
from .costs import MIN_BATCHES
from .fewer import MISSED, fewer_workers, savings
from .model import (
    DEFAULT_WORKER_BYTES,
    NOISE,
    Limits,
    LoaderCosts,
    OperatingPoint,
    PrefetchAdvice,
    advise_prefetch,
    binding,
    most_workers,
    predict_step_time_s,
)
from .plan import SEVERAL_THREADS, Plan, best_plan, with_threads

SERVICE_GROWTH = 0.25
"""Service time that grows by more than this with more workers, but not CPU time, was spent queueing for a store."""

UNEXPLAINED = 0.5
"""When the prediction for the present setting is off by more than this, something unknown binds."""

COMPETES = 1.0
"""CPU time of a batch, over the time of a step's work, below which one thread cannot be faster. Of ``n`` threads that
work for ``w`` each, at most the ``n - 1`` others spin for a batch's ``b`` seconds of CPU: one alone has at least
``n w - (n - 1) b`` to do, which is less than ``w`` where ``b`` is more. Measured at 0.18: 1.7 times slower."""


def advise(costs: LoaderCosts, limits: Limits, *, previous: OperatingPoint | None = None) -> WorkerAdvice:
    """Recommend a number of workers for the next epoch or run.

    Args:
        costs: Measured with the present number.
        limits: What the workers may use.
        previous: The same loader with another number of workers: shows whether more workers made each batch slower.

    Returns:
        The advice. ``recommended`` equals ``current`` when less than 3 % is to be gained, when the dataset is iterable
        and not known to split itself, when threads of a library make the batches, and when the model cannot
        explain the present step time. Where nothing is to be gained but a smaller number does the same, that is
        recommended, with what it saves.
    """
    costs, limits = _learn_from(previous, costs, limits)
    return replace(_advise(costs, limits), most=most_workers(costs, limits))


def _advise(costs: LoaderCosts, limits: Limits) -> WorkerAdvice:
    now_s = predict_step_time_s(costs, limits, costs.current)
    plan = best_plan(costs, limits)
    best = plan.best
    gain = now_s / best.step_time_s - 1 if best.step_time_s else 0.0
    observed_s = costs.step_time_s or now_s
    confidence = _confidence(costs, limits, now_s, observed_s)
    off = now_s / observed_s - 1 if observed_s else 0.0
    limited_by = best.limited_by
    recommended, predicted_s = best.workers, best.step_time_s
    fixed = costs.iterable and not costs.shards_itself
    if abs(off) > UNEXPLAINED:
        limited_by = "unknown"
        why = (
            f"a step takes {_ms(observed_s)} where the measured parts explain {_ms(now_s)}. "
            "Something else binds, so no other number of workers is recommended"
        )
    elif costs.library_threads:
        limited_by = "unknown"
        why = (
            "several threads of a library other than torch make each batch, and in a worker they would take the CPUs "
            "from the loop. With one thread each (OPENBLAS_NUM_THREADS=1) workers may help: measure again"
        )
    elif gain < NOISE:
        fewer = fewer_workers(costs, limits) if abs(off) <= MISSED and not fixed else None
        if fewer is not None:
            return _same_with(fewer, costs, limits, confidence)
        limited_by = binding(costs, limits, costs.current, "")
        why = _why_stay(costs, limits, limited_by)
    elif fixed:
        why = (
            f"num_workers={best.workers}{with_threads(plan.torch_threads)} would take {_ms(best.step_time_s)} a step "
            f"instead of {_ms(observed_s)}, but an iterable dataset repeats or drops samples with another number of "
            "workers unless it splits them itself. Change it by hand if that is safe"
        )
    else:
        return WorkerAdvice(
            current=costs.current,
            recommended=recommended,
            predicted_step_time_s=predicted_s,
            predicted_gain_pct=100.0 * max(0.0, observed_s / predicted_s - 1),
            limited_by=limited_by,
            reason=_why_change(plan, limits, observed_s),
            confidence=confidence,
            torch_threads=plan.torch_threads,
            **_prefetch(advise_prefetch(plan.costs, limits, recommended)),
        )
    return WorkerAdvice(
        current=costs.current,
        recommended=costs.current,
        predicted_step_time_s=now_s,
        predicted_gain_pct=0.0,
        limited_by=limited_by,
        reason=why,
        confidence=confidence,
        **_prefetch(None if limited_by == "unknown" else advise_prefetch(costs, limits, costs.current)),
    )


def _same_with(workers: int, costs: LoaderCosts, limits: Limits, confidence: float) -> WorkerAdvice:
    """Recommend fewer workers that do the same."""
    limited_by, saved = binding(costs, limits, workers, ""), costs.current - workers
    advice = WorkerAdvice(
        current=costs.current,
        recommended=workers,
        predicted_step_time_s=predict_step_time_s(costs, limits, workers),
        predicted_gain_pct=0.0,
        limited_by=limited_by,
        reason="",
        confidence=confidence,
        saves_processes=saved,
        saves_bytes=None if limits.unique_bytes is None else saved * limits.unique_bytes,
        **_prefetch(advise_prefetch(costs, limits, workers)),
    )
    why = _why(costs, limits, workers, limited_by)
    do = "does" if workers == 1 else "do"
    return replace(advice, reason=f"{workers} {do} the same. {why[0].upper()}{why[1:]}")


def expected(advice: WorkerAdvice) -> str:
    """Say in one sentence what the recommended number changes; empty where nothing is predicted."""
    predicted_s, gain_pct = advice.predicted_step_time_s, advice.predicted_gain_pct
    if advice.saves_processes:
        return f"The same speed with {savings(advice)}."
    if predicted_s is None or not gain_pct:
        return ""
    return f"Steps of {_ms(predicted_s)} instead of {_ms(predicted_s * (1 + gain_pct / 100))}."


def limited(costs: LoaderCosts, limits: Limits, advice: WorkerAdvice, *, previous: OperatingPoint | None = None) -> str:
    """Say in one sentence what bounds the recommended number. The arguments are those of `advise`, and its answer."""
    costs, limits = _learn_from(previous, costs, limits)
    if costs.stateful and advice.recommended != advice.current:
        return "Not when resuming inside an epoch: the loader's saved state needs its number of workers."
    why = _why(costs, limits, advice.recommended, advice.limited_by)
    return f"{why[0].upper()}{why[1:]}."


def loop_threads(costs: LoaderCosts, advice: WorkerAdvice) -> float | None:
    """Return how many threads of the loop compete with the recommended workers for CPUs; None where that costs nothing.

    Nor where the advice has said what to do about them.
    """
    if advice.torch_threads is not None:
        return None
    return _threads_beside(costs, advice.limited_by, advice.recommended)


def _threads_beside(costs: LoaderCosts, limited_by: str, workers: int) -> float | None:
    threads = costs.loop_cpu_s / costs.runs_s if costs.runs_s and costs.torch_threads != 1 else 0.0
    compete = workers > 0 and costs.cpu_s >= COMPETES * costs.work_s
    return threads if limited_by == "cpu" and threads > SEVERAL_THREADS and compete else None


def _prefetch(deeper: PrefetchAdvice | None) -> dict[str, Any]:
    return {} if deeper is None else {"prefetch_factor": deeper.prefetch_factor, "prefetch_gain_pct": deeper.gain_pct}


def _learn_from(previous: OperatingPoint | None, costs: LoaderCosts, limits: Limits) -> tuple[LoaderCosts, Limits]:
    """Compare two operating points: time that grew with more workers, but not by computing, queued for a shared store.

    When it did, the store was busy all the time with the more numerous workers, and one batch took their service time
    divided by their number of it.
    """
    # The loop alone, and a single worker, ask a store as often: what differs between them is none of more workers.
    if previous is None or max(1, previous.workers) == max(1, costs.current):
        return costs, limits
    here = (max(1, costs.current), costs.service_s, costs.cpu_s)
    there = (max(1, previous.workers), previous.service_s, previous.cpu_s)
    (_, fast_s, fast_cpu_s), (many, slow_s, slow_cpu_s) = sorted((here, there))
    grown_s = slow_s - fast_s
    if grown_s <= SERVICE_GROWTH * fast_s or grown_s <= 2 * max(0.0, slow_cpu_s - fast_cpu_s):
        return costs, limits
    return replace(costs, service_s=fast_s), replace(limits, shared_s=max(limits.shared_s, slow_s / many))


def _confidence(costs: LoaderCosts, limits: Limits, now_s: float, observed_s: float) -> float:
    """Start from 0.9 and take off for each thing that was guessed, and for what the model does not explain."""
    confidence = 0.9
    if costs.handover_s is None:
        confidence *= 0.9
    if costs.batches < 4 * MIN_BATCHES:
        confidence *= 0.8
    if limits.available_cpus is None:
        confidence *= 0.7
    elif limits.neighbour_cpus:
        confidence *= 1 - 0.6 * limits.neighbour_cpus / (limits.neighbour_cpus + limits.available_cpus)
    if observed_s:
        confidence *= max(0.2, 1 - abs(now_s / observed_s - 1))
    return round(confidence, 2)


def _why_change(plan: Plan, limits: Limits, observed_s: float) -> str:
    best, costs = plan.best, plan.costs
    saves = f"{_ms(best.step_time_s)} a step instead of {_ms(observed_s)}"
    if best.workers == 0:
        handover = _ms(costs.ready_step_s - costs.work_s)
        return f"{saves}. Making a batch takes {_ms(costs.service_s)}, taking one over from a worker {handover}"
    if plan.torch_threads is not None:
        saves = (
            f"{saves},{with_threads(plan.torch_threads)}. Threads of one operation wait for each other while workers "
            "compute: workers alone would win less"
        )
    why = _why(costs, limits, best.workers, best.limited_by)
    state = ". A state that this loader saved is only valid for its number of workers" if costs.stateful else ""
    return f"{saves}. {why[0].upper()}{why[1:]}{_on_threads(costs, best.limited_by, best.workers)}{state}"


def _why_stay(costs: LoaderCosts, limits: Limits, limited_by: str) -> str:
    why = _why(costs, limits, costs.current, limited_by)
    return (
        f"no other number of workers is predicted to be {NOISE:.0%} faster. "
        f"{why[0].upper()}{why[1:]}{_on_threads(costs, limited_by, costs.current)}"
    )


def _why(costs: LoaderCosts, limits: Limits, workers: int, limited_by: str) -> str:
    batch, step = _ms(costs.service_s), _ms(costs.ready_step_s)
    more = f"more than {workers} workers" if workers > max(1, costs.current) else "more workers"
    if limited_by == "cpu":
        cpus, full = limits.available_cpus or 0.0, costs.cpus_for_full_speed or 0.0
        needs = f"{more} will not help: a step needs {_ms(costs.cpu_s + costs.loop_cpu_s)} of CPU on {cpus:.1f} CPUs"
        return (
            f"{needs}; full speed needs {full:.1f} CPUs"
            if full > cpus
            else f"{needs}, and keeps nearly all of them busy"
        )
    if limited_by == "bandwidth":
        return f"{more} will not help: they share a store that takes {_ms(limits.shared_s)} for a batch"
    if limited_by == "lock":
        return f"{more} will not help: they wait for each other at a lock held {_ms(limits.shared_s)} for a batch"
    if limited_by == "repeats":
        return f"{more} will not help: each makes the items of all, which takes {_ms(limits.shared_s)} for a batch"
    if limited_by == "memory":
        each = (limits.worker_bytes or DEFAULT_WORKER_BYTES) / (1 << 20)
        return f"no more workers of {each:.0f} MiB fit: a worker takes {batch} for a batch, a step {step}"
    if limited_by == "workers" and limits.shards is not None and workers >= limits.shards:
        shards = "a single shard" if limits.shards == 1 else f"{limits.shards} shards: one worker each"
        return f"a worker takes {batch} for a batch, and the dataset has {shards}"
    if workers == 0:
        return f"a step takes {_ms(costs.work_s)} and making its batch in the loop {batch}"
    return f"a worker takes {batch} for a batch, and the step itself takes {step}"


def _on_threads(costs: LoaderCosts, limited_by: str, workers: int) -> str:
    threads = _threads_beside(costs, limited_by, workers)
    if threads is None:
        return ""
    return (
        f". The loop itself computes with {threads:.1f} threads, which wait for each other while workers compute: "
        "try torch.set_num_threads(1)"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
