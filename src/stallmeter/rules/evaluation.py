"""Rules to verdict: every diagnosis, exactly one primary cause, and who abstained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..records.checks import sound_diagnosis
from ..records.diagnosis import Abstention, Diagnosis, Severity, Verdict, WorkerAdvice
from ..records.interfaces import GuardedCall, unguarded
from ..window import Window
from ..window.signals import read_signal
from ..workers.forecast import Outlook, forecast
from . import ALL_RULES
from .rule import Rule


def evaluate(rules: Sequence[Rule], window: Window, guard: GuardedCall = unguarded) -> Verdict:
    """Ask every rule.

    The primary cause is the largest avoidable loss among the warnings; without one it is the informative diagnosis
    that explains most of the time. Rules of one ``family`` explain the same seconds, so only the first of a family
    that fires is kept: the order of the rules is the order of precedence, and advice cannot contradict itself. A
    diagnosis may also name the rules that it supersedes. They judge the run since its number of workers was last
    changed.

    Args:
        rules: The rules to ask.
        window: What they may read.
        guard: Calls a rule and keeps its errors away; by default errors rise.
    """
    window = window.present()
    diagnoses: list[Diagnosis] = []
    abstained: list[Abstention] = []
    explained: set[str] = set()
    cures: dict[str, str] = {}
    for rule in rules:
        family = getattr(rule, "family", None)
        if family in explained:
            continue
        found = guard(f"rule {name_of(rule)}", _ask, rule, window)
        if isinstance(found, Abstention):
            abstained.append(found)
        elif found is not None:
            diagnoses.append(found)
            cures[found.rule] = getattr(rule, "cure", "")
            if family is not None:
                explained.add(family)
    superseded = {rule for found in diagnoses for rule in found.supersedes}
    diagnoses = [found for found in diagnoses if found.rule not in superseded]
    kept = {cure for rule, cure in cures.items() if rule not in superseded}
    outlook = guard("the num_workers model", lambda: forecast(window))
    ordered = sorted(diagnoses, key=lambda d: (d.severity is Severity.INFO, -d.time_lost_s, d.rule))
    return Verdict(
        primary=ordered[0] if ordered else None,
        diagnoses=tuple(ordered),
        abstained=tuple(abstained),
        num_workers=None if outlook is None else _in_accord(outlook, kept, ordered),
    )


def name_of(rule: object) -> str:
    """Return a rule's id; its class where it has none that can be shown."""
    name = getattr(rule, "id", None)
    return name if isinstance(name, str) and len(name) <= 100 else type(rule).__name__


def _ask(rule: Rule, window: Window) -> Diagnosis | Abstention | None:
    missing = tuple(name for name in rule.needs if read_signal(window, name) is None)
    return Abstention(rule.id, missing) if missing else sound_diagnosis(rule.check(window))


def _in_accord(outlook: Outlook, cures: set[str], diagnoses: Sequence[Diagnosis]) -> WorkerAdvice:
    """Recommend another number of workers only where a diagnosis says that it is the cure."""
    advice = outlook.advice
    change = advice.recommended - advice.current
    if change == 0 or ("more workers" if change > 0 else "fewer workers") in cures:
        return advice
    if diagnoses and diagnoses[0].severity is not Severity.INFO:
        reason = f"another number of workers does not cure this: {diagnoses[0].title}"
    else:
        reason = "the run does not lose enough time to waiting for data to make a change worth it"
    return replace(
        advice,
        recommended=advice.current,
        predicted_step_time_s=None,
        predicted_gain_pct=0.0,
        limited_by="unknown" if advice.limited_by == "workers" else advice.limited_by,
        reason=reason,
        prefetch_factor=None if outlook.deeper is None else outlook.deeper.prefetch_factor,
        prefetch_gain_pct=None if outlook.deeper is None else outlook.deeper.gain_pct,
    )


def diagnose(window: Window, rules: Sequence[Rule] = ALL_RULES) -> Verdict:
    """Ask today's rules about a window, for example one replayed from a recording."""
    return evaluate(rules, window)
