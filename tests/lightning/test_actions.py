"""Names that Lightning gives to what it does find their bucket, and hooks that do nothing cost nothing."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.demos.boring_classes import BoringModel

from stallmeter.lightning.actions import MAX_ACTIONS, Spans, Transparent, callback_name, owners_of
from stallmeter.timing.clock import DataSpan, StepClock
from stallmeter.timing.ledger import CALLBACKS, CHECKPOINT, FORWARD, H2D, OPTIMIZER, VALIDATION, Ledger, Span

from ..conftest import FakeTime


@pytest.mark.parametrize(
    ("action", "bucket", "name"),
    [
        ("[Strategy]DDPStrategy.training_step", FORWARD, None),
        ("[Strategy]SingleDeviceStrategy.batch_to_device", H2D, None),
        ("[LightningModule]Net.optimizer_step", OPTIMIZER, None),
        ("[LightningModule]Net.optimizer_zero_grad", OPTIMIZER, None),
        ("[LightningModule]Net.on_train_batch_end", CALLBACKS, "Net.on_train_batch_end"),
        ("[LightningDataModule]Data.on_before_batch_transfer", H2D, None),
        ("[Callback]ModelCheckpoint{'monitor': 'a.b'}.on_train_end", CALLBACKS, "ModelCheckpoint"),
        ("save_checkpoint", CHECKPOINT, None),
        ("optimizer_step", OPTIMIZER, None),
    ],
)
def test_known_actions(step_clock: StepClock, action: str, bucket: int, name: str | None) -> None:
    span = Spans(step_clock)[action]
    assert isinstance(span, Span)
    assert step_clock.ledger.slots[span.slot] == (bucket, name)


@pytest.mark.parametrize(
    "action",
    [
        "run_training_epoch",
        "my own action",
        "",
        "[",
        "[Strategy]X.on_train_start",
        "[LightningModule]M.on_validation_end",
    ],
)
def test_unknown_actions_stay_in_what_is_open(step_clock: StepClock, fake_time: FakeTime, action: str) -> None:
    ledger = step_clock.ledger
    with Span(ledger, FORWARD), Spans(step_clock)[action] as name:
        assert name == action
        fake_time.sleep(1)
    ledger.settle()
    assert ledger.acc[FORWARD] == 1e9


def test_the_fetch_opens_a_step(step_clock: StepClock) -> None:
    assert isinstance(Spans(step_clock)["[_TrainingEpochLoop].train_dataloader_next"], DataSpan)


def test_a_copy_inside_validation_is_validation(ledger: Ledger, step_clock: StepClock, fake_time: FakeTime) -> None:
    span = Spans(step_clock)["[Strategy]X.batch_to_device"]
    with Span(ledger, VALIDATION), span:
        fake_time.sleep(1)
    with span:
        fake_time.sleep(2)
    assert (ledger.acc[VALIDATION], ledger.acc[H2D]) == (1e9, 2e9)
    assert len(ledger.stack) == 1


class Overrides(pl.Callback):
    def on_train_batch_end(self, *args: Any) -> None:
        pass


class Inherits(Overrides):
    pass


def test_hooks_that_do_nothing_are_transparent(step_clock: StepClock) -> None:
    callbacks = [Overrides(), Inherits(), pl.Callback()]
    model = BoringModel()
    model.on_before_backward = lambda loss: None  # type: ignore[method-assign]
    spans = Spans(step_clock, owners_of(callbacks, model))
    real = {
        action
        for owner in ("[Callback]Overrides", "[Callback]Inherits", "[Callback]Callback", "[LightningModule]BoringModel")
        for hook in ("on_train_batch_end", "on_train_batch_start", "on_before_backward", "on_train_epoch_end")
        if not isinstance(spans[action := f"{owner}.{hook}"], Transparent)
    }
    assert real == {
        "[Callback]Overrides.on_train_batch_end",
        "[Callback]Inherits.on_train_batch_end",
        "[LightningModule]BoringModel.on_before_backward",
    }


def test_inventing_names_without_end_is_bounded(step_clock: StepClock) -> None:
    spans = Spans(step_clock)
    for i in range(MAX_ACTIONS + 100):
        with spans[f"action {i}"]:
            pass
    assert len(spans) == MAX_ACTIONS


def test_callback_names() -> None:
    assert callback_name("EarlyStopping{'monitor': 'loss'}") == "EarlyStopping"
    assert callback_name("a.b.<locals>.Mine") == "Mine"
    assert callback_name("{'odd': 1}") == "{'odd': 1}"
