"""Words and numbers that all forms of a report share."""

from __future__ import annotations

from dataclasses import replace

from stallmeter.records import OWN_NAME
from stallmeter.records.diagnosis import Diagnosis, Location, Severity
from stallmeter.report import wording


def test_a_share_is_a_plain_number() -> None:
    """Its unit is 1, which nobody reads as one."""
    assert wording.quantity(0.951, "1") == "0.951"
    assert wording.quantity(12.5, "%") == "12.5 %"
    assert wording.quantity(None, "1") == wording.ABSENT


def test_the_place_of_a_function_that_is_the_cause_has_no_share_of_it() -> None:
    """Its seconds are its own: a share of the steps beside them would be read as a share of these."""
    found = Diagnosis(
        rule="slow-function",
        severity=Severity.WARNING,
        title="update holds up the steps",
        summary="",
        time_lost_s=9.2,
        share_pct=50.9,
        confidence=0.9,
        location=Location(file="gan.py", line=84, function="update", share_pct=52.0, call="copy.deepcopy"),
    )
    assert wording.placed(found) == "update holds up the steps: gan.py:84 (copy.deepcopy)"
    assert wording.place(replace(found, title="step takes longer than the model")) == (
        "in update, gan.py:84 (copy.deepcopy)"
    )
    assert wording.place(replace(found, rule="slow-callback")).startswith("52 % of it in update, ")


def test_our_own_time_is_told_by_our_name() -> None:
    """A loop may have no callbacks at all, and nobody there knows a StallMonitor."""
    assert wording.part_label(OWN_NAME) == "stallmeter itself"
    assert wording.part_label("EarlyStopping") == "EarlyStopping"
