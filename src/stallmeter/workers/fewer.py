"""Workers that do nothing for the speed: how many do the same, and what the others cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..records.diagnosis import WorkerAdvice
from .model import NEAR_BEST, Limits, LoaderCosts, binding, predict_step_times_s

RESERVE = 0.3
"""Workers are counted as if they took this much longer before fewer are said to do the same. Our choice: three times
the headroom, since nothing is won in speed; a number that saves is then never below one that was recommended before."""

SAVES_PROCESSES = 2
SAVES_SHARE = 1 / 3
"""Fewer workers at the same speed are worth a change from two processes and a third of them on. Our choice."""

NEIGHBOURS = 0.1
"""Neighbours that use more than this share of what is left to the run compete with its workers. Our choice."""

MISSED = 0.2
"""Fewer workers are said to do the same only where the model explains the present step time this closely."""


def fewer_workers(costs: LoaderCosts, limits: Limits) -> int | None:
    """Find the smallest number of workers that is as fast as the present one, with a reserve.

    Fewer workers have fewer batches ready, so rare slow batches must be bridged by them, too: those that the mean
    leaves out as well. Where the CPUs bind, one worker more than CPUs keeps them busy while another hands over or
    waits. Beside a neighbour that computes, more processes get a larger share of busy CPUs; nothing is said then.

    Returns:
        1 or more; None when that saves less than two processes or a third of them.
    """
    if costs.current <= SAVES_PROCESSES:
        return None
    cpus = limits.available_cpus or 0.0
    saturated = "cpu" in (binding(c, limits, costs.current, "") for c in (costs, _slower(costs)))
    if saturated and limits.neighbour_cpus > NEIGHBOURS * cpus:
        return None
    fewest = math.ceil(cpus) + 1 if saturated else 1
    measured = predict_step_times_s(costs, limits, costs.current)
    slower = predict_step_times_s(_slower(costs), limits, costs.current)
    now_s, slower_now_s = measured[-1] * (1 + NEAR_BEST), slower[-1] * (1 + NEAR_BEST)
    least = next(
        (
            workers
            for workers in range(fewest, costs.current)
            if measured[workers] <= now_s
            and slower[workers] <= slower_now_s
            and _unbridged(costs, limits, workers, measured[-1]) <= NEAR_BEST
        ),
        costs.current,
    )
    least = min(least, limits.shards or least)  # beyond them workers have nothing to read
    saved = costs.current - least
    return least if saved >= max(SAVES_PROCESSES, SAVES_SHARE * costs.current) else None


def savings(advice: WorkerAdvice) -> str:
    """Say what a smaller number of workers saves at the same speed; empty where it is not recommended for that."""
    if not advice.saves_processes:
        return ""
    memory = f" and {_size(advice.saves_bytes)}" if advice.saves_bytes else ""
    return f"{advice.saves_processes} processes{memory} less"


def _slower(costs: LoaderCosts) -> LoaderCosts:
    names = ("service_s", "cpu_s", "neighbour_wait_s", "own_wait_s", "shared_memory_s", "turnaround_s")
    changed: dict[str, Any] = {name: (1 + RESERVE) * getattr(costs, name) for name in names}
    return replace(costs, **changed)


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 0.95e9 else f"{size / 1e6:.0f} MB"


def _unbridged(costs: LoaderCosts, limits: Limits, workers: int, step_s: float) -> float:
    """Share of the time for which slow batches hold the loop up although all the others were made ahead."""
    ahead_s = (workers * max(1, limits.prefetch_factor) - 1) * step_s
    lost_s = math.fsum(max(0.0, (1 + RESERVE) * longest - ahead_s) for longest in costs.longest_s)
    even_s = math.fsum(max(0.0, (1 + RESERVE) * costs.service_s - ahead_s) for _ in costs.longest_s)
    return max(0.0, lost_s - even_s) / (costs.batches * step_s) if costs.batches and step_s else 0.0
