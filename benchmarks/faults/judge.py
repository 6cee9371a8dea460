"""Holds a verdict against the truth of its run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .cause import HEALTHY
from .truth import Truth

NOTHING = "none"
"""Label of a verdict without a primary cause."""

FINE = (NOTHING, "compute-bound")
"""What may be said of a healthy run."""

INPUT_FAMILY = frozenset(
    {
        "no-workers",
        "too-few-workers",
        "prep-stall",
        "fetch-stall",
        "too-many-workers",
        "worker-startup",
        "slow-batches",
        "batch-handoff",
        "idle-workers",
        "slow-sampler",
        "lock-contention",
        "input-bound",
    }
)
"""Rules about the loader: what is said of one of them may be said of another."""

SAME_SECONDS = INPUT_FAMILY - {"worker-startup"}
"""Rules that explain the same seconds, the wait for data: two of them at once contradict each other. What the start of
workers takes has a place of its own in the ledger."""

MORE_WORKERS = "more workers"
FEWER_WORKERS = "fewer workers"

FORBIDDEN: Mapping[str, str] = {
    "worker-startup": MORE_WORKERS,
    "prep-stall": MORE_WORKERS,
    "too-many-workers": MORE_WORKERS,
    "batch-handoff": MORE_WORKERS,
    "noisy-neighbour": MORE_WORKERS,
    "idle-workers": MORE_WORKERS,
    "too-few-workers": FEWER_WORKERS,
    "no-workers": FEWER_WORKERS,
}
"""Advice that the presence of a diagnosis rules out, wherever it stands."""

_NEGATION = re.compile(
    r"\b(not|never|no|nor|without|instead of|rather than|won't|doesn't|don't|cannot|can't|worse|slower)\b",
    re.IGNORECASE,
)
_ADVICE = {
    MORE_WORKERS: re.compile(
        r"\b(more|rais(e|ing)|increas(e|ing)|additional|extra|higher|add)\b[^.;:]*\b(num_workers|workers?)\b",
        re.IGNORECASE,
    ),
    FEWER_WORKERS: re.compile(
        r"\b(fewer|lower|reduc(e|ing)|decrease|less)\b[^.;:]*\b(num_workers|workers?)\b|\bnum_workers\s*=\s*0\b",
        re.IGNORECASE,
    ),
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict held against its run."""

    label: str
    """The primary, or what stands for none."""
    right: bool
    """The primary is right; on a healthy run, and nothing warns."""
    contradictions: tuple[str, ...] = ()
    false_alarms: tuple[str, ...] = ()
    """Warnings on a healthy run."""
    unexpected: tuple[str, ...] = ()
    """Warnings beside the primary of what was not planted, or costs nothing."""


def judge(truth: Truth, result: Mapping[str, Any]) -> Judgement:
    """Hold a verdict, as `ours.described` returns it, against the truth."""
    primary = result.get("primary")
    warnings = [d for d in result.get("diagnoses", ()) if d["severity"] != "info"]
    names = [d["rule"] for d in warnings]
    label = primary["rule"] if primary else NOTHING
    fine = HEALTHY in truth.right and label in FINE and not [n for n in names if n not in truth.allowed]
    right = fine or label in truth.right
    others = tuple(n for n in names if n not in truth.right and n not in truth.allowed)
    return Judgement(
        label=label,
        right=right,
        contradictions=tuple(contradictions(warnings, result.get("num_workers"))),
        false_alarms=others if truth.healthy else (),
        unexpected=() if truth.healthy else tuple(n for n in others if n != label),
    )


def contradictions(warnings: Sequence[Any], num_workers: Mapping[str, Any] | None = None) -> Iterable[str]:
    """Name pairs of one verdict that cannot both be true, and advice that speaks against a diagnosis.

    Args:
        warnings: The diagnoses that are not just informative.
        num_workers: The worker advice, whose number is advice as well.
    """
    family = sorted(d["rule"] for d in warnings if d["rule"] in SAME_SECONDS)
    if len(family) > 1:
        yield " + ".join(family)
    for diagnosis in warnings:
        kind = FORBIDDEN.get(diagnosis["rule"])
        if kind is None:
            continue
        for other in warnings:
            if advises(other, kind):
                yield f"{diagnosis['rule']}, yet {other['rule']} advises {kind}"
        if num_workers and _number_advises(num_workers, kind):
            yield f"{diagnosis['rule']}, yet num_workers {num_workers['current']} -> {num_workers['recommended']}"


def advises(diagnosis: Mapping[str, Any], kind: str) -> bool:
    """Whether a diagnosis advises this kind of thing; a sentence with a negation in it does not."""
    pattern = _ADVICE.get(kind) or re.compile(kind, re.IGNORECASE)
    sentences = (s for a in diagnosis["advice"] for s in re.split(r"[.;:](?:\s|$)", a["text"]))
    return any(pattern.search(s) and not _NEGATION.search(s) for s in sentences)


def _number_advises(advice: Mapping[str, Any], kind: str) -> bool:
    """Whether the number is of this kind; a first worker is none more: it computes beside a loop that did all."""
    change = advice["recommended"] - advice["current"] if advice["current"] or kind == FEWER_WORKERS else 0
    return change > 0 if kind == MORE_WORKERS else kind == FEWER_WORKERS and change < 0
