"""Slow steps as traces: one step as bars on a time axis, as a tracker's trace view draws it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ....records import BUCKETS, StepRecord

ORDER = "Lengths are measured. Their order is the usual one: a bucket is the sum of what may have been many calls."
"""What a trace of a step cannot show."""


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One bucket's time within a step."""

    name: str
    start_ns: int
    """Unix time in nanoseconds."""
    end_ns: int


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step, with its parts end to end."""

    step: int
    """Number of the step in its run."""
    title: str
    start_ns: int
    """Unix time in nanoseconds."""
    end_ns: int
    parts: tuple[TraceSpan, ...]


def step_traces(steps: Sequence[StepRecord], places: Mapping[str, str] | None = None) -> list[StepTrace]:
    """Return steps as traces.

    Args:
        steps: The slowest steps of a run, the slowest first.
        places: Function in which most of a bucket is, by bucket: its span is named after it, too.
    """
    return [_step_trace(step, place, places or {}) for place, step in enumerate(steps, 1)]


def _step_trace(step: StepRecord, place: int, places: Mapping[str, str]) -> StepTrace:
    spent = ((bucket, getattr(step, f"{bucket}_s", None)) for bucket in BUCKETS)
    lengths = [(bucket, round(seconds * 1e9)) for bucket, seconds in spent if seconds]
    end_ns = round(step.time_s * 1e9)
    start_ns = end_ns - max(round(step.total_s * 1e9), sum(ns for _, ns in lengths))
    which = "slowest step" if place == 1 else f"slow step {place}"
    title = f"step {step.index} ({which})"
    named = [(f"{bucket}: {places[bucket]}" if bucket in places else bucket, ns) for bucket, ns in lengths]
    return StepTrace(step.index, title, start_ns, end_ns, tuple(_end_to_end(start_ns, named)))


def _end_to_end(start_ns: int, lengths: Sequence[tuple[str, int]]) -> Iterator[TraceSpan]:
    for name, ns in lengths:
        yield TraceSpan(name, start_ns, start_ns + ns)
        start_ns += ns
