"""The number of workers of a live loader, changed between two epochs: the training thread acts, the sampler decides.

The training thread only picks up what was decided before it came, sets it and leaves a mark. All measuring and
deciding happens on the sampler thread, from the steps it has anyway. A decision that is not there in time is taken at
the next boundary.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..errors import SettingError
from ..records import Event, StepRecord, WorkerChange, WorkerTrial
from ..records.diagnosis import WorkerAdvice
from ..records.interfaces import GuardedCall
from ..timing.clock import StepClock
from .trial import Proposal, WorkerTrials

T = TypeVar("T")
_log = logging.getLogger("stallmeter")

OnNumWorkers = str | Callable[[WorkerAdvice], "int | None"]
"""``report`` says what is advised, ``apply`` sets it, a function is told and may return a number."""


class Resize(Protocol):
    """Gives a loader another number of workers, or says why it may not have it."""

    def __call__(self, loader: Any, workers: int, *, prefetch_factor: int | None = None) -> None:
        """Raise `SettingError` when the loader must stay as it is."""


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


class WorkerTuner:
    """One training loader whose number of workers may change.

    Args:
        mode: ``apply``, or a function that is told the advice on the training thread and may return a number.
        resize: Sets the number on a loader.
        why_fixed: Says why a loader must keep its number.
        guard: Keeps errors of the user's function away from the training.
        tell: Takes events for the recording.
    """

    def __init__(
        self,
        mode: OnNumWorkers,
        *,
        resize: Resize,
        why_fixed: Callable[[Any, int], str | None],
        guard: GuardedCall,
        tell: Callable[[Event], None],
    ) -> None:
        self._ask = mode if callable(mode) else None
        self._resize = resize
        self._why_fixed = why_fixed
        self._guard = guard
        self._tell = tell
        self._trials = WorkerTrials(reverts=self._ask is None)
        self._loader: Any = None
        self._prefetch: int | None = None
        self._fixed = False
        self._told: WorkerAdvice | None = None
        self._marks: deque[EpochBoundary] = deque()
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
        if self._loader is None or self._fixed:
            return False
        proposal = self._choose() if self._ask is not None else self._decided()
        taken = proposal if proposal is not None and self._set(proposal) else None
        self._passed += 1
        at_ns = clock.ledger.settle()
        # Written by the training thread, taken off by the sampler thread: a deque's ends are atomic under the GIL and,
        # by its own lock, without it.
        self._marks.append(
            EpochBoundary(clock.index, clock.epochs, clock.unix_s(at_ns), at_ns, clock.ledger.acc[:], taken)
        )
        return taken is not None

    def _decided(self) -> Proposal | None:
        made_after, proposal = self._pending
        return proposal if made_after == self._passed else None

    def _choose(self) -> Proposal | None:
        made_after, advice = self._advice
        now = int(self._loader.num_workers)
        if made_after != self._passed or advice is None or advice.current != now:
            return None
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
        try:
            self._resize(self._loader, proposal.workers, prefetch_factor=self._prefetch if proposal.workers else None)
        except SettingError as exc:
            self._say("num_workers is not changed", str(exc))
            self._fixed = self._ask is None
            return False
        _log.info("stallmeter: num_workers %d -> %d", proposal.before, proposal.workers)
        return True

    def _give_up(self, reason: str) -> None:
        self._fixed = True
        self._say("num_workers is not changed", reason)

    def _say(self, name: str, detail: str) -> None:
        _log.warning("stallmeter: %s: %s", name, detail)
        self._tell(Event(time_s=time.time(), name=name, detail=detail[:500]))

    # -- the sampler thread -------------------------------------------------------------------------------------------

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
        trials = self._trials.boundary(taken, step=boundary.step, time_s=time_s)
        self._seen += 1
        if taken is None:
            return trials
        self._advice = (self._seen, None)
        change = WorkerChange(time_s=time_s, step=boundary.step, before=taken.before, workers=taken.workers)
        return (change, *trials)

    def step(self, step: StepRecord) -> None:
        """A step is kept."""
        self._trials.step(step)

    def decide(self, advice: WorkerAdvice | None, *, fresh: bool) -> None:
        """Decide what the next boundary should set.

        Args:
            advice: The newest.
            fresh: Whether it was made just now.
        """
        known = self._advice[1]
        if fresh:
            self._evaluated = self._seen
            if advice is not None and advice.current == self._trials.workers:
                known = advice
        self._advice = (self._seen, known)
        self._pending = (self._seen, self._trials.propose(known))

    def finish(self, advice: WorkerAdvice | None) -> tuple[WorkerTrial, ...]:
        """The run ended: tell the last advice to who has not heard it, and say how the open trial stands."""
        if advice is not None and advice != self._told:
            self.ask(advice)
        self._loader = None
        return self._trials.finish(time.time())
