"""A recorded run that a probe compares with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..records import StepRecord
from ..window import Window
from ..workers import NOISE
from .result import Rate

SAME_BATCH = 0.1
"""Mean batches that differ by no more may differ by the last one of an epoch alone."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """How fast a real run was, and what held it up.

    A recorded step holds callbacks, loggers and the rest of the loop, a probe's step none of them: the two are not
    compared as they are.
    """

    window: Window
    folder: str

    @property
    def rate(self) -> Rate | None:
        """How fast the steady steps were, validation and checkpoints left out."""
        steps = self._steps
        times = [step.step_time_s - (step.checkpoint_s or 0.0) for step in steps]
        sizes = [step.samples for step in steps if step.samples is not None]
        mean_s = math.fsum(times) / len(times) if times else 0.0
        if mean_s <= 0:
            return None
        return Rate(
            step_time_s=mean_s,
            batch_samples=sum(sizes) / len(sizes) if len(sizes) == len(steps) else None,
            steps=len(steps),
        )

    @property
    def wait_s(self) -> float | None:
        """What a step waited for data; what its device hid is left out where that was measured."""
        steps = self._steps
        if not steps:
            return None
        share = self.window.device.exposed_wait_share
        return math.fsum(step.data_wait_s for step in steps) / len(steps) * (1.0 if share is None else share)

    def same_batches(self, measured: Rate) -> bool:
        """Whether its batches are as large as those of a measurement, as far as both are known."""
        ours, theirs = self.rate and self.rate.batch_samples, measured.batch_samples
        return not ours or not theirs or abs(ours / theirs - 1) <= SAME_BATCH

    def besides_s(self, free_data: Rate) -> float:
        """Return what a step takes besides its data and the training itself; 0 where that is within the noise."""
        rate, wait_s = self.rate, self.wait_s
        if rate is None or wait_s is None:
            return 0.0
        besides_s = rate.step_time_s - wait_s - free_data.step_time_s
        return besides_s if besides_s > NOISE * rate.step_time_s else 0.0

    @property
    def _steps(self) -> Sequence[StepRecord]:
        return [step for step in self.window.steps.steady if not step.epoch_start]
