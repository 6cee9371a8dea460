"""Books the past: what a loop did before it was known to be a training is gone through again, at its own times.

Only while the ledger was not moved meanwhile, which its own thread alone could have done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ..timing.clock import StepClock
from ..timing.ledger import DATA_WAIT, OPTIMIZER, WORKER_STARTUP, Span
from ..timing.loop import Watched
from .iteration import Fetch, Iteration, Timed
from .updates import Past, Update, Updates


class _Moment:
    """The time that the ledger is told."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._ns = clock.ledger.last

    def __call__(self) -> int:
        return self._ns

    def be(self, ns: int) -> None:
        """Let it be that time, or the ledger's last where that is later."""
        self._ns = max(ns, self._clock.ledger.last)


@contextmanager
def _then(clock: StepClock, *, device: bool) -> Iterator[_Moment]:
    ledger = clock.ledger
    moment = _Moment(clock)
    now, timeline, before, after = ledger.now, ledger.device, clock.before_fetch, clock.after_fetch
    ledger.now = moment
    if not device:  # it cannot be asked what it did then
        ledger.device = None
    clock.before_fetch = clock.after_fetch = None
    # Who looks between two steps would see the model as it is now, as often as there were steps.
    boundary, clock.at_boundary = clock.at_boundary, None
    try:
        yield moment
    finally:
        ledger.now, ledger.device = now, timeline
        clock.before_fetch, clock.after_fetch = before, after
        if clock.at_boundary is None:  # else another thread has set it anew
            clock.at_boundary = boundary


class _Fetched:
    """An iterator over the past."""

    def __init__(self, moment: _Moment, fetches: Iterable[Fetch]) -> None:
        self._moment = moment
        self._fetches = deque(fetches)

    def __iter__(self) -> _Fetched:
        return self

    def __next__(self) -> Past:
        fetch = self._fetches.popleft()
        self._moment.be(fetch.got)
        return Past(fetch.samples)


Watch = Callable[[Any, str], Watched[Any]]
"""Returns what times a loader, for a stage."""


def book_training(clock: StepClock, watch: Watch, iterations: list[Iteration]) -> None:
    """Book iterations as training, the first as the one that makes the steps, and have them timed from now on."""
    began = min(iteration.began for iteration in iterations)
    moments: list[tuple[int, int, int]] = []
    for which, iteration in enumerate(iterations):
        first = iteration.began if which else began
        moments.append((first, 0, which))
        moments += [(max(fetch.asked, first), 1, which) for fetch in iteration.fetches]
    timed: dict[int, Iterator[Any]] = {}
    with _then(clock, device=False) as moment:
        for at, fetched, which in sorted(moments):
            moment.be(at)
            if fetched:
                next(timed[which])
            else:
                timed[which] = _begin(watch(iterations[which].loader, "train"), moment, iterations[which])
    # Until here the iterations are what they were: an error would cost no batch.
    for which, iteration in enumerate(iterations):
        take_from = getattr(timed[which], "take_from", None)
        if take_from is not None:  # else it was not to be timed
            take_from(iteration.iterator)
            iteration.timed = timed[which]
        iteration.fetches.clear()
        iteration.__class__ = Timed


def book_updates(
    clock: StepClock,
    alone: Updates,
    steps: Callable[[], Iterator[Any]],
    updates: Iterable[Update],
    made: Callable[[object], None],
    own_slot: int,
) -> None:
    """Book updates as steps, from the ledger's origin on, and have later ones make steps, too.

    Args:
        clock: Of the run, in which nothing was booked.
        alone: Makes the steps.
        steps: Begins what times a loader that hands out nothing.
        updates: In the order in which they were made.
        made: Told of each, with its optimizer.
        own_slot: Where our own time goes.
    """
    with _then(clock, device=False) as moment:
        alone.begin(clock, steps())
        alone.open()
        for update in updates:
            moment.be(update.called)
            with Span(clock.ledger, own_slot):
                moment.be(update.began)
            alone.before()
            with Span(clock.ledger, OPTIMIZER) if update.timed else nullcontext():
                moment.be(update.ended)
            by = update.by()
            if by is not None:
                made(by)


def book_validation(clock: StepClock, watch: Watch, iteration: Iteration, ended: int) -> None:
    """Book an iteration that is over as validation."""
    with _then(clock, device=False) as moment:
        moment.be(iteration.began)
        timed = _begin(watch(iteration.loader, "validation"), moment, iteration)
        for fetch in iteration.fetches:
            moment.be(fetch.asked)
            next(timed)
        moment.be(ended)
        del timed


def book_batches(clock: StepClock, iteration: Iteration, *, workers: bool) -> None:
    """Book an iteration that is over as waits of the steps it fell into, and end it: workers take a while to end.

    Args:
        clock: Of the run.
        iteration: Nobody asks it for anything any more.
        workers: Whether it has any: making it starts them.
    """
    ledger = clock.ledger
    made = Span(ledger, WORKER_STARTUP if workers else DATA_WAIT)
    with _then(clock, device=False) as moment:
        moment.be(iteration.began)
        with made:
            moment.be(iteration.made)
        for fetch in iteration.fetches:
            moment.be(fetch.asked)
            with Span(ledger, DATA_WAIT):
                moment.be(fetch.got)
    with made:
        iteration.timed = iteration.iterator = iter(())


def begin_validation(clock: StepClock, watch: Watch, iteration: Iteration) -> None:
    """Have an iteration timed as validation from now on, and since its iterator was asked for if nothing came since."""
    with _then(clock, device=True) as moment:
        moment.be(iteration.began)

        def make() -> Iterator[Any]:
            moment.be(iteration.made)
            return iteration.iterator

        iteration.timed = watch(iteration.loader, "validation").iterate_by(make)
    iteration.__class__ = Timed


def _begin(watched: Watched[Any], moment: _Moment, iteration: Iteration) -> Iterator[Any]:
    def make() -> Iterator[Any]:
        moment.be(iteration.made)
        return _Fetched(moment, iteration.fetches)

    return watched.iterate_by(make)
