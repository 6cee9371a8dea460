"""transfer-bound: copying batches to the device takes a large part of the step."""

from __future__ import annotations

import pytest

from stallmeter.records import LoaderInfo
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.transfer_bound import TransferBound
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, missing, run, silent


def copying(h2d_s: float, pinned: bool | None = True) -> Window:
    """A run whose steps of 0.1 s on the device copy for so long."""
    loader = LoaderInfo(time_s=START_S, kind="DataLoader", num_workers=2, pin_memory=pinned)
    return run(loader, *device_steps(h2d_s=h2d_s))


def test_fires():
    """The share is of the device's time, the time lost of the training's."""
    found = fires(TransferBound(), copying(0.025))
    assert found.summary == "25 % of the steps' device time went into copying batches from the host."
    assert found.time_lost_s == pytest.approx(0.25 * 99.0)
    assert found.severity is Severity.CRITICAL
    assert fires(TransferBound(), copying(0.015)).severity is Severity.WARNING


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(TransferBound(), copying(0.01))
    assert silent(TransferBound(), copying(0.0099))


def test_primary():
    """It is the one cause where nothing else costs more."""
    verdict = evaluate(ALL_RULES, copying(0.025))
    assert verdict.primary is not None
    assert verdict.primary.rule == "transfer-bound"


def test_abstains():
    """By the host's clock a copy cannot be told from the work that it waits for."""
    assert missing(TransferBound(), run()) == ("device.h2d_share_pct",)
    unread = device_steps(exposed_wait_s=None, total_s=None, h2d_s=None)
    assert missing(TransferBound(), run(*unread)) == ("device.h2d_share_pct",)
    assert missing(TransferBound(), run(*device_steps(h2d_s=None))) == ("device.h2d_share_pct",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(TransferBound(warn_pct=30.0), copying(0.025))
