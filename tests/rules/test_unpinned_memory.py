"""unpinned-memory: batches are copied to the device from memory that is not pinned."""

from __future__ import annotations

import pytest

from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.unpinned_memory import UnpinnedMemory

from .test_transfer_bound import copying
from .windows import device_steps, fires, missing, run, silent


def test_fires():
    """Half of the copy is what pinning is estimated to save."""
    found = fires(UnpinnedMemory(), copying(0.02, pinned=False))
    assert found.time_lost_s == pytest.approx(0.9 * 0.2 * 99.0)
    assert "pin_memory=True" in found.advice[0].text


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(UnpinnedMemory(), copying(0.005, pinned=False))
    assert silent(UnpinnedMemory(), copying(0.0049, pinned=False))


def test_pinned():
    """With pinned memory it has nothing to say."""
    assert silent(UnpinnedMemory(), copying(0.02, pinned=True))


def test_never_beside_transfer_bound():
    """Both explain the copy; the one with the direct cure is told."""
    rules = [d.rule for d in evaluate(ALL_RULES, copying(0.2, pinned=False)).diagnoses]
    assert "unpinned-memory" in rules
    assert "transfer-bound" not in rules


def test_abstains():
    """Without device time, or without a loader that says, nothing is judged."""
    assert missing(UnpinnedMemory(), copying(0.02, pinned=None)) == ("loader.pin_memory",)
    assert missing(UnpinnedMemory(), run()) == ("device.h2d_share_pct", "loader.pin_memory")
    assert missing(UnpinnedMemory(), run(*device_steps())) == ("loader.pin_memory",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(UnpinnedMemory(warn_pct=30.0), copying(0.02, pinned=False))
