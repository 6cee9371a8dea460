"""What a case states: the shape of its runs and the verdict that would be right. And how a verdict is judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .shape import Shape

HEALTHY = "healthy"
"""Label of a run with nothing planted."""

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
        "input-bound",
    }
)
"""Rules that explain the same seconds: the wait for data. Two of them at once contradict each other."""

MORE_WORKERS = "more workers"
FEWER_WORKERS = "fewer workers"

FORBIDDEN: Mapping[str, str] = {
    "worker-startup": MORE_WORKERS,
    "prep-stall": MORE_WORKERS,
    "too-many-workers": MORE_WORKERS,
    "batch-handoff": MORE_WORKERS,
    "noisy-neighbour": MORE_WORKERS,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fault, or one healthy shape, at several intensities."""

    id: str
    truth: str
    """Rule that must be the primary cause; `HEALTHY` when nothing is planted."""
    what: str
    """What is planted, in a line."""
    shapes: tuple[Shape, ...]
    """One for each intensity, mild to strong."""
    accept: frozenset[str] = frozenset()
    """Other primaries that are as true."""
    also_allowed: frozenset[str] = frozenset()
    """Warnings beside the primary that are true as well."""
    required: frozenset[str] = frozenset()
    """Warnings that must be there, primary or not."""
    forbidden_advice: tuple[str, ...] = ()
    """Advice that no warning may give."""
    culprit: str | None = None
    """Pattern of the primary's culprit."""
    says: tuple[str, ...] = ()
    """Patterns that the primary's text, culprit, evidence and advice must hold."""
    allowed_if_slowed: frozenset[str] = frozenset()
    """Warnings that are true when the run was measurably slowed."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is planted."""
        return self.truth == HEALTHY

    def shape(self, level: int, seed: int) -> Shape:
        """Return the shape of one run."""
        return self.shapes[level].varied(seed)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict held against its case."""

    label: str
    """The primary, or what stands for none."""
    right: bool
    """The primary is right; on a healthy shape, and nothing warns."""
    contradictions: tuple[str, ...] = ()
    false_alarms: tuple[str, ...] = ()
    """Warnings on a healthy shape."""
    unexpected: tuple[str, ...] = ()
    """Warnings beside a right or wrong primary that the case does not allow for."""
    faults: tuple[str, ...] = field(default=())
    """What else is wrong: culprit, wording, advice, a missing warning."""

    @property
    def clean(self) -> bool:
        """Right, and nothing else to say."""
        return self.right and not (self.contradictions or self.faults)


SLOWED_PCT = 5.0
"""From this loss on a healthy run was slowed: what says so is no false alarm."""


def judge(case: Case, result: Mapping[str, Any]) -> Judgement:
    """Hold a result, as `run_case` prints it, against its case."""
    primary = result["primary"]
    label = primary["rule"] if primary else NOTHING
    warnings = [d for d in result["diagnoses"] if d["severity"] != "info"]
    names = [d["rule"] for d in warnings]
    allowed = set(case.allowed_if_slowed) if (result.get("slowed_pct") or 0.0) >= SLOWED_PCT else set()
    if case.healthy:
        false_alarms = tuple(n for n in names if n not in allowed)
        right = not false_alarms and (label in FINE or label in allowed)
        unexpected: tuple[str, ...] = ()
    else:
        false_alarms = ()
        right = label == case.truth or label in case.accept
        known = {case.truth, *case.accept, *case.also_allowed, *case.required, *allowed}
        unexpected = tuple(n for n in names if n not in known and n != label)
    return Judgement(
        label=label,
        right=right,
        contradictions=tuple(contradictions(warnings, result.get("num_workers"))),
        false_alarms=false_alarms,
        unexpected=unexpected,
        faults=tuple(_other_faults(case, primary, warnings, names)) if right and not case.healthy else (),
    )


def contradictions(warnings: list[Any], num_workers: Mapping[str, Any] | None = None) -> Iterable[str]:
    """Name pairs of one verdict that cannot both be true, and advice that speaks against a diagnosis.

    Args:
        warnings: The diagnoses that are not just informative.
        num_workers: The worker advice, whose number is advice as well.
    """
    family = sorted(d["rule"] for d in warnings if d["rule"] in INPUT_FAMILY)
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
    change = advice["recommended"] - advice["current"]
    return change > 0 if kind == MORE_WORKERS else kind == FEWER_WORKERS and change < 0


def _other_faults(case: Case, primary: Any, warnings: list[Any], names: list[str]) -> Iterable[str]:
    if case.culprit and not re.search(case.culprit, primary.get("culprit") or ""):
        yield f"culprit is {primary.get('culprit')!r}"
    text = " ".join(
        [
            primary["title"],
            primary["summary"],
            primary.get("culprit") or "",
            *(e["name"] for e in primary["evidence"]),
            *(a["text"] for a in primary["advice"]),
        ]
    )
    for pattern in case.says:
        if not re.search(pattern, text, re.IGNORECASE):
            yield f"does not say {pattern!r}"
    for rule in sorted(case.required - set(names)):
        yield f"no warning {rule}"
    for kind in case.forbidden_advice:
        for diagnosis in warnings:
            if advises(diagnosis, kind):
                yield f"{diagnosis['rule']} advises {kind}"
