"""How long steps take, from an even sample of all of them."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..records import LedgerRecord, StepRecord
from ..records.rows import is_kept
from ..records.stats import Reservoir, Stats, stats
from .drift import Drift, find_drift
from .epochs import EpochSignals, is_within, own_s
from .ledger import LedgerSignals
from .loader import LoaderSignals
from .memo import Memo
from .startup import FEWEST_LATE, LONG, ExcessOfFirstWaits, FirstWaits
from .warmup import FirstSteps, WarmUp
from .workers import WorkerSignals

BODY = ("h2d", "forward", "backward", "compute")
"""Buckets of a step's own work."""

WARMUP_STEPS = 3
"""First steps of a run that say nothing about the rest: caches, autotuning, lazy initialisation."""

MIN_STEADY_STEPS = 5
"""Below this many steady steps a median is no basis for a verdict."""

SETTLED_STEPS = 256
"""So many steady steps tell what the first wait of an epoch is to be compared with; before, it is compared anew."""

SLOW_STEPS = 10
"""Slowest steps that are kept whole, as examples."""

RARELY = 0.05
"""Share of the steps whose rate of recording may be left higher than that of the others: they hardly weigh then."""

OPENERS = 256
"""First steps of epochs that are kept: they are judged only where an epoch has no other step."""


PERIODS = 2
"""Distances between long steps without which it is chance that they are alike."""

EVEN = 1.1
"""Times the shortest that the longest of these distances may be; our choice: a last batch more or less."""


@dataclass(frozen=True, slots=True)
class Outliers:
    """Steps that took much longer than the others, scaled from the sample to the whole run."""

    count: int
    excess_s: float
    """Seconds beyond the median step, all of them together."""
    longest_s: float
    period: int | None = None
    """Steps from one of the longest to the next, where these come at even distances: an epoch, say, of a loop that asks
    no loader. None where they do not, or there are fewer than `PERIODS` distances."""


class StepSignals:
    """Signals of steady steps: those after the warm-up that do not begin an epoch.

    Args:
        loader: Tells whether workers start with an epoch.
        ledger: Tells how long all steps took, those without a record included.
        size: Most steps kept.
        readings: Of the ledger, a sample of all.
        workers: Tell what batches of the first epoch and of later ones took.
        looked: Times, begin and end, in which batches were looked into; Unix.
        smaller: Takes the steps whose batch has fewer items than the one before.
    """

    def __init__(
        self,
        loader: LoaderSignals,
        ledger: LedgerSignals,
        *,
        size: int = 4096,
        readings: Reservoir[LedgerRecord] | None = None,
        workers: WorkerSignals | None = None,
        looked: Mapping[float, float] | None = None,
        smaller: Reservoir[StepRecord] | None = None,
    ) -> None:
        self.memo = Memo(loader.memo)
        self._with_ledger = Memo(self.memo, ledger.memo)
        self._loader, self._ledger, self._readings = loader, ledger, readings
        self._warm_up: list[StepRecord] = []
        self._steady: Reservoir[StepRecord] = Reservoir(size)
        self._openers: Reservoir[StepRecord] = Reservoir(OPENERS)
        self._slowest: list[tuple[float, int, int, StepRecord]] = []
        self._first_waits = FirstWaits()
        self._late_first_waits = FirstWaits(FEWEST_LATE)
        """Of epochs in which no worker starts: an ordinary one is a wait for a batch."""
        self._smaller = Reservoir[StepRecord](OPENERS) if smaller is None else smaller
        self._samples = 0
        self._began = False
        self._persistent: int | None = None
        """Workers that had started by the last epoch, if they live on."""
        self._first_steps = FirstSteps()
        self.epochs = EpochSignals(
            self, workers or WorkerSignals(), self._openers, ledger, {} if looked is None else looked
        )

    def append(self, step: StepRecord) -> None:
        """Take a step."""
        self.memo.changes += 1
        self._first_steps.add(step)
        if step.samples is not None:
            if step.samples < self._samples and not step.epoch_start:
                self._smaller.add(step)
            self._samples = step.samples
        if step.epoch_start:
            self._began = True
            started = self._have_started() and self._loader.num_workers != 0
            (self._first_waits if started else self._late_first_waits).add(step.data_wait_s)
            if step.index >= WARMUP_STEPS and not step.outlier:
                self._openers.add(step)
            self._settle_first_waits()
        elif step.index < WARMUP_STEPS:
            self._warm_up.append(step)
        else:
            if not step.outlier:
                self._steady.add(step)
                if len(self._steady) == SETTLED_STEPS:
                    self._settle_first_waits()
            self._keep_slowest(step)

    def _settle_first_waits(self) -> None:
        steady_s = self._steady_wait_s()
        self._first_waits.settle(steady_s)
        self._late_first_waits.settle(steady_s, self._late_from_s())

    def _have_started(self) -> bool:
        """Whether workers have started with the epoch that begins: those that live on have only run out of batches."""
        info = self._loader.info
        before, self._persistent = self._persistent, info.num_workers if info and info.lives_on else None
        return self._persistent is None or self._persistent != before

    def _keep_slowest(self, step: StepRecord) -> None:
        item = (step.step_time_s, -step.index, id(step), step)  # records themselves have no order
        if len(self._slowest) < SLOW_STEPS:
            heapq.heappush(self._slowest, item)
        elif item > self._slowest[0]:
            heapq.heapreplace(self._slowest, item)

    @property
    def count(self) -> int:
        """Steady steps so far."""
        return len(self._steady)

    @property
    def warm_up(self) -> WarmUp | None:
        """What the first steps took beyond steady ones; None while there are too few steps to tell."""
        return self.memo("warm-up", self._first_steps.find)

    @property
    def begun_s(self) -> float:
        """Unix time of the first steps that are known, the long ones left out; before all times when none is."""
        first = next((s.time_s for s in (*self._warm_up[:1], *self._steady.items[:1])), float("-inf"))
        return max(first, self.warm_up.ended_s) if self.warm_up is not None else first

    @property
    def steady(self) -> Sequence[StepRecord]:
        """A sample of all steps but the warm-up and the first of each epoch; the warm-up itself in very short runs.

        Where each epoch has one step, these are taken if no workers start with them: they are ordinary steps then.
        """
        return self.memo("steady", self._find_steady)

    def _find_steady(self) -> Sequence[StepRecord]:
        if not self._steady.items and self._loader.num_workers == 0:
            return self._without_long(self._openers.items) or self._without_long(self._warm_up)
        return self._without_long(evenly(self._steady.items)) or self._without_long(self._warm_up)

    def _without_long(self, steps: list[StepRecord]) -> list[StepRecord]:
        """Leave out first steps that took longer than steady ones, unless nothing else is there."""
        found = self.warm_up
        if found is None or not found.long:
            return steps
        return [s for s in steps if s.index not in found.long] or steps

    @property
    def slowest(self) -> Sequence[StepRecord]:
        """The `SLOW_STEPS` slowest of all steady steps, the slowest first."""
        return self._without_long([item[-1] for item in sorted(self._slowest, reverse=True)])

    @property
    def step_time_s(self) -> Stats | None:
        """Time of steady steps, validation left out."""
        return self._describe("step time", lambda s: s.step_time_s)

    @property
    def data_wait_s(self) -> Stats | None:
        """Data wait of steady steps."""
        return self._describe("data wait", lambda s: s.data_wait_s)

    @property
    def work_s(self) -> Stats | None:
        """Time of steady steps without the data wait: what a step costs when data are free."""
        return self._describe("work", lambda s: s.step_time_s - s.data_wait_s)

    @property
    def body_s(self) -> Stats | None:
        """Time of steady steps in copy, forward, backward and the loop's own body.

        Optimizer and framework are left out: both have work to do in some steps only.
        """
        return self._describe("body", own_s)

    @property
    def save_s(self) -> Stats | None:
        """Time that steps with a checkpoint in them were held by it."""
        return self._describe("save", lambda s: s.checkpoint_s or None)

    @property
    def drift(self) -> Drift | None:
        """By how much steps got slower over the run; None when they did not, or too few are known."""
        return self.memo("drift", lambda: find_drift(self.steady, self._readings.items if self._readings else ()))

    @property
    def first_waits(self) -> ExcessOfFirstWaits | None:
        """By how much the first waits of epochs exceeded the steady wait; None where no epoch was seen to begin.

        Without workers the first wait is an ordinary one, as it is where workers live on after an epoch, or it is late.
        """
        if not self._began:
            return None
        started, late = self._first_waits, self._late_first_waits
        steady_s = self._steady_wait_s() if started or late else None  # else there is nothing to compare
        started_s = started.excess_s(steady_s)
        late_s = late.excess_s(steady_s, self._late_from_s() if late else 0.0)
        return ExcessOfFirstWaits(late_s + (0.0 if self._loader.num_workers == 0 else started_s), late_s)

    def _late_from_s(self) -> float:
        """Return from when on a first wait is late: the making of a batch may take a step's time, of each worker's."""
        step = self.step_time_s
        return 0.0 if step is None else LONG * step.median * max(1, self._loader.num_workers or 1)

    def _steady_wait_s(self) -> float | None:
        wait = self.data_wait_s
        return None if wait is None or wait.count < MIN_STEADY_STEPS else wait.median

    def outliers(self, factor: float, apart: Sequence[tuple[float, float]] = ()) -> Outliers | None:
        """Find steps whose body takes ``factor`` times the median or more; None when bodies were not measured.

        Args:
            factor: Times the median.
            apart: Times, begin and end, of which none is told: what lengthens steps then is known.
        """
        if apart:
            return self._find_outliers(factor, apart)
        # Asked for by several in each tick, and to go through all steps takes the interpreter's lock for milliseconds.
        return self._with_ledger(f"outliers of {factor}", lambda: self._find_outliers(factor, ()))

    def _find_outliers(self, factor: float, apart: Sequence[tuple[float, float]]) -> Outliers | None:
        body, ledger = self.body_s, self._ledger.record
        if body is None or body.median <= 0 or ledger is None:
            return None
        # Of a loop that is slow for a while all steps of that while are recorded: each stands for as many as it was one
        # of. To thin them to one rate would leave most of the rare ones out, which are the slow ones.
        seen = self._without_long(self._steady.items) or self.steady
        scale = max(1, ledger.steps // max(1, sum(s.every for s in seen)))
        slowest = [s for s in self.slowest if not is_within(s, apart)]
        least_s = factor * body.median
        known = [(own_s(s), s) for s in seen]
        above = [(b, scale * s.every) for b, s in known if b >= least_s and not is_within(s, apart)]
        # The ledger knows exactly how much all steps took beyond their median; a sample may overstate it.
        total = sum(ledger.buckets.get(name, 0.0) for name in BODY)
        most = max(0.0, total - ledger.steps * body.median)
        return Outliers(
            count=sum(times for _, times in above),
            excess_s=min(most, sum(times * (b - body.median) for b, times in above)),
            longest_s=max((b for b in (*(b for b, _ in above), *map(own_s, slowest)) if above), default=0.0),
            period=_period(slowest, least_s),
        )

    def _describe(self, name: str, of: Callable[[StepRecord], float | None]) -> Stats | None:
        return self.memo(name, lambda: stats(v for s in self.steady if (v := of(s)) is not None))


def _period(slowest: Sequence[StepRecord], least_s: float) -> int | None:
    """Return the distance of the longest steps, those of half the longest one's time or more, where it is always one.

    Args:
        slowest: In any order; `SLOW_STEPS` at most, so that of more no distance is told.
        least_s: Work of a step from which on it is long.
    """
    longest_s = max(map(own_s, slowest), default=0.0)
    at = sorted(step.index for step in slowest if own_s(step) >= max(least_s, longest_s / 2))
    apart = [after - before for before, after in pairwise(at)]
    if len(apart) < PERIODS or len(at) >= SLOW_STEPS or max(apart) > EVEN * min(apart):
        return None
    return round(statistics.median(apart))


def evenly(steps: list[StepRecord]) -> list[StepRecord]:
    """Thin steps that were recorded at different rates to one rate, so that each stands for as many.

    So many are recorded in a second, however many there are: of a loop that was slow for a while all steps of that
    while are, and one in sixteen of the others. A mean of all of them would be one over time, not over steps.
    """
    by_rate: dict[int, int] = {}
    for step in steps:
        by_rate[step.every] = by_rate.get(step.every, 0) + step.every
    if len(by_rate) < 2:
        return steps
    rates = sorted(by_rate, reverse=True)
    # What few steps were recorded at, when the sampler came late, would cost all others their detail.
    rare, thinned = 0, rates[0]
    for rate in rates:
        rare, thinned = rare + by_rate[rate], rate
        if rare > RARELY * sum(by_rate.values()):
            break
    kept = [step for step in steps if step.every >= thinned or is_kept(step.index, thinned)]
    return kept if len(kept) >= MIN_STEADY_STEPS else steps
