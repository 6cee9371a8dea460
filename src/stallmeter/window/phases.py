"""The history of a run in phases: steps and batches of two numbers of workers must not be mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from ..records import LedgerRecord, Record, WorkerBatch, WorkerChange, WorkerTrial
from .ledger import LedgerSignals
from .steps import MIN_STEADY_STEPS, StepSignals
from .warmup import PARTS as WARMED


class History(Protocol):
    """What is asked of a window here."""

    ledger: LedgerSignals
    steps: StepSignals

    def append(self, record: Record) -> None:
        """Take a record."""


W = TypeVar("W", bound=History)


class Phases(Generic[W]):
    """Windows of one run, each since a change of the number of workers.

    Args:
        whole: The window of the whole run.
        begin: Returns a window for what comes after a change, from the change and the window of what came before it.
    """

    def __init__(self, whole: W, begin: Callable[[WorkerChange, W], W]) -> None:
        self._whole, self._begin = whole, begin
        self._past: W = whole
        self._latest: W | None = None
        self._began_s = 0.0
        self._base: LedgerRecord | None = None

    def append(self, record: Record) -> None:
        """Take a record into the latest phase; a change begins a new one."""
        if isinstance(record, WorkerChange):
            self._past = deepcopy(self._whole) if self._latest is None else self._latest
            self._latest = self._begin(record, self._past)
            self._began_s, self._base = record.time_s, self._whole.ledger.record
        elif self._latest is not None:
            self._append_since(self._latest, record)

    def _append_since(self, latest: W, record: Record) -> None:
        if isinstance(record, WorkerBatch) and record.time_s <= self._began_s:
            return
        if isinstance(record, LedgerRecord) and self._base is not None:
            record = difference(record, self._base)
        # Trials are shared: they are known already.
        if not isinstance(record, WorkerTrial):
            latest.append(record)

    def present(self) -> W:
        """The window since the last change: what rules may judge.

        Until enough steps were taken with the new number it is the window before the change; without a change it is
        the whole one.
        """
        latest = self._latest
        if latest is None or latest.ledger.record is None or latest.steps.count < 2 * MIN_STEADY_STEPS:
            return self._past
        return latest


def difference(ledger: LedgerRecord, base: LedgerRecord) -> LedgerRecord:
    """Return the ledger since an earlier reading.

    A bucket never falls below 0: warm-up and the start of workers are booked from it with hindsight. Warm-up of before
    is no warm-up since.
    """

    def less(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, float]:
        return {name: max(0.0, seconds - then.get(name, 0.0)) for name, seconds in now.items()}

    buckets = less(ledger.buckets, base.buckets)
    if "warmup" in buckets:
        booked = sum(max(0.0, base.buckets.get(b, 0.0) - ledger.buckets.get(b, 0.0)) for b in WARMED)
        buckets["warmup"] = max(0.0, buckets["warmup"] - booked)
    cpu_s = None if ledger.thread_cpu_s is None else ledger.thread_cpu_s - (base.thread_cpu_s or 0.0)
    return replace(
        ledger,
        wall_s=ledger.wall_s - base.wall_s,
        steps=ledger.steps - base.steps,
        epochs=ledger.epochs - base.epochs,
        buckets=buckets,
        callbacks=less(ledger.callbacks, base.callbacks),
        logging=less(ledger.logging, base.logging),
        validation_parts=less(ledger.validation_parts, base.validation_parts),
        own_s=ledger.own_s - base.own_s,
        thread_cpu_s=cpu_s,
        samples=None if ledger.samples is None else ledger.samples - (base.samples or 0),
    )
