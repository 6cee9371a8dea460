"""From measured times to what was wrong: pure numbers, no runs.

The saving of a lever is the part of the run's time that is gone when the lever is pulled. A cause counts from 5 % more
throughput. Where removing gains between 4 and 6 % the measurement cannot tell: there both verdicts count as right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .cause import HEALTHY, Cause, Lever

HEALTHY_PCT = 5.0
"""A change that wins less is not worth a word."""
UNSURE_PCT = 1.0
"""On either side of it the measurement cannot tell."""
SETTING_PART = 0.5
"""A setting that wins back this part of what work on the data would is the cause."""
ENOUGH_PART = 0.8
"""From this part of it on two answers are equally good."""
WARM_PART, WARM_STEPS = 0.05, 3


def gain_pct(times: Mapping[str, Any], cured: Mapping[str, Any], *, whole: bool, from_start: bool) -> float | None:
    """Return how much faster the cured run got to the same step, as the rise of throughput in percent.

    Args:
        times: Of the run: ``ends`` of its steps in seconds since it began, and when its ``last`` part ended.
        cured: The same of the run without the cause.
        whole: The whole run counts, from the end of the first step; else the steps after the first few.
        from_start: What precedes the first step counts, too.
    """
    ends, others = times["ends"], cured["ends"]
    count = min(len(ends), len(others))
    if count < 10:
        return None
    if from_start or whole:
        first, other_first = (0.0, 0.0) if from_start else (ends[0], others[0])
        complete = len(ends) == len(others)
        before = (times["last"] if complete else ends[count - 1]) - first
        after = (cured["last"] if complete else others[count - 1]) - other_first
    else:
        warm = min(max(WARM_STEPS, int(count * WARM_PART)), count // 2)
        before, after = ends[count - 1] - ends[warm], others[count - 1] - others[warm]
    return 100.0 * (before / after - 1.0) if after > 0 else None


def saving(gain: float) -> float:
    """Return the part of the time that a gain in percent saves."""
    return 1.0 - 1.0 / (1.0 + gain / 100.0) if gain > -100.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a verdict on a run should be."""

    right: frozenset[str]
    """Primaries that are right; `HEALTHY` among them where nothing costs enough, or may not."""
    label: str
    """The one to count it under."""
    allowed: frozenset[str] = frozenset()
    """Warnings beside the primary that are true as well."""
    gains: Mapping[str, float] = field(default_factory=dict)
    """Measured gain of each lever in percent, by its name."""
    unclear: str = ""
    """Why it cannot be said; such a run is not judged."""

    @property
    def healthy(self) -> bool:
        """Whether nothing may be warned of."""
        return self.label == HEALTHY


def of(
    causes: Sequence[Cause], measured: Mapping[str, Sequence[float | None]], bare_gain_pct: float | None = None
) -> Truth:
    """Return the truth of a run.

    Args:
        causes: What was planted.
        measured: By the name of a lever the gains of its changes, in percent.
        bare_gain_pct: Of a run that only computes, where nothing that costs time was planted.
    """
    gains = {name: max(known) for name, all_ in measured.items() if (known := [g for g in all_ if g is not None])}
    declared = [c.rule for c in causes if c.declared]
    costly = [c for c in causes if c.levers]
    missing = [c.rule for c in costly if not any(lv.name in gains for lv in c.levers)]
    allowed = {
        rule
        for c in costly
        for lv in c.levers
        if gains.get(lv.name, 0.0) > HEALTHY_PCT - UNSURE_PCT
        for rule in lv.rules
    }
    allowed |= set(declared)
    best = max((saving(gains.get(lv.name, 0.0)) for c in costly for lv in c.levers), default=0.0)
    highest = max((gains.get(lv.name, 0.0) for c in costly for lv in c.levers), default=0.0)
    if missing:
        return Truth(right=frozenset(), label=HEALTHY, gains=gains, unclear=f"not measured: {', '.join(missing)}")
    enough_pct = HEALTHY_PCT + UNSURE_PCT
    known = highest >= enough_pct or not all(c.declared for c in causes)
    if not known and bare_gain_pct is not None and bare_gain_pct >= enough_pct:
        what = "nothing that costs time" if declared else "nothing"
        why = f"{what} was planted, yet only computing is {bare_gain_pct:.0f} % faster"
        return Truth(right=frozenset(), label=HEALTHY, gains=gains, unclear=why)
    right: set[str] = set()
    label = HEALTHY
    if highest >= HEALTHY_PCT - UNSURE_PCT:
        for cause in sorted(costly, key=lambda c: -_most(c, gains)):
            if _most(cause, gains) >= ENOUGH_PART * best:
                found = _right_levers(cause, gains)
                rules = [rule for lv in found for rule in lv.rules]
                right.update(rules)
                if label == HEALTHY and highest >= HEALTHY_PCT:
                    label = cause.rule if cause.rule in rules else rules[0]
    if highest < HEALTHY_PCT:
        label = declared[0] if declared else HEALTHY
        right.update(declared or [HEALTHY])
    elif highest < HEALTHY_PCT + UNSURE_PCT:
        right.update(declared or [HEALTHY])
    return Truth(right=frozenset(right), label=label, allowed=frozenset(allowed), gains=gains)


def _most(cause: Cause, gains: Mapping[str, float]) -> float:
    return max(saving(gains.get(lv.name, 0.0)) for lv in cause.levers)


def _right_levers(cause: Cause, gains: Mapping[str, float]) -> list[Lever]:
    """Return the levers of a cause that win its time back: settings before work on the data."""
    settings = [(saving(gains.get(lv.name, 0.0)), lv) for lv in cause.levers if lv.setting]
    works = [(saving(gains.get(lv.name, 0.0)), lv) for lv in cause.levers if not lv.setting]
    of_works = max((s for s, _ in works), default=0.0)
    of_settings = max((s for s, _ in settings), default=0.0)
    found = [lv for s, lv in settings if s > 0 and s >= SETTING_PART * of_works and s >= ENOUGH_PART * of_settings]
    if of_settings < ENOUGH_PART * of_works or not found:
        found += [lv for s, lv in works if s >= ENOUGH_PART * of_works]
    return found
