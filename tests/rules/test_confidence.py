"""How sure a verdict is, from what speaks for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records.diagnosis import Diagnosis, Severity
from stallmeter.rules.confidence import LEAST, MOST, Signs, calibrated, signs

from .waiting import waiting

FOUND = Diagnosis(
    rule="a", severity=Severity.WARNING, title="", summary="", time_lost_s=10.0, share_pct=10.0, confidence=0.8
)
shares = st.floats(0, 1)


def test_signs_of_a_verdict() -> None:
    made = waiting(cpus=4.0, others_cpus=1.0)
    found = signs(FOUND, won_s=10.0, next_won_s=4.0, window=made)
    assert found.lead == pytest.approx(0.6)
    assert found.size == pytest.approx(0.5)
    assert found.quiet == pytest.approx(0.75)
    assert 0 < found.watched <= 1
    assert signs(FOUND, 10.0, 0.0, made).lead == 1.0
    assert signs(FOUND, 10.0, 12.0, made).lead == signs(FOUND, 0.0, 1.0, made).lead == 0.0


def test_more_of_every_sign_makes_no_verdict_less_sure() -> None:
    weak = Signs(rule=0.5, lead=0.2, size=0.2, watched=0.2, quiet=0.2)
    for name in ("rule", "lead", "size", "watched", "quiet"):
        assert calibrated(replace(weak, **{name: 0.9})) >= calibrated(weak), name


@given(st.floats(-10, 10), shares, shares, shares, shares)
def test_it_is_a_probability(rule: float, lead: float, size: float, watched: float, quiet: float) -> None:
    assert LEAST <= calibrated(Signs(rule, lead, size, watched, quiet)) <= MOST


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_a_rule_that_is_quite_sure(confidence: float) -> None:
    """One of the user's own may say 0 or 1."""
    assert LEAST <= calibrated(signs(replace(FOUND, confidence=confidence), 1.0, 0.0, waiting())) <= MOST
