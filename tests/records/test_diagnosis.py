"""Advice as text and as three short lines."""

from __future__ import annotations

import pytest

from stallmeter.records.diagnosis import Advice, Fix


@pytest.mark.parametrize(
    ("fix", "text"),
    [
        (Fix("Set x=1."), "Set x=1."),
        (Fix("Set x=1.", "Faster.", "Not on y."), "Set x=1.\nExpect: Faster.\nLimit: Not on y."),
        (Fix("Set x=1.", limit="Not on y."), "Set x=1.\nLimit: Not on y."),
    ],
)
def test_lines_and_back(fix: Fix, text: str) -> None:
    """The text of a recording holds all lines, and they are read back from it."""
    assert Advice.of(fix.do, expect=fix.expect, limit=fix.limit).text == text
    assert Advice(text).fix == fix


@pytest.mark.parametrize("text", ["", "Set num_workers=4: 42 ms a step.", "two\nlines", "expect: small letters"])
def test_a_plain_text_is_something_to_do(text: str) -> None:
    """Recordings of earlier versions and rules of users hold plain sentences."""
    assert Advice(text).fix == Fix(text)
