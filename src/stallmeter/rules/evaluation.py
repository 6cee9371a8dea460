"""Rules to verdict: every diagnosis, exactly one primary cause, and who abstained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..records.checks import sound_diagnosis
from ..records.diagnosis import Abstention, Diagnosis, Severity, Verdict, WorkerAdvice
from ..records.interfaces import GuardedCall, unguarded
from ..window import Window
from ..window.signals import read_signal
from ..workers.forecast import Outlook, forecast
from . import ALL_RULES
from .confidence import calibrated, signs
from .location import located, with_gain
from .prep_stall import ONE_THREAD
from .rule import Rule, alternatives
from .weight import HEALTHY, as_it_matters, as_long_as_it_matters, only_informs, standing_s, won_s

CALIBRATED = frozenset(rule.id for rule in ALL_RULES)
"""Rules whose verdicts the confidence was fitted to."""

KEEP_THEM = "Set persistent_workers=True in the DataLoader."
"""Advice of worker-startup that needs workers: torch refuses it without any."""

CAUSE_UNKNOWN = "input-bound"
"""The rule that says that the cause is not known: no alternative to one that is."""

OUTSIDE = "the time outside the steps"
"""What no rule judges: work between epochs, or beside the loader that is watched."""

OUTSIDE_PCT = 10.0
"""Share of the run from which on that is said where nothing else is; a loss is reported from as much on."""

SAVES_WORKERS = "too-many-workers"
"""The rule that says, for information, that fewer workers would do the same."""

IN_STEPS = ("slow-function", "small-batches")
"""Rules that tell of a part of the steps, also where they only inform."""

ROOM_PCT = 30.0
"""Predicted rise of throughput by the first diagnosis up to which fewer workers that do the same now may be enough
then: they are recommended where ones that take 30 % longer would be, as `too-many-workers` says."""

WORTH_PCT = 5.0
"""Predicted rise of throughput from which on another number of workers is recommended though nothing warns: twice the
noise of a step time (benchmarks/workers)."""


def evaluate(rules: Sequence[Rule], window: Window, guard: GuardedCall = unguarded) -> Verdict:
    """Ask every rule.

    The primary cause is the warning whose first advice wins most time back: what a cause took is not what its removal
    gains, where something else is as slow behind it. Without a predicted gain the time lost counts. Of what costs no
    time the more urgent comes first, then the surer. What only informs and loses no time comes last; where it does lose
    some, that counts by half beside a warning's. A warning of a small gain that may be none informs only. Rules of one
    ``family`` explain the same seconds, so only the first of a family that fires is kept: the order of the rules is the
    order of precedence, and advice cannot contradict itself. A diagnosis may also name the rules that it supersedes.
    They judge the run since its number of workers was last changed.

    Args:
        rules: The rules to ask.
        window: What they may read.
        guard: Calls a rule and keeps its errors away; by default errors rise.
    """
    whole, window = window, window.present()
    diagnoses: list[Diagnosis] = []
    abstained: list[Abstention] = []
    rivals: list[Diagnosis] = []
    """Other causes of the same seconds, which would have been told if no rule before theirs had fired."""
    explained: set[str] = set()
    by_id = {name_of(rule): rule for rule in rules}
    for rule in rules:
        family = getattr(rule, "family", None)
        found = guard(f"rule {name_of(rule)}", _ask, rule, window)
        if family in explained:
            rivals += [found] if isinstance(found, Diagnosis) else []
        elif isinstance(found, Abstention):
            abstained.append(found)
        elif found is not None:
            diagnoses.append(found)
            # What costs no time explains none: the cause is still to be found.
            if family is not None and found.severity is not Severity.INFO:
                explained.add(family)
    superseded = {rule for found in diagnoses for rule in found.supersedes}
    diagnoses = [located(found, window) for found in diagnoses if found.rule not in superseded]
    outlook = guard("the num_workers model", lambda: forecast(window))
    ordered = sorted(diagnoses, key=lambda d: (only_informs(d), -standing_s(d, _won_s(d, window)), *_urgency(d)))
    ordered, contrary = _in_accord_with_the_first(ordered, by_id)
    rivals += contrary
    own = {name for name, rule in by_id.items() if getattr(rule, "own_severity", False)}
    alone = not window.facts.has_other_ranks  # what costs a rank little may cost a job of many much
    ordered = [as_long_as_it_matters(as_it_matters(d)) if alone and d.rule not in own else d for d in ordered]
    ordered = _without_savings(_without_praise(ordered), by_id)
    cures = {_cure(by_id, d) for d in ordered}
    ruled_out = {kind for d in ordered for kind in _rules_out(by_id, d)}
    runner_up = _sure_or_not(ordered, rivals, window)
    # Last: what a place in the code would gain is no part of what is weighed above.
    ordered = [_of_the_run(with_gain(found, window), whole, window) for found in ordered]
    if not ordered and HEALTHY in by_id:
        abstained += _outside(window)
    return Verdict(
        primary=ordered[0] if ordered else None,
        runner_up=runner_up,
        diagnoses=tuple(ordered),
        abstained=tuple(abstained),
        num_workers=None if outlook is None else _accord(outlook, cures, ruled_out, ordered),
    )


def _of_the_run(diagnosis: Diagnosis, whole: Window, judged: Window) -> Diagnosis:
    """Return the diagnosis with its share of the whole run, where only what came after a change was judged."""
    run_s = whole.ledger.wall_s
    if judged is whole or not run_s:
        return diagnosis
    return replace(diagnosis, share_pct=100.0 * diagnosis.time_lost_s / run_s)


def _outside(window: Window) -> list[Abstention]:
    share = window.ledger.share_pct(window.spent.bucket_s("other") or 0.0) or 0.0
    return [Abstention(HEALTHY, (f"{OUTSIDE}, {share:.0f} % of the run",))] if share >= OUTSIDE_PCT else []


def _without_praise(ordered: list[Diagnosis]) -> list[Diagnosis]:
    """Leave out that the steps set the pace, where a warning says what does, or a function in the steps is named."""
    costs = any((d.severity is not Severity.INFO or d.rule in IN_STEPS) and d.share_pct >= OUTSIDE_PCT for d in ordered)
    return [d for d in ordered if d.rule != HEALTHY] if costs else ordered


def _without_savings(ordered: list[Diagnosis], rules: Mapping[str, Rule]) -> list[Diagnosis]:
    """Leave out that fewer workers would do the same, where steps get so much shorter first that these may not do.

    Where the cause lies in the batches, these get cheaper, and fewer workers are enough all the more.
    """
    if not ordered or not ordered[0].advice or getattr(rules.get(ordered[0].rule), "family", None) == "input":
        return ordered
    first = ordered[0].advice[0]
    if max(0.0, first.predicted_gain_pct or 0.0, *(first.gain_interval_pct or ())) <= ROOM_PCT:
        return ordered
    return [d for d in ordered if d is ordered[0] or d.rule != SAVES_WORKERS or d.severity is not Severity.INFO]


def _urgency(diagnosis: Diagnosis) -> tuple[bool, float, str]:
    """Return what puts those in order that cost no time: what ends the run soon is first, then what is surer."""
    if only_informs(diagnosis):
        return True, 0.0, diagnosis.rule
    return diagnosis.severity is not Severity.CRITICAL, -diagnosis.confidence, diagnosis.rule


def _in_accord_with_the_first(
    ordered: Sequence[Diagnosis], rules: Mapping[str, Rule]
) -> tuple[list[Diagnosis], list[Diagnosis]]:
    """Part what contradicts a diagnosis that wins more: one advises what makes the other worse."""
    kept: list[Diagnosis] = []
    contrary: list[Diagnosis] = []
    for diagnosis in ordered:
        cures = {_cure(rules, d) for d in kept} - {""}
        ruled_out = {kind for d in kept for kind in _rules_out(rules, d)}
        against = _cure(rules, diagnosis) in ruled_out or not cures.isdisjoint(_rules_out(rules, diagnosis))
        # What only informs asks for nothing, and has its number from the same model.
        (contrary if against and diagnosis.severity is not Severity.INFO else kept).append(diagnosis)
    return kept, contrary


def _cure(rules: Mapping[str, Rule], diagnosis: Diagnosis) -> str:
    return getattr(rules.get(diagnosis.rule), "cure", "")


def _rules_out(rules: Mapping[str, Rule], diagnosis: Diagnosis) -> tuple[str, ...]:
    kinds = getattr(rules.get(diagnosis.rule), "rules_out", ()) or ()
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)


def _sure_or_not(ordered: list[Diagnosis], rivals: Sequence[Diagnosis], window: Window) -> Diagnosis | None:
    """Give the first of the diagnoses its calibrated confidence; return what else could be the cause."""
    if not ordered:
        return None
    primary = ordered[0]
    others = [d for d in ordered[1:] if d.severity is not Severity.INFO]
    next_s = max((_won_s(d, window) for d in others), default=0.0)
    named = [d for d in (*others, *rivals) if d.severity is not Severity.INFO and d.rule != CAUSE_UNKNOWN]
    runner_up = max(named, key=lambda d: _won_s(d, window), default=None)
    # A user's own rule, and what costs no time and so was not measured by its removal, keep their own confidence.
    if primary.rule not in CALIBRATED or not (primary.time_lost_s or primary.rule == HEALTHY):
        return runner_up
    ordered[0] = replace(primary, confidence=calibrated(signs(primary, _won_s(primary, window), next_s, window)))
    return runner_up


def name_of(rule: object) -> str:
    """Return a rule's id; its class where it has none that can be shown."""
    name = getattr(rule, "id", None)
    return name if isinstance(name, str) and len(name) <= 100 else type(rule).__name__


def _ask(rule: Rule, window: Window) -> Diagnosis | Abstention | None:
    missing = tuple(name for name in rule.needs if read_signal(window, name) is None)
    if missing and any(all(read_signal(window, name) is not None for name in names) for names in alternatives(rule)):
        missing = ()
    return Abstention(rule.id, missing) if missing else sound_diagnosis(rule.check(window))


def _won_s(diagnosis: Diagnosis, window: Window) -> float:
    return won_s(diagnosis, training_s=window.ledger.training_s, wall_s=window.ledger.wall_s)


def _accord(outlook: Outlook, cures: set[str], ruled_out: set[str], diagnoses: Sequence[Diagnosis]) -> WorkerAdvice:
    """Recommend another number of workers where it is a cure or gains enough, and no diagnosis speaks against it."""
    advice = outlook.advice
    change = advice.recommended - advice.current
    kinds = {"more workers" if change > 0 else "fewer workers"}
    # Beside a loop that makes its batches itself the first one is no more of them, and while CPUs are idle each helps.
    if change > 0 and advice.current and outlook.are_cpus_short:
        kinds.add("more of its workers")
    first = diagnoses[0].advice[0].fix.do if diagnoses and diagnoses[0].advice else ""
    if change and not advice.recommended and first.startswith(KEEP_THEM):
        return _stays(advice, outlook, "workers that live on, as is advised, have to be there")
    if not change and first.startswith(ONE_THREAD):
        return replace(
            advice, reason="with one thread each, as is advised, another number may be better: measure again"
        )
    if change == 0 or kinds & cures or (outlook.gain_pct >= WORTH_PCT and not kinds & ruled_out):
        return advice
    if diagnoses and diagnoses[0].severity is not Severity.INFO:
        reason = f"another number of workers alone does not cure this: {diagnoses[0].title}"
    else:
        reason = "the run does not lose enough time to waiting for data to make a change worth it"
    return _stays(advice, outlook, reason)


def _stays(advice: WorkerAdvice, outlook: Outlook, reason: str) -> WorkerAdvice:
    return replace(
        advice,
        recommended=advice.current,
        predicted_step_time_s=None,
        predicted_gain_pct=0.0,
        limited_by="unknown" if advice.limited_by == "workers" else advice.limited_by,
        reason=reason,
        prefetch_factor=None if outlook.deeper is None else outlook.deeper.prefetch_factor,
        prefetch_gain_pct=None if outlook.deeper is None else outlook.deeper.gain_pct,
        saves_processes=None,
        saves_bytes=None,
        torch_threads=None,
    )


def diagnose(window: Window, rules: Sequence[Rule] = ALL_RULES) -> Verdict:
    """Ask today's rules about a window, for example one replayed from a recording."""
    return evaluate(rules, window)
