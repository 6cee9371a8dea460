"""Words and numbers that all forms of a report share."""

from __future__ import annotations

from stallmeter.report import wording


def test_a_share_is_a_plain_number() -> None:
    """Its unit is 1, which nobody reads as one."""
    assert wording.quantity(0.951, "1") == "0.951"
    assert wording.quantity(12.5, "%") == "12.5 %"
    assert wording.quantity(None, "1") == wording.ABSENT
