"""From Lightning's profiler actions to spans of the ledger.

Lightning names everything it does through ``trainer.profiler``. Names were read in Lightning 2.2 to 2.6; a name that is
not known stays in whatever span is open, so an unknown version loses detail, never time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..timing.clock import DataSpan, StepClock, ValidationWait
from ..timing.ledger import (
    BACKWARD,
    CALLBACKS,
    CHECKPOINT,
    DATA_WAIT,
    FORWARD,
    H2D,
    OPTIMIZER,
    VALIDATION,
    Ledger,
    Span,
    WorkSpan,
)

MAX_ACTIONS = 4096
"""Distinct action names remembered; a program that invents names without end must not grow our memory."""

_STRATEGY = {"training_step": FORWARD, "backward": BACKWARD, "batch_to_device": H2D}
# What runs inside one of these anyway (clipping, the transfer itself) needs no span of its own.
_INSIDE = ("configure_gradient_clipping", "transfer_batch_to_device", "on_after_batch_transfer")
_MODULE = {
    "optimizer_step": OPTIMIZER,
    "optimizer_zero_grad": OPTIMIZER,
    "lr_scheduler_step": OPTIMIZER,
    "on_before_batch_transfer": H2D,
    "backward": BACKWARD,
}
_BASES = ("Callback", "ModelHooks", "CheckpointHooks", "DataHooks", "LightningModule")
_PACKAGES = ("lightning.", "pytorch_lightning.")
_EVALUATION = ("on_validation_", "validation_step", "on_sanity_")


class Transparent:
    """The span of an action that has no bucket of its own."""

    __slots__ = ("action",)

    def __init__(self, action: str) -> None:
        self.action = action

    def __enter__(self) -> str:
        return self.action

    def __exit__(self, *exc: object) -> None:
        return None


class TransferSpan(Span):
    """The copy of a batch to the device, which belongs to validation when it happens there."""

    __slots__ = ()

    def __enter__(self) -> str:
        ledger = self.ledger
        ledger.enter(VALIDATION if VALIDATION in ledger.stack else H2D)
        if ledger.device is not None:
            ledger.device.mark(ledger.stack[-1], ledger.last)
        return self.action

    def __exit__(self, *exc: object) -> None:
        ledger = self.ledger
        ledger.exit(ledger.stack[-1] if ledger.stack[-1] in (VALIDATION, H2D) else H2D)
        if ledger.device is not None:
            ledger.device.mark(ledger.stack[-1], ledger.last)


class Spans(dict[str, Any]):
    """The span of each action; made when the action is first seen."""

    def __init__(self, clock: StepClock, owners: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._owners = owners or {}
        self.validation_wait = ValidationWait(clock)
        """The one span of a validation loader's batches, whatever Lightning calls the action."""

    def __missing__(self, action: str) -> Any:
        if action.endswith("].val_next"):
            span: Any = self.validation_wait
        else:
            span = Transparent(action) if self._does_nothing(action) else make_span(action, self._clock)
        if len(self) < MAX_ACTIONS:
            self[action] = span
        return span

    def _does_nothing(self, action: str) -> bool:
        """Whether the action is a hook that its owner inherits from Lightning, where it is empty."""
        owner, _, hook = action.rpartition(".")
        found = self._owners.get(owner)
        return found is not None and hook.startswith("on_") and _is_inherited(type(found), hook, vars(found))


def owners_of(callbacks: Iterable[Any], module: Any) -> dict[str, object]:
    """Return the objects behind the first part of their hooks' actions."""
    owners: dict[str, object] = {f"[Callback]{callback.state_key}": callback for callback in callbacks}
    owners[f"[LightningModule]{type(module).__name__}"] = module
    return owners


def _is_inherited(cls: type, hook: str, instance: Mapping[str, object]) -> bool:
    if hook in instance:
        return False
    definer = next((c for c in cls.__mro__ if hook in vars(c)), None)
    return definer is not None and definer.__name__ in _BASES and definer.__module__.startswith(_PACKAGES)


def make_span(action: str, clock: StepClock) -> Any:
    """Return the span for an action."""
    ledger = clock.ledger
    if action.endswith("].train_dataloader_next"):
        return DataSpan(clock, DATA_WAIT, action)
    if action == "save_checkpoint":
        return Span(ledger, CHECKPOINT, action)
    if action == "optimizer_step":
        return WorkSpan(ledger, OPTIMIZER, action)
    kind, _, rest = action.partition("]")
    owner, _, hook = rest.rpartition(".")
    if kind == "[Callback":
        return Span(ledger, ledger.slot(CALLBACKS, callback_name(owner)), action)
    if kind == "[Strategy":
        return _bucket_span(ledger, _STRATEGY.get(hook), action)
    if kind in ("[LightningModule", "[LightningDataModule"):
        if hook in _INSIDE:
            return Transparent(action)
        if hook in _MODULE:
            return _bucket_span(ledger, _MODULE[hook], action)
        if hook.startswith("on_") and not hook.startswith(_EVALUATION):
            return Span(ledger, ledger.slot(CALLBACKS, f"{owner}.{hook}"), action)
    return Transparent(action)


def _bucket_span(ledger: Ledger, bucket: int | None, action: str) -> Any:
    if bucket is None:
        return Transparent(action)
    return TransferSpan(ledger, H2D, action) if bucket == H2D else WorkSpan(ledger, bucket, action)


def callback_name(state_key: str) -> str:
    """Return a callback's class name from its state key, which may carry its settings."""
    return state_key.split("{", 1)[0].rpartition(".")[2] or state_key
