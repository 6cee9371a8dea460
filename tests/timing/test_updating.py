"""The span of an optimizer's step."""

from __future__ import annotations

from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import OPTIMIZER, Span
from stallmeter.timing.updating import UpdateSpan

from ..conftest import FakeTime


def test_an_optimizer_around_another_one_makes_one_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    """As torch's ZeroRedundancyOptimizer does: what follows the step is the loop's own time again."""
    ledger = step_clock.ledger
    span, base = UpdateSpan(step_clock), list(ledger.stack)
    for step in range(3):
        step_clock.index = step
        assert span.begin()
        assert not span.begin()
        fake_time.ns += 5
        assert not span.end()
        assert ledger.stack[-1] == OPTIMIZER
        assert span.end()
        fake_time.ns += 100
        assert ledger.stack == base
    ledger.peek()
    assert ledger.acc[OPTIMIZER] == 15


def test_an_optimizers_step_that_raised_ends_with_the_next_one(step_clock: StepClock, fake_time: FakeTime) -> None:
    ledger = step_clock.ledger
    span, base = UpdateSpan(step_clock), list(ledger.stack)
    for step in range(2):
        step_clock.index = step
        assert span.begin()
        assert ledger.stack == [*base, OPTIMIZER]
        assert not span.begin()  # and neither is told of as ended
    step_clock.index = 2
    fake_time.ns += 3
    assert span.begin()
    assert ledger.stack == [*base, OPTIMIZER]
    assert ledger.acc[OPTIMIZER] == 3
    assert span.end()
    assert ledger.stack == base


def test_what_a_closure_computes_is_not_the_optimizers(step_clock: StepClock, fake_time: FakeTime) -> None:
    """Nothing of such a step is booked, and one within it is part of it; the next one is timed again."""
    ledger = step_clock.ledger
    span, base = UpdateSpan(step_clock), list(ledger.stack)
    for step in range(3):
        step_clock.index = step
        assert span.begin(timed=False)
        assert not span.begin()
        fake_time.ns += 50
        assert not span.end()
        assert ledger.stack == base
        assert span.end()
    step_clock.index = 3
    assert span.begin()
    fake_time.ns += 5
    assert span.end()
    ledger.peek()
    assert ledger.acc[OPTIMIZER] == 5


def test_a_closure_that_raised_ends_with_the_next_step(step_clock: StepClock, fake_time: FakeTime) -> None:
    ledger = step_clock.ledger
    span, base = UpdateSpan(step_clock), list(ledger.stack)
    step_clock.index = 0
    assert span.begin(timed=False)
    step_clock.index = 1
    assert span.begin()
    assert ledger.stack == [*base, OPTIMIZER]
    fake_time.ns += 5
    assert span.end()
    assert ledger.stack == base
    ledger.peek()
    assert ledger.acc[OPTIMIZER] == 5


def test_the_programs_own_span_around_its_optimizer_is_left_alone(step_clock: StepClock, fake_time: FakeTime) -> None:
    ledger = step_clock.ledger
    span, own, base = UpdateSpan(step_clock), Span(ledger, OPTIMIZER), list(ledger.stack)
    for step in range(2):
        step_clock.index = step
        with own:
            for _ in range(2):  # as two networks that are trained in turn
                assert span.begin()
                fake_time.ns += 5
                assert span.end()
                assert ledger.stack == [*base, OPTIMIZER]
            fake_time.ns += 1
        assert ledger.stack == base
    ledger.peek()
    assert ledger.acc[OPTIMIZER] == 22
