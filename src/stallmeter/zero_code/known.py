"""What is known of the loaders of a program: whether somebody trains on them."""

from __future__ import annotations

import weakref
from enum import Enum, auto
from typing import Any

MOST = 64
"""Loaders that are remembered; those that go on being made anew for each epoch are forgotten, the oldest first."""


class Stage(Enum):
    """What a loader is iterated for."""

    UNKNOWN = auto()
    TRAINING = auto()
    """Its iterations go with steps of an optimizer."""
    VALIDATION = auto()
    """One was gone through without such a step."""
    MIXED = auto()
    """Sometimes this, sometimes that: only the iteration itself can tell."""


class Known:
    """Remembers loaders, and by its dataset one that is made anew for each epoch. Holds none of them back."""

    def __init__(self) -> None:
        self._loaders: list[tuple[weakref.ref[Any], weakref.ref[Any] | None, Stage]] = []

    def stage(self, loader: object) -> Stage:
        """Return what a loader is iterated for, as far as that is known."""
        for known, _, stage in self._loaders:
            if known() is loader:
                return stage
        dataset = getattr(loader, "dataset", None)
        if dataset is None:
            return Stage.UNKNOWN
        same = {stage for _, of, stage in self._loaders if of is not None and of() is dataset}
        # Only this is believed: a first look at all samples, to normalise them say, is no sign of what is to come.
        return Stage.TRAINING if same == {Stage.TRAINING} else Stage.UNKNOWN

    def expected(self, loader: object, *, grad: bool, in_its_midst: bool) -> Stage:
        """Return what an iteration of a loader is for that begins beside a training, as far as that is known.

        Args:
            loader: The loader.
            grad: Whether gradients are recorded.
            in_its_midst: Whether the training is on another iteration of the same loader: this one looks at a batch.
        """
        stage = self.stage(loader)
        if stage is Stage.TRAINING and in_its_midst:
            return Stage.UNKNOWN
        if stage in (Stage.TRAINING, Stage.MIXED):
            return stage if grad or stage is Stage.MIXED else Stage.VALIDATION
        return Stage.UNKNOWN if grad and stage is Stage.UNKNOWN else Stage.VALIDATION

    def remember(self, loader: object, stage: Stage) -> None:
        """Note what a loader was iterated for."""
        reference = _weak(loader)
        if reference is None:
            return
        others = [entry for entry in self._loaders if entry[0]() not in (None, loader)]
        self._loaders = [*others[-MOST:], (reference, _weak(getattr(loader, "dataset", None)), stage)]

    def learn_validation(self, loader: object) -> None:
        """Note that an iteration of a loader went through without a step of an optimizer."""
        if any(known() is loader for known, _, _ in self._loaders):
            if self.stage(loader) is Stage.TRAINING:
                self.remember(loader, Stage.MIXED)
        else:
            self.remember(loader, Stage.VALIDATION)


def _weak(thing: object) -> weakref.ref[Any] | None:
    try:
        return None if thing is None else weakref.ref(thing)
    except TypeError:
        return None
