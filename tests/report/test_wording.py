"""Words and numbers that all forms of a report share."""

from __future__ import annotations

from stallmeter.records import OWN_NAME
from stallmeter.report import wording


def test_a_share_is_a_plain_number() -> None:
    """Its unit is 1, which nobody reads as one."""
    assert wording.quantity(0.951, "1") == "0.951"
    assert wording.quantity(12.5, "%") == "12.5 %"
    assert wording.quantity(None, "1") == wording.ABSENT


def test_our_own_time_is_told_by_our_name() -> None:
    """A loop may have no callbacks at all, and nobody there knows a StallMonitor."""
    assert wording.part_label(OWN_NAME) == "stallmeter itself"
    assert wording.part_label("EarlyStopping") == "EarlyStopping"
