"""Which causes are worth a closer look."""

from __future__ import annotations

from stallmeter.engine.asked import rules_of
from stallmeter.records.diagnosis import Diagnosis, Severity, Verdict


def _verdict(*rules: str, severity: Severity = Severity.WARNING) -> Verdict:
    made = [
        Diagnosis(rule=r, severity=severity, title="", summary="", time_lost_s=1.0, share_pct=9.0, confidence=0.9)
        for r in rules
    ]
    return Verdict(primary=made[0] if made else None, diagnoses=tuple(made))


def test_the_primary_cause_is():
    assert rules_of(_verdict("prep-stall", "fetch-stall")) == ("prep-stall",)
    assert rules_of(_verdict()) == ("",)


def test_behind_what_comes_once_it_is_who_makes_batches():
    assert rules_of(_verdict("worker-startup", "slow-callback", "prep-stall")) == ("worker-startup", "prep-stall")
    assert rules_of(_verdict("worker-startup", "prep-stall", severity=Severity.INFO)) == ("worker-startup",)
    assert rules_of(_verdict("cpu-saturated", "prep-stall")) == ("cpu-saturated", "prep-stall")
    assert rules_of(_verdict("slow-callback", "prep-stall")) == ("slow-callback",)
