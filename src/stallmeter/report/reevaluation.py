"""What today's rules say of an old recording, against what was said when it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..records.diagnosis import Diagnosis, Verdict
from ..rules.job.words import of_ranks
from . import wording
from .overview import Overview
from .table import Table

Kind = Literal["new", "gone", "changed", "same"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's diagnosis then and now; at least one of them is there."""

    rule: str
    recorded: Diagnosis | None
    now: Diagnosis | None
    ranks: tuple[int, ...] = ()
    """Ranks of a job that it holds for; empty when it holds for all alike."""

    @property
    def kind(self) -> Kind:
        """What became of it; two that look alike when shown are the same."""
        if self.recorded is None:
            return "new"
        if self.now is None:
            return "gone"
        return "same" if _brief(self.recorded) == _brief(self.now) else "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reevaluation:
    """Two verdicts on the same recording."""

    recorded: Verdict | None
    """None when the run did not live to have one."""
    now: Verdict
    version: str
    """Version of stallmeter that recorded."""
    findings: tuple[Finding, ...]
    """By rule: today's diagnoses in their order, then those that are gone."""
    partial: bool
    """Whether only some rules were asked: then nothing is said of the primary cause and num_workers."""

    @property
    def changed(self) -> bool:
        """Whether anything is different from what was recorded."""
        return any(f.kind != "same" for f in self.findings) or _workers(self.recorded) != _workers(self.now)


def reevaluate(recorded: Verdict | None, now: Verdict, version: str, rules: Sequence[str] = ()) -> Reevaluation:
    """Compare two verdicts.

    Args:
        recorded: What was recorded.
        now: What today's rules say.
        version: Version of stallmeter that recorded.
        rules: Ids of the rules that were asked; all when empty.
    """
    then = {(d.rule, d.ranks): d for d in (recorded.diagnoses if recorded else ()) if not rules or d.rule in rules}
    today = {(d.rule, d.ranks): d for d in now.diagnoses}
    names = (*today, *(name for name in then if name not in today))
    return Reevaluation(
        recorded=recorded,
        now=now,
        version=version,
        findings=tuple(Finding(name[0], then.get(name), today.get(name), name[1]) for name in names),
        partial=bool(rules),
    )


def reevaluation_overview(reevaluation: Reevaluation) -> Overview:
    """Return what is shown of it: of what is all the same, that it is."""
    rows: list[tuple[str, ...]] = [
        (_named(f.rule, f.ranks), _brief(f.recorded), _brief(f.now), f.kind) for f in reevaluation.findings
    ]
    if not reevaluation.partial:
        rows.append(_row("primary cause", _primary(reevaluation.recorded), _primary(reevaluation.now)))
        rows.append(_row("num_workers", _workers(reevaluation.recorded), _workers(reevaluation.now)))
    table = Table(
        (f"Recorded by {wording.one_line(reevaluation.version, 30)}", "then", "now", ""), tuple(rows), numeric=False
    )
    is_same = reevaluation.recorded is not None and all(row[-1] == "same" for row in rows)
    return Overview(_headline(reevaluation), () if is_same else (table,))


def reevaluation_to_json(reevaluation: Reevaluation) -> dict[str, Any]:
    """Return it as plain objects, beside those of the report."""
    return {
        "recorded": None
        if reevaluation.recorded is None
        else {"version": reevaluation.version, "primary": _rule(reevaluation.recorded)},
        "changes": [
            {
                "rule": f.rule,
                **({"ranks": list(f.ranks)} if f.ranks else {}),
                "change": f.kind,
                "recorded": _short(f.recorded),
                "now": _short(f.now),
            }
            for f in reevaluation.findings
        ],
    }


def _headline(reevaluation: Reevaluation) -> str:
    if reevaluation.recorded is None:
        return "The run recorded no verdict."
    if not reevaluation.changed:
        return "Today's rules say what was recorded."
    count = sum(f.kind != "same" for f in reevaluation.findings)
    if not count:
        return "Today's rules find the same, and advise another number of workers."
    return f"Today's rules say something else: {count} of {len(reevaluation.findings)} findings changed."


def _row(name: str, then: str, now: str) -> tuple[str, str, str, str]:
    return name, then, now, "same" if then == now else "changed"


def _brief(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return wording.ABSENT
    lost = f", {wording.seconds(diagnosis.time_lost_s)} lost" if diagnosis.time_lost_s > 0 else ""
    return f"{diagnosis.severity.value}{lost}"


def _rule(verdict: Verdict) -> str | None:
    return None if verdict.primary is None else verdict.primary.rule


def _primary(verdict: Verdict | None) -> str:
    if verdict is None:
        return wording.ABSENT
    primary = verdict.primary
    said = "none" if primary is None else _named(primary.rule, primary.ranks)
    return f"{'probably ' if verdict.is_probable else ''}{said}"


def _named(rule: str, ranks: tuple[int, ...]) -> str:
    return f"{rule}, {of_ranks(ranks)}" if ranks else rule


def _workers(verdict: Verdict | None) -> str:
    advice = None if verdict is None else verdict.num_workers
    if advice is None:
        return wording.ABSENT
    if advice.recommended == advice.current:
        return f"keep {advice.current}"
    return f"{advice.current}, use {advice.recommended}"


def _short(diagnosis: Diagnosis | None) -> dict[str, Any] | None:
    if diagnosis is None:
        return None
    return {
        "severity": diagnosis.severity.value,
        "time_lost_s": diagnosis.time_lost_s,
        "share_pct": diagnosis.share_pct,
        "confidence": diagnosis.confidence,
    }
