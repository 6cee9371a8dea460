"""Sources that look closer where a verdict asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ..records.code import IN_WORKERS
from ..records.diagnosis import Severity, Verdict
from ..records.interfaces import Source

COMES_ONCE = frozenset({"slow-start", "worker-startup"})
"""Causes that weigh less the longer a run goes on: early on they may stand before what it will be about."""

OF_THE_CPUS = frozenset({"cpu-saturated", "noisy-neighbour", "too-many-threads"})
"""Causes that may stand before what takes the CPUs: batches, as a rule."""


def rules_of(verdict: Verdict) -> tuple[str, ...]:
    """Return which causes are worth a closer look: the primary, and who makes batches behind one that may hide it."""
    if verdict.primary is None:
        return ("",)
    first = verdict.primary.rule
    behind = (d.rule for d in verdict.diagnoses if d.rule in IN_WORKERS and d.severity is not Severity.INFO)
    then = next(behind, None) if first in COMES_ONCE | OF_THE_CPUS else None
    return (first,) if then is None else (first, then)


class Look(Source, Protocol):
    """A source that looks closer for a short time when a verdict asks for it."""

    def request(self, rule: str, steps: int) -> None:
        """Ask for the look, if this primary cause is one that it would explain."""
        ...


class Profiler(Look, Protocol):
    """One that writes files: by the name that each has on a tracker."""

    files: dict[str, Path]
