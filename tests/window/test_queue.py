"""What the loop waited for at the prefetch queue."""

from __future__ import annotations

import pytest

from stallmeter.window.ledger import LedgerSignals
from stallmeter.window.loader import LoaderSignals
from stallmeter.window.queue import QueueSignals
from stallmeter.window.steps import StepSignals

from ..rules.windows import step, window


def test_shares_of_the_wait():
    """Waits for ready batches and for late ones, weighed by their seconds."""
    waits = [{"ready": 1, "head_ready": True, "data_wait_s": 0.01}] * 10
    waits += [{"ready": 2, "head_ready": False, "data_wait_s": 0.03}] * 10
    made = window(*(step(3 + i, **known) for i, known in enumerate(waits)))
    assert made.queue.ready_wait_share == pytest.approx(0.25)
    assert made.queue.blocked_wait_share == pytest.approx(0.75)
    assert made.queue.handover_s == pytest.approx(0.01)


def test_mostly_unknown_waits():
    """A share is not told when less than half of the wait is known."""
    made = window(*(step(3 + i, head_ready=True if i < 4 else None) for i in range(10)))
    assert made.queue.ready_wait_share is None


def test_a_part_alone():
    """Of steps that do not tell nothing is said but how the waits are spread."""
    steps = StepSignals(LoaderSignals(), LedgerSignals())
    made = QueueSignals(steps)
    assert (made.ready_wait_share, made.blocked_wait_share, made.handover_s, made.top_wait_share) == (None,) * 4
    for i in range(3, 23):
        steps.append(step(i, data_wait_s=0.5 if i in (3, 4) else 0.01))
    assert (made.ready_wait_share, made.blocked_wait_share, made.handover_s) == (None,) * 3
    assert made.top_wait_share == pytest.approx(1.0 / 1.18)
