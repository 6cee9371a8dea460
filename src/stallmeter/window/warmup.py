"""What the first steps took beyond steady ones: compilation, autotuning, lazy initialisation, caches that fill."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..records import StepRecord
from ..records.stats import deviation

PARTS = ("h2d", "forward", "backward", "compute", "optimizer")
"""Buckets in which first steps do what no later one has to. Waits, callbacks and savings have places of their own."""

FIRST_STEPS = 64
"""Only so many first steps can be warm-up, and never more than the first half of a run."""

REFERENCE_STEPS = 320
"""So many later steps tell for good what a steady one takes; before, the first ones are compared anew."""

MIN_REFERENCE_STEPS = 3

SETTLED_STEPS = 16
"""After so many ordinary steps in a row the run has settled. Gradients may be accumulated over as many."""

ISOLATED_S = 0.5
"""A long step that follows an ordinary one is warm-up from this excess on: less is a busy machine's stall."""

LUCK = 0.1
"""Steps as long as this one that would be expected so early if they came as often as later on: more is no warm-up."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The first steps of a run, judged by those that came after them."""

    steps: int
    """Steps until the last that took longer than a steady one; 0 when none did."""
    excess_s: float
    """Seconds that these steps took beyond steady ones, together."""
    buckets: Mapping[str, float] = field(default_factory=dict)
    """The same by bucket of the ledger."""
    long: frozenset[int] = frozenset()
    """Indices of the steps that took longer."""
    ended_s: float = float("-inf")
    """Unix time at the end of the last of them."""


NONE = WarmUp(0, 0.0)


class FirstSteps:
    """The first steps and those that they are compared with. Once that is settled, only the answer is kept."""

    def __init__(self) -> None:
        self._first: list[StepRecord] = []
        self._later: list[StepRecord] = []
        self._found: WarmUp | None = None

    def add(self, step: StepRecord) -> None:
        """Take the next step."""
        if self._found is not None:
            return
        (self._first if step.index < FIRST_STEPS else self._later).append(step)
        if len(self._later) >= REFERENCE_STEPS:
            self._found = self._judge() or NONE
            self._first, self._later = [], []

    def find(self) -> WarmUp | None:
        """Return the warm-up; None while there are too few steps to tell."""
        return self._found or self._judge()

    def _judge(self) -> WarmUp | None:
        steps = [*self._first, *self._later]
        if not steps or steps[0].index != 0:  # the history since a change of workers has no first steps
            return None
        border = min(FIRST_STEPS, (steps[-1].index + 1) // 2)
        head = [s for s in steps if s.index < border]
        later = [s for s in steps if s.index >= border]
        reference = [s for s in later if not s.outlier]
        if len(reference) < MIN_REFERENCE_STEPS:
            return None
        level, spread = _level(head, reference)
        found = _long_ones(head, later, level, spread)
        return _sum_up(found, reference, level) if found else NONE


def _level(head: Sequence[StepRecord], reference: Sequence[StepRecord]) -> tuple[float, float]:
    """Return the work of a steady step and its spread (scaled median absolute deviation)."""
    middle = statistics.median(map(_work_s, reference))
    spread = deviation(map(_work_s, reference), middle)
    # Where the first half of the first steps is over and those that follow are slower than later ones, the work itself
    # has changed since: that is no warm-up.
    near = head[len(head) // 2 :]
    if len(near) >= SETTLED_STEPS:
        middle = max(middle, statistics.median(map(_work_s, near)))
    return middle, spread


def _long_ones(
    head: Sequence[StepRecord], later: Sequence[StepRecord], level: float, spread: float
) -> list[StepRecord]:
    """Return the first steps that took longer than a steady one, until the run has settled."""
    found: list[StepRecord] = []
    span = later[-1].index + 1 - later[0].index
    even = sum(not s.outlier for s in later)
    for step in head:
        ordinary = step.index - (found[-1].index if found else -1) - 1
        if ordinary >= SETTLED_STEPS:
            break
        excess = _work_s(step) - level
        least = max(3.0 * spread, 0.2 * level) if step.index == 0 else max(6.0 * spread, level)
        if excess <= least or (ordinary and excess < ISOLATED_S):
            continue
        alike = [s for s in later if _work_s(s) - level >= 0.5 * excess]
        sampled = sum(not s.outlier for s in alike)
        rate = sampled / even + (len(alike) - sampled) / span
        if (step.index + 1) * rate < LUCK:
            found.append(step)
    return found


def _sum_up(found: Sequence[StepRecord], reference: Sequence[StepRecord], level: float) -> WarmUp:
    usual = {part: statistics.median(_part_s(s, part) for s in reference) for part in PARTS}
    buckets = dict.fromkeys(PARTS, 0.0)
    for step in found:
        above = {part: max(0.0, _part_s(step, part) - usual[part]) for part in PARTS}
        # Medians of parts do not add up to that of the whole: the excess is shared out as they exceed theirs.
        scale = (_work_s(step) - level) / (sum(above.values()) or 1.0)
        for part, seconds in above.items():
            buckets[part] += min(1.0, scale) * seconds
    kept = {part: seconds for part, seconds in buckets.items() if seconds > 0}
    last = found[-1]
    return WarmUp(last.index + 1, sum(kept.values()), kept, frozenset(s.index for s in found), last.time_s)


def _part_s(step: StepRecord, part: str) -> float:
    return getattr(step, f"{part}_s") or 0.0


def _work_s(step: StepRecord) -> float:
    return sum(_part_s(step, part) for part in PARTS)
