"""The first waits of epochs against the steady one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.window.startup import FirstWaits


def test_settled_waits_are_kept_as_their_excess():
    """What was compared once is not compared again; what is open is compared with what is known now."""
    waits = FirstWaits()
    waits.add(0.5)
    waits.add(0.1)
    assert (len(waits), waits.excess_s(None)) == (2, 0.0)
    waits.settle(None)
    assert len(waits) == 2
    waits.settle(0.2)
    assert (len(waits), waits.excess_s(None), waits.excess_s(100.0)) == (0, pytest.approx(0.3), pytest.approx(0.3))
    waits.add(1.0)
    assert waits.excess_s(0.4) == pytest.approx(0.9)
    assert waits.excess_s(0.9) == pytest.approx(0.4)


@given(st.lists(st.floats(0, 100), max_size=200), st.floats(0, 100))
def test_never_negative_and_bounded(found, steady_s):
    """Whatever the waits are."""
    waits = FirstWaits()
    for wait_s in found:
        waits.add(wait_s)
        assert waits.excess_s(steady_s) >= 0.0
        assert len(waits) <= 64
