"""What a recorded step holds besides its data and the training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.probing.recorded import RecordedRun
from stallmeter.probing.result import Rate
from stallmeter.records import StepRecord


def step(index: int, **parts: Any) -> StepRecord:
    given = {"total_s": 0.05, "data_wait_s": 0.01, "samples": 8, **parts}
    return StepRecord(index=index, epoch=0, optimizer_step=None, tracker_step=index, time_s=float(index), **given)


def run(*steps: StepRecord, exposed: float | None = None) -> RecordedRun:
    window: Any = SimpleNamespace(
        steps=SimpleNamespace(steady=steps), device=SimpleNamespace(exposed_wait_share=exposed)
    )
    return RecordedRun(window, "a folder")


def bare(step_time_s: float, samples: float | None = 8) -> Rate:
    return Rate(step_time_s=step_time_s, batch_samples=samples, steps=10)


def test_rate_leaves_validation_checkpoints_and_first_steps_out() -> None:
    steps = (step(0, epoch_start=True, total_s=9.0), step(1, total_s=0.55, validation_s=0.3, checkpoint_s=0.2), step(2))
    rate = run(*steps).rate
    assert rate is not None
    assert rate.step_time_s == pytest.approx(0.05)
    assert (rate.batch_samples, rate.steps) == (8, 2)


def test_besides() -> None:
    """The bare training takes 10 ms of the 40 that the recorded step does not wait; the rest is the loop's own."""
    recorded = run(step(1), step(2))
    assert recorded.wait_s == pytest.approx(0.01)
    assert recorded.besides_s(bare(0.01)) == pytest.approx(0.03)
    assert recorded.besides_s(bare(0.039)) == 0.0
    assert recorded.besides_s(bare(0.2)) == 0.0


def test_wait_that_the_device_hid_is_none() -> None:
    recorded = run(step(1), step(2), exposed=0.2)
    assert recorded.wait_s == pytest.approx(0.002)
    assert recorded.besides_s(bare(0.01)) == pytest.approx(0.038)


def test_batches_of_another_size() -> None:
    recorded = run(step(1), step(2))
    assert recorded.same_batches(bare(0.01, 8.1))
    assert recorded.same_batches(bare(0.01, None))
    assert not recorded.same_batches(bare(0.01, 16))


def test_no_steps() -> None:
    recorded = run()
    assert recorded.rate is None
    assert recorded.wait_s is None
    assert recorded.besides_s(bare(0.01)) == 0.0
