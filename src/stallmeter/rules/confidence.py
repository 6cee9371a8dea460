"""How sure the primary cause is: of the verdicts that say 80 %, 80 % should be right.

A rule knows how clear its own evidence is. How often it is right also depends on what else could be the cause, on how
much is lost, and on how long the run was watched. These are weighed by a logistic function whose weights were fitted
to the drawn runs of `benchmarks/faults` with odd numbers; `docs/explain/accuracy.md` shows what came of it on the even
ones.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from ..records.diagnosis import Diagnosis
from ..window import Window

FULL_SHARE = 20.0
"""Percent of the training time from which on a loss is large: XProf calls a program highly input-bound from there."""

MANY_STEPS = 100.0
"""So many steady steps are as good as any number: medians no longer move."""

LEAST, MOST = 0.05, 0.98
"""Nothing is told with more certainty than some hundred runs can show."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What tells how sure a verdict is, each 0 to 1 but for the first."""

    rule: float
    """The rule's own confidence, as log odds."""
    lead: float
    """By how much the primary wins back more than the next cause; 1 where there is no other."""
    size: float
    """How large the loss is."""
    watched: float
    """How long the run was watched, in steps."""
    quiet: float
    """Share of the usable CPUs that no other job keeps busy; 1 where that is not known."""


WEIGHTS = Signs(rule=1.09, lead=0.48, size=0.4, watched=0.15, quiet=0.03)
BIAS = 0.17


def signs(primary: Diagnosis, won_s: float, next_won_s: float, window: Window) -> Signs:
    """Return the signs of a verdict.

    Args:
        primary: The primary cause.
        won_s: Seconds that its removal is predicted to win back.
        next_won_s: The same of the next cause; 0 where there is none.
        window: What was judged.
    """
    own = min(MOST, max(LEAST, primary.confidence))
    others, usable = window.host.others_cpus, window.host.usable_cpus
    return Signs(
        rule=math.log(own / (1.0 - own)),
        lead=1.0 if next_won_s <= 0 else max(0.0, 1.0 - next_won_s / won_s) if won_s > 0 else 0.0,
        size=min(1.0, primary.share_pct / FULL_SHARE),
        watched=min(1.0, window.steps.count / MANY_STEPS),
        quiet=1.0 if others is None or not usable else max(0.0, 1.0 - others / usable),
    )


def calibrated(found: Signs, weights: Signs = WEIGHTS, bias: float = BIAS) -> float:
    """Return the probability (0 to 1) that the primary cause is right."""
    odds = bias + sum(w * s for w, s in zip(astuple(weights), astuple(found), strict=True))
    return round(min(MOST, max(LEAST, 1.0 / (1.0 + math.exp(-odds)))), 2)
