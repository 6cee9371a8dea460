"""Steps of several batches, and methods that evaluations call, too; the package itself is not needed for that."""

from __future__ import annotations

import pytest

from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import FORWARD, VALIDATION, Span
from stallmeter.transformers.spans import Batches, Fetch, InTraining

from ..conftest import FakeTime


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([(4, True), (3, True), (2, True)], (2, True)),
        ([(4, True), (0, False), (5, True)], (0, False)),
        ([(1, False), (0, False), (5, True)], (1, False)),
        ([(4, True), (3, None), (2, True)], (3, None)),
    ],
)
def test_the_first_batch_that_was_late_tells_of_the_queue(
    found: list[tuple[int, bool | None]], told: tuple[int, bool | None], step_clock: StepClock
) -> None:
    left = iter(found * 2)
    step_clock.before_fetch = lambda: next(left)
    step_clock.after_fetch = lambda: None
    fetch = Fetch(step_clock)
    step_clock.new_epoch(0)
    for _ in range(2):
        for _ in found:
            with fetch:
                pass
        step_clock.worked = True
    step_clock.before_fetch = step_clock.after_fetch = None
    step_clock.pause()
    assert [(step.ready, step.head_ready) for step in step_clock.drain().steps] == [told, told]


def test_the_waits_of_a_step_are_added_up(step_clock: StepClock, fake_time: FakeTime) -> None:
    """Asking for one more than there are opens no step, and nobody is asked about the queue then."""
    answered = []
    step_clock.after_fetch = lambda: answered.append(1)
    step_clock.before_fetch = lambda: (None, None)
    fetch = Fetch(step_clock)

    def costly():
        for i in range(4):
            fake_time.sleep(0.5)
            yield i

    step_clock.new_epoch(0)
    batches = Batches(costly(), fetch)
    for _ in range(2):
        assert [next(batches), next(batches)]
        fake_time.sleep(1.0)
        step_clock.worked = True
    with pytest.raises(StopIteration):
        next(batches)
    step_clock.pause()
    steps = step_clock.drain().steps
    assert [(step.data_wait_s, step.total_s) for step in steps] == [(1.0, 2.0), (1.0, 2.0)]
    assert len(answered) == 4


def test_in_an_evaluation_it_is_none(step_clock: StepClock, fake_time: FakeTime) -> None:
    ledger = step_clock.ledger
    forward = InTraining(ledger, FORWARD)
    with forward:
        fake_time.sleep(1.0)
    with Span(ledger, VALIDATION), forward:
        fake_time.sleep(2.0)
    assert (ledger.acc[FORWARD], ledger.acc[VALIDATION]) == (1e9, 2e9)
    assert len(ledger.stack) == 1
