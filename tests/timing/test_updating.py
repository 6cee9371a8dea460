"""The span of an optimizer's step."""

from __future__ import annotations

from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import OPTIMIZER
from stallmeter.timing.updating import UpdateSpan

from ..conftest import FakeTime


def test_an_optimizer_around_another_one_makes_one_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    """As torch's ZeroRedundancyOptimizer does: what follows the step is the loop's own time again."""
    ledger = step_clock.ledger
    span, base = UpdateSpan(ledger), list(ledger.stack)
    for step in range(3):
        assert not span.is_within(step)
        span.__enter__()
        assert span.is_within(step)
        fake_time.ns += 5
        assert span.ends_within()
        assert ledger.stack[-1] == OPTIMIZER
        assert not span.ends_within()
        span.__exit__()
        fake_time.ns += 100
        assert ledger.stack == base
    ledger.peek()
    assert ledger.acc[OPTIMIZER] == 15


def test_an_optimizers_step_that_raised_ends_with_the_next_one(step_clock: StepClock, fake_time: FakeTime) -> None:
    ledger = step_clock.ledger
    span, base = UpdateSpan(ledger), list(ledger.stack)
    for step in range(2):
        assert not span.is_within(step)
        assert ledger.stack == base
        span.__enter__()
        assert span.is_within(step)  # and neither is told of as ended
    assert not span.is_within(2)
    assert ledger.stack == base
    assert not span.ends_within()
