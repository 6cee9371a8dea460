"""Workers that may run on a part of the process's CPUs only: what they have, and what the loader would do with all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..records import WorkerMemory
from ..records.diagnosis import WorkerAdvice
from .model import Limits, LoaderCosts, predict_step_time_s
from .whatif import LoopWaits, eased


class Pinned(NamedTuple):
    """CPUs that all workers together may run on, fewer than the process may."""

    cpus: int
    process_cpus: int


def pinned(memory: Sequence[WorkerMemory]) -> Pinned | None:
    """Return on how few CPUs workers run; None where they have those of the process, or that is not known.

    Args:
        memory: Samples of the workers, the newest last.
    """
    last = memory[-1] if memory else None
    if last is None or not last.cpus or last.process_cpus is None or last.cpus >= last.process_cpus:
        return None
    return Pinned(last.cpus, last.process_cpus)


def within(cpus: float | None, found: Pinned | None, job_cpus: float | None) -> float | None:
    """Return the CPUs that loop and workers may keep busy while workers share a few of them.

    Args:
        cpus: That they may otherwise.
        found: How few the workers have.
        job_cpus: That the job was seen to keep busy: the loop's own threads may have others.
    """
    return cpus if cpus is None or found is None else min(cpus, max(float(found.cpus), job_cpus or 0.0))


def with_all_cpus_s(
    costs: LoaderCosts, limits: Limits, found: Pinned | None, usable_cpus: float | None, waits: LoopWaits | None
) -> float | None:
    """Return what a step would take if workers could run on all CPUs of the process; None where they can.

    Args:
        costs: Measured with the present number.
        limits: What the workers may use now.
        found: How few the workers have.
        usable_cpus: CPUs that this rank may use, a quota counted in.
        waits: Of the loop's thread for a CPU: its workers share its own one.
    """
    if found is None or not costs.current:
        return None
    cpus = max(0.0, min(float(found.process_cpus), usable_cpus or float(found.process_cpus)) - limits.neighbour_cpus)
    then = replace(limits, available_cpus=max(cpus, limits.available_cpus or 0.0))
    # By how much workers elsewhere would hold up the thread is what the CPUs' time says: here they take its own.
    own_s = 0.0 if waits is None else max(0.0, waits.all_s - waits.neighbours_s)
    return predict_step_time_s(eased(costs, own_s) if own_s else costs, then, costs.current)


def unless_pinned(advice: WorkerAdvice, found: Pinned | None) -> WorkerAdvice:
    """Recommend no other number while the workers have fewer CPUs than their number, now or then."""
    if found is None or advice.recommended == advice.current:
        return advice
    if max(advice.current, advice.recommended) <= found.cpus:
        return advice
    return replace(
        advice,
        recommended=advice.current,
        predicted_step_time_s=None,
        predicted_gain_pct=0.0,
        limited_by="cpu",
        reason=f"workers may run on {found.cpus} of the {found.process_cpus} CPUs of the process: undo that first",
        saves_processes=None,
        saves_bytes=None,
        torch_threads=None,
    )
