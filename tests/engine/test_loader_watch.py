"""What is noted of a training loader's batches."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.engine.guard import Guard
from stallmeter.engine.loader_watch import LoaderWatch
from stallmeter.records import BatchContent
from stallmeter.timing.clock import StepClock

np = pytest.importorskip("numpy")

IDS = np.array([[7] * length + [0] * (20 - length) for length in (20, 6, 3, 11)]) * np.arange(1, 21)


def noted(clock: StepClock, batch: object) -> BatchContent:
    """What is told of one batch."""
    told: list[Any] = []
    LoaderWatch(clock, Guard(told.append), told.append).note_content(batch)
    (found,) = told
    assert isinstance(found, BatchContent)
    return found


def test_padding_by_a_mask(step_clock: StepClock) -> None:
    found = noted(step_clock, {"input_ids": IDS, "attention_mask": np.pad(IDS != 0, ((0, 0), (0, 5)))})
    assert (found.positions, found.used_positions, found.filled, found.filled_by) == (25, 20, 0.5, "mask")


def test_padding_by_what_rows_end_in(step_clock: StepClock) -> None:
    found = noted(step_clock, [IDS, np.arange(4)])
    assert (found.positions, found.used_positions, found.filled, found.filled_by) == (20, 20, 0.5, "ids")


def test_no_padding(step_clock: StepClock) -> None:
    found = noted(step_clock, [np.ones((4, 20)), np.arange(4)])
    assert (found.positions, found.used_positions, found.filled, found.filled_by) == (None, None, None, "")
