"""What is noted of a training loader's batches."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.engine.guard import Guard
from stallmeter.engine.loader_watch import LoaderWatch
from stallmeter.records import BatchContent, ScoredPositions
from stallmeter.timing.clock import StepClock

np = pytest.importorskip("numpy")

IDS = np.array([[7] * length + [0] * (20 - length) for length in (20, 6, 3, 11)]) * np.arange(1, 21)


def noted(clock: StepClock, batch: object) -> BatchContent:
    """What is told of one batch."""
    told: list[Any] = []
    LoaderWatch(clock, Guard(told.append), told.append).note_content(batch)
    (found,) = (one for one in told if isinstance(one, BatchContent))
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


def test_positions_without_a_label(step_clock: StepClock) -> None:
    """The step that follows is looked at, and what was seen is told with the next batch."""
    torch = pytest.importorskip("torch")
    told: list[Any] = []
    watch = LoaderWatch(step_clock, Guard(told.append), told.append)
    ids = torch.arange(64).reshape(4, 16)
    batch = {"input_ids": ids, "labels": torch.where(ids % 4 == 0, ids, -100)}
    layer = torch.nn.Linear(16, 1500)
    watch.note_content(batch)
    layer(torch.ones(4, 16, 16))
    assert watch.content_due_ns == 0
    watch.note_content(batch)
    assert watch.content_due_ns > 0
    (scored,) = (one for one in told if isinstance(one, ScoredPositions))
    assert (scored.positions, scored.labelled, scored.scored, scored.classes, scored.share) == (64, 16, 64, 1500, 1.0)


def test_labels_of_a_batch_that_was_used(step_clock: StepClock) -> None:
    torch = pytest.importorskip("torch")
    told: list[Any] = []
    watch = LoaderWatch(step_clock, Guard(told.append), told.append)
    layer = torch.nn.Linear(16, 1500)
    for labelled in (8, 24):
        layer(torch.ones(4, 16, 16))
        labels = torch.where(torch.arange(64) < labelled, 1, -100)
        watch.note_content([labels.reshape(4, 16)], is_used=True)
    (scored,) = (one for one in told if isinstance(one, ScoredPositions))
    assert scored.labelled == 24


def test_where_no_label_is_left_out_it_is_told_once(step_clock: StepClock) -> None:
    torch = pytest.importorskip("torch")
    told: list[Any] = []
    watch = LoaderWatch(step_clock, Guard(told.append), told.append)
    watch.note_content(["a text"])
    assert not any(isinstance(one, ScoredPositions) for one in told)
    for _ in range(3):
        watch.note_content([torch.ones(4, 16), torch.arange(64)])
    (none,) = (one for one in told if isinstance(one, ScoredPositions))
    assert (none.positions, none.in_vain) == (0, 0.0)


def test_a_look_at_a_step_that_sees_no_end(step_clock: StepClock) -> None:
    torch = pytest.importorskip("torch")
    hooks = torch.nn.modules.module._global_forward_hooks
    before = dict(hooks)
    watch = LoaderWatch(step_clock, Guard(lambda _: None), lambda _: None)
    watch.note_content([torch.full((4, 16), -100)])
    assert dict(hooks) != before
    watch.close()
    assert dict(hooks) == before
