"""Settings of a loader and of torch that may be tried between two epochs besides the number of workers. Pure.

What a verdict names decides which, and its predicted gain which comes first. None of them changes which samples a batch
holds, nor their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..records import LoaderInfo
from ..records.diagnosis import Diagnosis, Verdict

NUM_WORKERS = "num_workers"
PREFETCH = "prefetch_factor"
PERSISTENT = "persistent_workers"
PIN = "pin_memory"
CONTEXT = "multiprocessing_context"
THREADS = "torch.set_num_threads"

Value = int | str
"""Of a setting: a number, a truth value, or the name of a start method."""

CPU_RULES = frozenset({"cpu-saturated", "cpu-throttled", "prep-stall"})
"""Verdicts under which threads of the loop may be in the workers' way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that a verdict asks for."""

    setting: str
    before: Value
    value: Value
    predicted_gain_pct: float | None = None
    """Rise of throughput; None where nothing was predicted: such a change is tried after all others."""


def changes(
    verdict: Verdict, loader: LoaderInfo | None, *, threads: int | None = None, cpus: float | None = None
) -> tuple[Change, ...]:
    """Return what the verdict asks for, the largest predicted gain first.

    Args:
        verdict: The newest.
        loader: The training loader's settings.
        threads: Of torch's operations in the training process; None where that is not known.
        cpus: Usable by this rank; None where that is not known.
    """
    if loader is None:
        return ()
    found = {diagnosis.rule: diagnosis for diagnosis in verdict.diagnoses}
    asked = [
        *_prefetch(verdict, loader),
        *_startup(found.get("worker-startup"), loader),
        *_pin(found.get("unpinned-memory"), loader),
        *_fewer_threads(found, loader, threads, cpus),
    ]
    return tuple(sorted(asked, key=lambda change: -(change.predicted_gain_pct or 0.0)))


def _prefetch(verdict: Verdict, loader: LoaderInfo) -> list[Change]:
    advice = verdict.num_workers
    if advice is None or advice.prefetch_factor is None or advice.recommended != advice.current:
        return []
    now = loader.prefetch_factor
    if not loader.num_workers or now is None or now == advice.prefetch_factor:
        return []
    gain_pct = advice.prefetch_gain_pct
    return [Change(setting=PREFETCH, before=now, value=advice.prefetch_factor, predicted_gain_pct=gain_pct)]


def _startup(found: Diagnosis | None, loader: LoaderInfo) -> list[Change]:
    if found is None or not loader.num_workers:
        return []
    asked = []
    if not loader.persistent_workers:
        gain_pct = _gain_pct(found, PERSISTENT)
        asked.append(Change(setting=PERSISTENT, before=False, value=True, predicted_gain_pct=gain_pct))
    if loader.start_method == "spawn":  # the server of forkserver is as clean as a new process, and is started once
        asked.append(Change(setting=CONTEXT, before="spawn", value="forkserver"))
    return asked


def _pin(found: Diagnosis | None, loader: LoaderInfo) -> list[Change]:
    if found is None or loader.pin_memory is not False:
        return []
    return [Change(setting=PIN, before=False, value=True, predicted_gain_pct=_gain_pct(found, PIN))]


def _fewer_threads(
    found: dict[str, Diagnosis], loader: LoaderInfo, threads: int | None, cpus: float | None
) -> list[Change]:
    crowd = found.get("too-many-threads")
    if threads is None or cpus is None or threads <= 1 or (crowd is None and not found.keys() & CPU_RULES):
        return []
    fewer = max(1, int(cpus) - (0 if crowd is not None else loader.num_workers or 0))
    gain_pct = None if crowd is None else _gain_pct(crowd, THREADS)
    change = Change(setting=THREADS, before=threads, value=fewer, predicted_gain_pct=gain_pct)
    return [change] if fewer < threads else []


def _gain_pct(found: Diagnosis, setting: str) -> float | None:
    """Return what the diagnosis predicts of the advice that names a setting."""
    named = (advice for advice in found.advice if setting in advice.text)
    return next((advice.predicted_gain_pct for advice in named), None)
