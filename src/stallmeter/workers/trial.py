"""Trying another number of workers, or another setting: propose, measure, keep or take back. Pure: no clock, no loader.

One change is tried at a time, the one first that is predicted to gain most. What was measured before the change is
compared with what is measured after it. The new value stays when it is faster by more than the noise of both
measurements. Otherwise the old one comes back. No value is tried twice, so this ends by itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..records import StepRecord, WorkerTrial
from ..records.diagnosis import WorkerAdvice
from ..records.stats import Reservoir
from ..window.steps import WARMUP_STEPS
from .settings import NUM_WORKERS, PERSISTENT, Change, Value

NOISE = 0.03
"""Differences below this share of a step are never called better: repeated measurements differ by as much."""

SIGMAS = 2.0
"""Standard errors by which the new number must be faster: one in forty changes without effect would pass."""

MIN_STEPS = 12
"""Below this many steps no speed is stated: three blocks of four."""

BLOCKS = 8
"""Parts of which the spread is the noise: neighbouring steps depend on each other through the prefetch queue."""

MAX_REVERTS = 2
"""After so many numbers that were not better the model is not believed any more in this run."""


PATIENCE = 2
"""Further epochs for which a number is measured that looks better, but not beyond the noise, before it is given up."""


@dataclass(frozen=True, slots=True)
class StepTimeEstimate:
    """How long a step takes with one number of workers."""

    step_time_s: float
    """Mean, the start of an epoch's workers spread over its steps; without validation and checkpoints."""
    noise_s: float
    """Standard error of that mean, from blocks of consecutive steps."""


class StepTimes:
    """Collects the steps taken with one number of workers.

    Args:
        persistent: Workers live on between epochs: their start is paid once and not counted.
    """

    def __init__(self, *, persistent: bool) -> None:
        self._persistent = persistent
        self._steps: Reservoir[StepRecord] = Reservoir(2048)
        self._first_waits: Reservoir[float] = Reservoir(64)
        self._startups: Reservoir[float] = Reservoir(64)
        self._disturbed = False

    def add(self, step: StepRecord) -> None:
        """Take a step. Those that hold a validation or a checkpoint, and the one behind them, say nothing."""
        disturbed, self._disturbed = self._disturbed, bool(step.validation_s or step.checkpoint_s)
        if step.epoch_start:
            self._first_waits.add(step.data_wait_s)
        elif step.index >= WARMUP_STEPS and not (step.outlier or disturbed or self._disturbed):
            self._steps.add(step)

    def add_startup(self, seconds: float) -> None:
        """Take the time in which an epoch's iterator was made and its workers were started."""
        self._startups.add(seconds)

    def speed(self, epoch_steps: int | None) -> StepTimeEstimate | None:
        """Return the speed; None below 12 steps.

        Args:
            epoch_steps: Steps of a whole epoch, over which the wait for an epoch's first batch is spread; None leaves
                it out.
        """
        steps = self._steps.items
        if len(steps) < MIN_STEPS:
            return None
        times = [step.step_time_s for step in steps]
        startup_s = 0.0
        if epoch_steps and self._first_waits.items and not self._persistent:
            wait_s = math.fsum(step.data_wait_s for step in steps) / len(steps)
            startup_s = max(0.0, statistics.median(self._first_waits.items) - wait_s) / epoch_steps
        if epoch_steps and self._startups.items and not self._persistent:
            startup_s += statistics.median(self._startups.items) / epoch_steps
        return StepTimeEstimate(math.fsum(times) / len(times) + startup_s, _standard_error(times))


def _standard_error(times: Sequence[float]) -> float:
    blocks = min(BLOCKS, len(times) // 4)
    cuts = [i * len(times) // blocks for i in range(blocks + 1)]
    means = [math.fsum(times[a:b]) / (b - a) for a, b in pairwise(cuts)]
    return statistics.stdev(means) / math.sqrt(blocks)


def gain(before: StepTimeEstimate, after: StepTimeEstimate) -> float:
    """Return the achieved rise of throughput, 0.5 for half as much again."""
    return before.step_time_s / after.step_time_s - 1 if after.step_time_s > 0 else 0.0


def is_better(before: StepTimeEstimate, after: StepTimeEstimate) -> bool:
    """Return whether ``after`` is faster by more than the noise of both."""
    noise_s = SIGMAS * math.hypot(before.noise_s, after.noise_s)
    return looks_better(before, after) and before.step_time_s - after.step_time_s > noise_s


def looks_better(before: StepTimeEstimate, after: StepTimeEstimate) -> bool:
    """Return whether ``after`` is faster by more than 3 %, whatever the noise."""
    return before.step_time_s - after.step_time_s > NOISE * before.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A number of workers, or another setting, that the loader should have from the next epoch on."""

    before: Value
    workers: Value
    """The value that is tried; of ``num_workers`` a number."""
    setting: str = NUM_WORKERS
    revert: bool = False
    """It takes the last change back."""
    abandoned: bool = False
    """It does so because a rank of the job could not take that change."""
    predicted_gain_pct: float | None = None


class WorkerTrials:
    """Decides what to try next. For one thread.

    Args:
        reverts: Whether what is not better is taken back; False where somebody else chooses the numbers.
    """

    def __init__(self, *, reverts: bool = True) -> None:
        self.workers: int | None = None
        """The loader's present number; None before `begin`."""
        self.trial: WorkerTrial | None = None
        """The change that is being measured."""
        self._reverts = reverts
        self._persistent = False
        self._tried: set[tuple[str, Value]] = set()
        self._failed = self._unclear = 0
        self._present = self._previous = StepTimes(persistent=False)
        self._epoch_began = 0
        self._epoch_steps: int | None = None

    def begin(self, workers: int, *, persistent: bool) -> None:
        """The loader is known."""
        self.workers, self._persistent = workers, persistent
        self._tried = {(NUM_WORKERS, workers)}
        self._present = StepTimes(persistent=persistent)

    def step(self, step: StepRecord) -> None:
        """A step was taken with the present number."""
        self._present.add(step)

    def measure_anew(self) -> None:
        """What was measured with the present number does not count: not all ranks of the job had it."""
        self._present = StepTimes(persistent=self._persistent)

    def propose(self, advice: WorkerAdvice | None, changes: Sequence[Change] = ()) -> Proposal | None:
        """Return what to set at the next boundary, as far as can be said now; None to leave it.

        Args:
            advice: The newest; ignored when it is about another number than the present one.
            changes: Other settings that the verdict asks for, the one with the largest predicted gain first.
        """
        if self.workers is None or not self._reverts:
            return None
        if self.trial is not None:
            return self._take_back(self.trial)
        if self._failed >= MAX_REVERTS or self._present.speed(None) is None:
            return None
        number = self._other_number(advice)
        other = next((change for change in changes if (change.setting, change.value) not in self._tried), None)
        if other is None or (number is not None and (number.predicted_gain_pct or 0.0) >= _predicted(other)):
            return number
        return Proposal(
            before=other.before,
            workers=other.value,
            setting=other.setting,
            predicted_gain_pct=other.predicted_gain_pct,
        )

    def _other_number(self, advice: WorkerAdvice | None) -> Proposal | None:
        if advice is None or advice.current != self.workers or (NUM_WORKERS, advice.recommended) in self._tried:
            return None
        # It is not faster, or not by the number alone, and would be taken back for that.
        if advice.saves_processes or advice.torch_threads is not None:
            return None
        return Proposal(before=advice.current, workers=advice.recommended, predicted_gain_pct=advice.predicted_gain_pct)

    def refuse(self, proposal: Proposal) -> None:
        """A setting cannot be had: it is not proposed again."""
        self._tried.add((proposal.setting, proposal.workers))

    def _take_back(self, trial: WorkerTrial) -> Proposal | None:
        speeds = self._speeds()
        if speeds is None or is_better(*speeds) or (self._unclear < PATIENCE and looks_better(*speeds)):
            return None
        return Proposal(before=trial.workers, workers=trial.before, setting=trial.setting, revert=True)

    def boundary(
        self, taken: Proposal | None, *, step: int, time_s: float, startup_s: float | None = None
    ) -> tuple[WorkerTrial, ...]:
        """An epoch ended, all its steps were given, and ``taken`` was set.

        Args:
            taken: What was set; None when nothing was.
            step: Number of the next step.
            time_s: Unix time.
            startup_s: Seconds in which the workers of the epoch that ended were started; None where not measured.

        Returns:
            What there is to record: how a trial ended, and the trial that begins.
        """
        self._epoch_steps = step - self._epoch_began or self._epoch_steps
        self._epoch_began = step
        if startup_s is not None:
            self._present.add_startup(startup_s)
        if taken is None:
            speeds = self._speeds()
            if speeds is None or (self._reverts and not is_better(*speeds)):
                self._unclear += speeds is not None
                return ()
            return self._settle("kept" if self._reverts else "set", time_s)
        outcome = "abandoned" if taken.abandoned else "reverted" if taken.revert else "set"
        ended = self._settle(outcome, time_s)
        self._failed += taken.revert
        self._unclear = 0
        self._tried.add((taken.setting, taken.workers))
        if taken.setting == NUM_WORKERS:
            self.workers = int(taken.workers)
        elif taken.setting == PERSISTENT:
            self._persistent = bool(taken.workers)
        self._previous, self._present = self._present, StepTimes(persistent=self._persistent)
        if taken.revert:
            # What was kept once may be taken back for another reason than its speed.
            return ended or (
                WorkerTrial(
                    time_s=time_s,
                    setting=taken.setting,
                    before=taken.workers,
                    workers=taken.before,
                    predicted_gain_pct=None,
                    outcome="reverted",
                ),
            )
        self.trial = WorkerTrial(
            time_s=time_s,
            setting=taken.setting,
            before=taken.before,
            workers=taken.workers,
            predicted_gain_pct=taken.predicted_gain_pct,
            outcome="measuring",
        )
        return (*ended, self.trial)

    def finish(self, time_s: float) -> tuple[WorkerTrial, ...]:
        """The run ended, in the middle of an epoch or not: say how the open trial stands.

        Args:
            time_s: Unix time.
        """
        speeds = self._speeds()
        if not self._reverts:
            return self._settle("set", time_s)
        return self._settle("kept" if speeds is not None and is_better(*speeds) else "unsettled", time_s)

    def _speeds(self) -> tuple[StepTimeEstimate, StepTimeEstimate] | None:
        """Before and after the open trial; None when there is none or one of them is not known."""
        before, after = self._previous.speed(self._epoch_steps), self._present.speed(self._epoch_steps)
        return None if self.trial is None or before is None or after is None else (before, after)

    def _settle(self, outcome: str, time_s: float) -> tuple[WorkerTrial, ...]:
        trial, speeds = self.trial, self._speeds()
        if trial is None:
            return ()
        self.trial = None
        return (
            WorkerTrial(
                time_s=time_s,
                setting=trial.setting,
                before=trial.before,
                workers=trial.workers,
                predicted_gain_pct=trial.predicted_gain_pct,
                achieved_gain_pct=None if speeds is None else 100.0 * gain(*speeds),
                outcome=outcome,
            ),
        )


def _predicted(change: Change) -> float:
    return -1.0 if change.predicted_gain_pct is None else change.predicted_gain_pct
