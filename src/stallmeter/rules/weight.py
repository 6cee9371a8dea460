"""What a diagnosis weighs: the seconds that it would win back, and whether it is worth a warning."""

from __future__ import annotations

import math
from dataclasses import replace

from ..records.diagnosis import Diagnosis, Severity

HEALTHY = "compute-bound"
"""The rule that says that nothing else costs much."""

BEFORE_TRAINING = frozenset({"slow-start"})
"""Rules whose gain is one of the whole wall time."""

MATTERS_PCT = 5.0
"""Predicted rise of throughput from which on a loss is worth a warning; benchmarks/faults counts from there, too."""

UNSURE_PCT = 10.0
"""Below this a prediction may be noise: two runs of one program differ by 8 % in 2 of 10 cases (benchmarks/faults)."""


WORTH_S = 0.5
"""Seconds lost from which on it is worth a change of the program, as for a callback: a `fit` of some steps, to try
whether they run or to find a learning rate, loses less whatever its loader does."""


OF_INFORMATION = 0.5
"""What seconds weigh that only inform, beside those of a warning: the training may need them. Our choice."""


def only_informs(diagnosis: Diagnosis) -> bool:
    """Whether it tells of no loss: what costs time stands where that puts it, however harmless it is elsewhere."""
    return diagnosis.severity is Severity.INFO and not diagnosis.time_lost_s


def as_it_matters(diagnosis: Diagnosis) -> Diagnosis:
    """Let a warning inform only, where its small gain may be none that matters."""
    first = diagnosis.advice[0] if diagnosis.advice else None
    gain_pct, interval = (first.predicted_gain_pct, first.gain_interval_pct) if first else (None, None)
    if diagnosis.severity is Severity.INFO or gain_pct is None or interval is None:
        return diagnosis
    small = gain_pct < UNSURE_PCT and interval[0] < MATTERS_PCT
    return replace(diagnosis, severity=Severity.INFO) if small else diagnosis


def as_long_as_it_matters(diagnosis: Diagnosis) -> Diagnosis:
    """Let a warning inform only, where what is lost of a run is a moment."""
    momentary = diagnosis.severity is not Severity.INFO and 0.0 < diagnosis.time_lost_s < WORTH_S
    return replace(diagnosis, severity=Severity.INFO) if momentary else diagnosis


def won_s(diagnosis: Diagnosis, *, training_s: float | None, wall_s: float | None) -> float:
    """Return the seconds that the first advice is predicted to win back: at most those lost, all where none is.

    Args:
        diagnosis: With the gain of its first advice, a rise of throughput.
        training_s: Seconds that the gain is one of; None where they are not known.
        wall_s: The same of what precedes training.
    """
    gain_pct = diagnosis.advice[0].predicted_gain_pct if diagnosis.advice else None
    whole_s = wall_s if diagnosis.rule in BEFORE_TRAINING else training_s
    if gain_pct is None or not whole_s or not 0.0 <= gain_pct < math.inf:  # a rank may have posted anything
        return diagnosis.time_lost_s
    return min(diagnosis.time_lost_s, whole_s * gain_pct / (100.0 + gain_pct))


def standing_s(diagnosis: Diagnosis, won: float) -> float:
    """Return by how many seconds a diagnosis stands among others: an information's are fewer than a warning's.

    Args:
        diagnosis: As its rule gave it.
        won: Seconds that it would win back.
    """
    return OF_INFORMATION * won if diagnosis.severity is Severity.INFO else won
