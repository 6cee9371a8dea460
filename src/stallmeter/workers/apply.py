"""Settings of a live loader, changed between two epochs: the training thread acts, the sampler decides.

The training thread only picks up what was decided before it came, sets it and leaves a mark. All measuring and
deciding happens on the sampler thread, from the steps it has anyway. A decision that is not there in time is taken at
the next boundary. Where the training has several ranks, rank 0 decides for all (`agreement`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ..errors import SettingError
from ..recording import decode, encode
from ..records import Event, LoaderInfo, StepRecord, WorkerChange, WorkerTrial
from ..records.diagnosis import Verdict, WorkerAdvice
from ..records.interfaces import GuardedCall
from ..timing.clock import StepClock
from ..timing.ledger import WORKER_STARTUP
from .agreement import ALONE, STOPPED, TOGETHER, Follower, Leader
from .settings import NUM_WORKERS, PERSISTENT, PREFETCH, Change, changes
from .trial import Proposal, WorkerTrials

T = TypeVar("T")
_log = logging.getLogger("stallmeter")

OnNumWorkers = str | Callable[[WorkerAdvice], "int | None"]
"""``report`` says what is advised, ``apply`` sets it, a function is told and may return a number."""


class Resize(Protocol):
    """Gives a loader another number of workers, or says why it may not have it."""

    def __call__(self, loader: Any, workers: int, *, prefetch_factor: int | None = None) -> None:
        """Raise `SettingError` when the loader must stay as it is."""


class Settings(Protocol):
    """Changes other settings of a loader than its number of workers."""

    def boundary(self, loader: Any) -> str | None:
        """Look at the loader between two epochs; returns why its workers must not be kept any more."""
        ...

    def set(self, loader: Any, setting: str, value: Any) -> None:
        """Raise `SettingError` when the loader must stay as it is."""
        ...

    def threads(self) -> int | None:
        """Return how many threads torch's operations use in this process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What other settings than the number of workers are chosen by."""

    verdict: Verdict
    """The newest of this rank."""
    loader: LoaderInfo | None
    cpus: float | None
    """Usable by this rank."""


def check_mode(mode: object) -> None:
    """Refuse what cannot be ``on_num_workers``.

    Raises:
        SettingError: It says what may be passed.
    """
    if mode not in ("report", "apply") and not callable(mode):
        raise SettingError(
            f"on_num_workers is {mode!r}; give 'report', 'apply' or a function that takes a WorkerAdvice"
        )


@dataclass(frozen=True, slots=True)
class EpochBoundary:
    """The loop stood between two epochs."""

    step: int
    """The next step."""
    epochs: int
    """Epochs begun before it."""
    time_s: float
    at_ns: int
    acc: list[int]
    """The ledger's slots at that moment."""
    taken: Proposal | None
    order: int = 0
    """The order of rank 0 that was carried out; 0 for none."""


class WorkerTuner:
    """One training loader whose number of workers may change.

    Args:
        mode: ``apply``, or a function that is told the advice on the training thread and may return a number; once
            more, for its information, by `tell_last`.
        resize: Sets the number on a loader.
        why_fixed: Says why a loader must keep its number.
        settings: Changes other settings; None where that was not wanted.
        guard: Keeps errors of the user's function away from the training.
        tell: Takes events for the recording.
        job: What this rank knows of the others; None for a training of one rank.
        exchange: Tells them what is new here and returns what is new there, see `heard`; given this rank's recorder,
            and whether the run ends.
        epochs: Returns how many there are at most; None where nobody knows.
    """

    def __init__(
        self,
        mode: OnNumWorkers,
        *,
        resize: Resize,
        why_fixed: Callable[[Any, int], str | None],
        guard: GuardedCall,
        tell: Callable[[Event], None],
        settings: Settings | None = None,
        job: Leader | Follower | None = None,
        exchange: Callable[[Any, bool], Sequence[str]] = lambda _recorder, _ended: (),
        epochs: Callable[[], object] = lambda: None,
    ) -> None:
        self.exchange = exchange
        self._epochs = epochs
        self.job = job
        """What this rank knows of the others; None for a training of one rank."""
        self._ask = mode if callable(mode) else None
        self._resize = resize
        self._why_fixed = why_fixed
        self._settings = settings if self._ask is None else None
        self._keeps = False
        """Whether workers are kept because that was tried here."""
        self._must_let_go = ""
        """Why workers that are kept must be kept no more."""
        self._startup_ns: int | None = None
        """What stood in the ledger's slot of the start of workers at the boundary before."""
        self._guard = guard
        self._tell = tell
        self._trials = WorkerTrials(reverts=self._ask is None)
        self._loader: Any = None
        self._prefetch: int | None = None
        self._fixed = False
        self._why = ""
        """Why the number cannot be changed."""
        self._mode = ""
        """Of the job, as far as it was told."""
        self._obeyed = 0
        """The newest order of rank 0 that the training thread has carried out."""
        self._begun = 0
        """Epochs that have begun, at the newest boundary."""
        self._told: WorkerAdvice | None = None
        self._untold: WorkerAdvice | None = None
        self._heard: WorkerTrial | None = None
        """The newest trial of rank 0."""
        self._marks: deque[EpochBoundary] = deque()
        self._refused: deque[Proposal] = deque()
        """What could not be set; appended by the training thread, taken off by the sampler thread."""
        self._passed = self._seen = self._evaluated = 0
        # Written by the sampler thread, read by the training thread, each as one tuple in one assignment: number and
        # proposal then belong together without a lock that would hold up the training. The number is how many
        # boundaries the decision knows of; one that came meanwhile makes it stale, and it is dropped.
        self._pending: tuple[int, Proposal | None] = (0, None)
        self._advice: tuple[int, WorkerAdvice | None] = (0, None)

    # -- the training thread ------------------------------------------------------------------------------------------

    def attach(self, loader: Any, why_not: str | None = None) -> None:
        """The training loader is about to be iterated for the first time.

        Args:
            loader: The loader.
            why_not: Why its number cannot be changed in this run.
        """
        if self._loader is loader or self._fixed:
            return
        if self._loader is not None:
            self._give_up("there are several training loaders")
            return
        self._loader = loader
        reason = why_not or self._why_fixed(loader, getattr(loader, "num_workers", 0))
        if reason is not None:
            self._give_up(reason)
            return
        self._prefetch = loader.prefetch_factor
        self._trials.begin(int(loader.num_workers), persistent=bool(loader.persistent_workers))

    def boundary(self, clock: StepClock) -> bool:
        """The loop stands between two epochs: set what was decided. Returns whether the number changed.

        Args:
            clock: Its last epoch is over, the next one has not begun.
        """
        if self._loader is None or (self._fixed and not self._keeps):
            return False
        if self._settings is not None:
            self._must_let_go = self._settings.boundary(self._loader) or ""
        self._begun = clock.epochs
        order, proposal = self._of_the_job(clock.epochs) if self._in_a_job else (0, self._of_its_own())
        taken = proposal if proposal is not None and self._set(proposal) else None
        self._passed += 1
        at_ns = clock.ledger.settle()
        # Written by the training thread, taken off by the sampler thread: a deque's ends are atomic under the GIL and,
        # by its own lock, without it.
        self._marks.append(
            EpochBoundary(
                clock.index,
                clock.epochs,
                clock.unix_s(at_ns),
                at_ns,
                clock.ledger.acc[:],
                taken,
                order if not self._fixed else 0,
            )
        )
        return taken is not None

    def _of_the_job(self, epochs: int) -> tuple[int, Proposal | None]:
        """Return the number of the order that is to be carried out now, and what it sets."""
        order = None if self.job is None else self.job.order
        if order is None or order.number <= self._obeyed or epochs < order.epoch:
            return 0, None
        self._obeyed, now = order.number, int(self._loader.num_workers)
        if order.advice is not None:
            return order.number, self._chosen(order.advice, now)
        proposal = order.proposal
        return order.number, None if proposal is None or proposal.workers == now else replace(proposal, before=now)

    def _of_its_own(self) -> Proposal | None:
        if self._must_let_go:
            self._say("persistent_workers is taken back", self._must_let_go)
            return Proposal(before=True, workers=False, setting=PERSISTENT, revert=True)
        if self._fixed:
            return None
        return self._choose() if self._ask is not None else self._of_use(self._decided())

    def _of_use(self, proposal: Proposal | None) -> Proposal | None:
        """Return the proposal unless the last epoch is next: after it nothing could be measured or taken back."""
        epochs = self._epochs()
        is_last = isinstance(epochs, int) and self._begun + 1 >= epochs
        return None if is_last and proposal is not None and not proposal.revert else proposal

    def _decided(self) -> Proposal | None:
        made_after, proposal = self._pending
        return proposal if made_after == self._passed else None

    def _choose(self) -> Proposal | None:
        made_after, advice = self._advice
        now = int(self._loader.num_workers)
        if made_after != self._passed or advice is None or advice.current != now:
            return None
        return self._chosen(advice, now)

    def _chosen(self, advice: WorkerAdvice, now: int) -> Proposal | None:
        chosen = self.ask(advice)
        if chosen is None or chosen == now:
            return None
        predicted = advice.predicted_gain_pct if chosen == advice.recommended else None
        return Proposal(before=now, workers=chosen, predicted_gain_pct=predicted)

    def ask(self, advice: WorkerAdvice) -> int | None:
        """Tell the user's function; return the number it chose, None where it chose none or nonsense."""
        if self._ask is None:
            return None
        self._told = advice
        chosen = self._guard("on_num_workers", self._ask, advice)
        if chosen is None:
            return None
        if isinstance(chosen, bool) or not isinstance(chosen, int) or chosen < 0:
            self._say("on_num_workers was ignored", f"it returned {chosen!r}; return a number from 0 up, or None")
            return None
        return chosen

    def _set(self, proposal: Proposal) -> bool:
        if proposal.setting != NUM_WORKERS:
            return self._set_other(proposal)
        workers = int(proposal.workers)
        try:
            self._resize(self._loader, workers, prefetch_factor=self._prefetch if workers else None)
        except SettingError as exc:
            self._say("num_workers is not changed", str(exc))
            if self._keeps:  # torch lets a loader that keeps its workers have some only: that was changed here
                self._refused.append(proposal)
                return False
            self._why = str(exc)
            self._fixed = self._ask is None
            return False
        _log.info("stallmeter: num_workers %s -> %s", proposal.before, proposal.workers)
        return True

    def _set_other(self, proposal: Proposal) -> bool:
        assert self._settings is not None
        try:
            self._settings.set(self._loader, proposal.setting, proposal.workers)
        except SettingError as exc:
            self._refused.append(proposal)
            self._say(f"{proposal.setting} is not changed", str(exc))
            return False
        if proposal.setting == PERSISTENT:
            self._keeps = bool(proposal.workers)
        elif proposal.setting == PREFETCH:
            self._prefetch = int(proposal.workers)
        _log.info("stallmeter: %s %s -> %s", proposal.setting, proposal.before, proposal.workers)
        return True

    def _give_up(self, reason: str) -> None:
        self._why = reason
        self._fixed = True
        self._say("num_workers is not changed", reason)

    def _say(self, name: str, detail: str) -> None:
        _log.warning("stallmeter: %s: %s", name, detail)
        self._tell(Event(time_s=time.time(), name=name, detail=detail[:500]))

    # -- the sampler thread -------------------------------------------------------------------------------------------

    @property
    def _in_a_job(self) -> bool:
        """Whether rank 0 decides, or it is not known yet who does."""
        return self.job is not None and self.job.mode != ALONE

    @property
    def decides_for_all(self) -> bool:
        """Whether it is given what is advised for the job, on rank 0, and not for this rank alone."""
        return self._in_a_job and isinstance(self.job, Leader)

    @property
    def needs_advice(self) -> bool:
        """Whether the loop passed a boundary without an advice on the present number: the rules should be asked now."""
        return self._evaluated != self._seen and self._advice[1] is None

    def take_boundaries(self) -> list[EpochBoundary]:
        """Return the boundaries that were passed since the last call. All steps before them lie in the step clock."""
        return [self._marks.popleft() for _ in range(len(self._marks))]

    def on_boundary(self, boundary: EpochBoundary) -> tuple[WorkerChange | WorkerTrial, ...]:
        """A boundary was reached, and all steps before it were kept. Returns what there is to record."""
        taken, time_s = boundary.taken, boundary.time_s
        if self._in_a_job:
            self._cross_with_others(boundary)
        while self._refused:
            self._trials.refuse(self._refused.popleft())
        began_ns, self._startup_ns = self._startup_ns, boundary.acc[WORKER_STARTUP]
        startup_s = None if began_ns is None else (boundary.acc[WORKER_STARTUP] - began_ns) / 1e9
        ended = self._trials.boundary(taken, step=boundary.step, time_s=time_s, startup_s=startup_s)
        trials = self._of_rank_0(ended)
        self._seen += 1
        if taken is None:
            return trials
        self._advice = (self._seen, None)
        now = self._trials.workers or 0
        before = int(taken.before) if taken.setting == NUM_WORKERS else now
        change = WorkerChange(time_s=time_s, step=boundary.step, before=before, workers=now)
        return (change, *trials)

    def step(self, step: StepRecord) -> None:
        """A step is kept."""
        self._trials.step(step)

    def _cross_with_others(self, boundary: EpochBoundary) -> None:
        if isinstance(self.job, Leader):
            if boundary.taken is None and not self.job.is_common(boundary.epochs):
                self._trials.measure_anew()
            self.job.crossed(boundary.epochs, boundary.order, boundary.time_s)
        elif self.job is not None:
            self.job.crossed(boundary.epochs, boundary.order)

    def _of_rank_0(self, trials: tuple[WorkerTrial, ...]) -> tuple[WorkerTrial, ...]:
        """Tell the other ranks how a number does. They record what rank 0 measured, and nothing of their own."""
        if not self._in_a_job:
            return trials
        if not isinstance(self.job, Leader):
            return ()
        for trial in trials:
            self.job.trial(encode(trial))
        return trials

    def heard(self, lines: Sequence[str]) -> list[WorkerTrial]:
        """Rank 0 has told its trials, encoded. Returns what there is to record."""
        trials = [trial for line in lines if isinstance(trial := decode(line), WorkerTrial)]
        self._heard = trials[-1] if trials else self._heard
        return trials

    def decide(self, advice: WorkerAdvice | None, *, fresh: bool, now_s: float = 0.0, seen: Seen | None = None) -> None:
        """Decide what the next boundary should set.

        Args:
            advice: The newest: of the job where this is asked to decide for all, else of this rank.
            fresh: Whether it was made just now.
            now_s: Unix time, by the clock of the boundaries.
            seen: What other settings are chosen by. A rank of several tries none: in each step it waits for the others,
                and cannot measure what it gains by itself.
        """
        known = self._advice[1]
        if fresh:
            self._evaluated = self._seen
            if advice is not None and advice.current == self._trials.workers:
                known = advice
        self._advice = (self._seen, known)
        if self.job is not None and self._in_a_job:
            self.job.loader(self._trials.workers, self._why if self._fixed else "", now_s)
            if isinstance(self.job, Leader):
                self._decide_for_all(self.job, known, now_s)
            self._say_who_decides(self.job)
        # Orders are carried out one by one; what was decided alone is only for the boundary that comes next.
        others = () if self._in_a_job else self._other_settings(seen)
        self._pending = (self._seen, None if self._in_a_job else self._trials.propose(known, others))

    def _other_settings(self, seen: Seen | None) -> Sequence[Change]:
        # A verdict of before the boundary is of before the change, too.
        if seen is None or self._settings is None or self.job is not None or self._evaluated != self._seen:
            return ()
        return changes(seen.verdict, seen.loader, threads=self._settings.threads(), cpus=seen.cpus)

    def _decide_for_all(self, leader: Leader, known: WorkerAdvice | None, now_s: float) -> None:
        if self._ask is None:
            leader.draft(self._trials.propose(known) if leader.ready else None, None, now_s)
            return
        last = leader.order
        asked = last is not None and last.advice == known
        leader.draft(None, None if asked else known, now_s)

    def _say_who_decides(self, job: Leader | Follower) -> None:
        if job.mode == self._mode:
            return
        self._mode = job.mode
        if job.mode == TOGETHER:
            self._tell(Event(time_s=time.time(), name="num_workers", detail="rank 0 decides for all ranks"))
        elif job.mode == ALONE:
            self._say("num_workers", f"each rank decides for itself: {job.why}")
        elif job.mode == STOPPED and not self._fixed:
            self._say("num_workers is not changed", job.why)

    def finish(self, advice: WorkerAdvice | None) -> tuple[WorkerTrial, ...]:
        """The run ended: say how the open trial stands. The last advice is left to `tell_last`."""
        self._untold = advice if advice != self._told else None
        self._loader = None
        now_s, heard = time.time(), self._heard
        if heard is not None and heard.outcome == "measuring":
            return (replace(heard, time_s=now_s, outcome="unsettled"),)
        return self._of_rank_0(self._trials.finish(now_s))

    def tell_last(self) -> None:
        """Tell the user's function the last advice, if it has not heard it; nothing can be changed any more."""
        untold, self._untold = self._untold, None
        if untold is not None:
            self.ask(untold)
