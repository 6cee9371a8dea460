"""Plain training loops: an iterable that times what it hands out.

A ledger is moved by one thread of one process at a time, and in it one iteration makes the steps. Whatever else is
iterated at the same time either adds its waits to those steps or is passed through untimed, with a warning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import get_ident
from typing import Any, Generic, TypeVar

from .batches import attribute, fixed_size
from .clock import DataSpan
from .ledger import (
    DATA_WAIT,
    FIRST_WAIT,
    OPTIMIZER,
    VALIDATION,
    VALIDATION_START,
    VALIDATION_WAIT,
    WORKER_STARTUP,
    Span,
    WorkSpan,
)
from .tracebacks import let_out
from .turns import Turns

T = TypeVar("T")

PATIENCE = 100
"""An iteration that hands out so many batches in one step of another one makes the steps from then on."""

LOOKS = 2
"""So many iterations in a row that were left after one batch are looks at it: at a shape, at some pictures."""

AT_ONCE_NS = 1_000_000
"""An iterator that is left so soon after its only batch is left with it: what is done with the batch comes after."""

SURE_BATCHES = 16

LOOK_EVERY = 8
"""Of a loader that states its batch size so many batches are looked at, then every so-many-th and the last."""


_OWN = frozenset(("_loader", "_turns", "_stage", "_prepare", "_started", "_beside", "_size", "__orig_class__"))
"""What is set on a watched loader is set on the loader inside, but for these."""


class Watched(Generic[T]):
    """A loader whose batches are timed while somebody iterates over it.

    Everything else is forwarded to the loader, so ``len``, ``.dataset`` or ``.epoch = 3`` work as before. What cannot
    be timed (see `Turns`) is passed through with a warning.

    Args:
        loader: Any iterable.
        turns: Of the monitor.
        stage: ``train``, or ``validation`` to book the whole iteration as validation.
        prepare: Called with the loader before each iteration; attaches the worker probe.
        started: Called with the loader's iterator.
        beside: Called in place of both where another one makes the steps, with what makes the iterator; returns that.
        size: Returns the number of items in a batch; must not raise. None where there are no batches.
    """

    def __init__(
        self,
        loader: Iterable[T],
        turns: Turns,
        *,
        stage: str,
        prepare: Callable[[object], None],
        started: Callable[[object], None],
        beside: Callable[[object, Callable[[], Iterator[T]]], Iterator[T]],
        size: Callable[[object], int | None] | None,
    ) -> None:
        self._loader = loader
        self._turns = turns
        self._stage = stage
        self._prepare = prepare
        self._started = started
        self._beside = beside
        self._size = size

    def __iter__(self) -> Iterator[T]:
        try:
            return self.iterate_by(partial(iter, self._loader))
        except BaseException as exc:
            let_out(exc)
            raise

    def iterate_by(self, make: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Begin an iteration.

        Args:
            make: Makes the loader's iterator; called once.
        """
        turns = self._turns
        if not turns.take():
            return make()
        if self._stage == "validation":
            return _Validation(self._loader, make, turns)
        clock, leader = turns.clock, turns.leader
        if leader is not None and leader.loader is not self._loader:
            # Beside another one (zip), or inside its steps.
            with Span(clock.ledger, WORKER_STARTUP):
                iterator = self._beside(self._loader, make)
            return _Following(self._loader, iterator, turns, self._size, epoch=-1)
        clock.pause()
        clock.ledger.base(WORKER_STARTUP)
        self._prepare(self._loader)
        clock.new_epoch(clock.epochs)
        iterator = make()
        self._started(iterator)
        iteration = _Training(self._loader, iterator, turns, self._size, epoch=clock.epochs)
        turns.lead(iteration)
        return iteration

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._loader, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._loader, name)


class _Training(Generic[T]):
    """One epoch of a watched loader. When the loop leaves it, early or not, the step in progress is closed."""

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_alone",
        "_clock",
        "_epoch",
        "_first_step",
        "_fixed",
        "_iterator",
        "_ledger",
        "_size",
        "_span",
        "_step",
        "_superseded",
        "_turns",
        "_unlooked",
        "loader",
        "thread",
    )

    def __init__(
        self,
        loader: Iterable[T],
        iterator: Iterator[T],
        turns: Turns,
        size: Callable[[object], int | None] | None,
        epoch: int,
    ) -> None:
        self.loader = loader
        self.thread = get_ident()
        """Who may ask for batches; 0 when another thread has taken its turn since."""
        self._iterator = iterator
        self._turns = turns
        self._clock = turns.clock
        self._ledger = turns.clock.ledger
        self._size = size
        self._fixed = fixed_size(loader)
        self._first_step = turns.clock.index
        self._unlooked = 0 if size is not None else sys.maxsize
        """Batches from now on whose size is taken to be that of the last one."""
        self._span = DataSpan(turns.clock, DATA_WAIT)
        self._epoch = epoch
        """Of the clock, while this makes its steps and its workers are those that were prepared; else -1."""
        self._step = -1
        self._alone = 0
        self._ahead = False
        self._superseded = False
        turns.add(self)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        # The way of nearly all batches. Steps of 10 ms leave nothing of us in the CPU's caches: what counts is how many
        # different lines of memory and pieces of the interpreter are needed. Hence no calls, and a mark that is short.
        clock = self._clock
        ledger = self._ledger
        if (
            get_ident() != self.thread
            or ledger.last is not clock.left_at  # a span in the loop's body, another iteration, the end of an epoch
            or not clock.worked
            or clock.before_fetch is not None
            or clock.at_boundary is not None
            or ledger.device is not None
        ):
            try:
                return self._next_in_full()
            except BaseException as exc:
                let_out(exc)
                raise
        acc = ledger.acc
        stack = ledger.stack
        top = stack[-1]
        now = ledger.now  # called as a method it would be looked up as one, for which the interpreter has no short way
        asked = now()
        # The time and `last` one straight after the other: `Ledger.peek` of another thread reads both.
        acc[top] = spent = acc[top] + asked - ledger.last
        ledger.last = asked
        stack.append(DATA_WAIT)
        number = clock.index
        step = clock.optimizer_step
        clock.marks.append(
            (clock.marked, asked, number, top, spent, acc[DATA_WAIT], acc[OPTIMIZER], step, clock.samples)
        )
        clock.index = number + 1
        clock.worked = False
        try:
            batch = next(self._iterator)
        except BaseException as exc:
            clock.left_at = None
            self._end_fetch(exc)
            let_out(exc)
            raise
        got = now()
        if ledger.last is asked:
            acc[DATA_WAIT] += got - asked
            ledger.last = clock.left_at = got
            stack.pop()
        else:  # the loader has spans of its own
            clock.left_at = None
            self._span.leave()
        if self._unlooked:
            self._unlooked -= 1
        else:
            self._look(batch)
        clock.tracker_step = clock.index
        clock.worked = True
        return batch

    def _next_in_full(self) -> T:
        """Whatever there is to do besides: hooks, a device, the first batch of an epoch, spans since the last one."""
        if get_ident() != self.thread:
            return self._next_elsewhere()
        clock, ledger = self._clock, self._ledger
        span = self._span
        clock.left_at = None
        before = clock.marked
        span.__enter__()
        asked = ledger.last
        try:
            batch = next(self._iterator)
        except BaseException as exc:
            self._end_fetch(exc)
            let_out(exc)
            raise
        undisturbed = ledger.last is asked
        if clock.after_fetch is None:
            span.leave()
        else:
            span.__exit__()
        self._look(batch)
        clock.tracker_step = clock.index
        clock.worked = True
        plain = undisturbed and not clock.epoch_start and clock.ready is None and clock.head_ready is None
        if plain and clock.marked is not before:
            # Since that mark nothing but this wait was booked: the next ones may refer to it.
            clock.left_at = ledger.last
        return batch

    def _end_fetch(self, exc: BaseException) -> None:
        self._span.leave()
        if isinstance(exc, StopIteration):
            self._leave()

    def _look(self, batch: T) -> None:
        """Note the batch's size. Where the loader keeps to the size that it states, not every batch is looked at."""
        clock, fixed = self._clock, self._fixed
        if self._size is None:
            return
        if self._unlooked and fixed is not None:
            self._unlooked -= 1
            clock.samples = fixed.size
            return
        clock.samples = size = self._size(batch)
        if fixed is None:
            return
        if size != fixed.size:
            self._fixed = None
            return
        at = clock.index - self._first_step
        if at >= SURE_BATCHES:
            self._unlooked = max(0, min(at + LOOK_EVERY, fixed.batches - 1) - at - 1)

    def take_from(self, iterator: Iterator[T]) -> None:
        """From now on batches come from another iterator."""
        self._iterator = iterator

    def follow(self) -> None:
        """Another iteration makes the steps from now on."""
        self._superseded = True
        self._epoch = -1
        self.__class__ = _Following

    def _next_elsewhere(self) -> T:
        """Another thread asks than the one that has asked until now."""
        if not self._turns.take():
            return next(self._iterator)
        self.thread = get_ident()
        self._lead()
        return next(self)

    def _lead(self) -> None:
        """Make the steps from now on, with workers that nobody has prepared."""
        clock = self._clock
        self._turns.lead(self)
        self.__class__ = _Training
        self._superseded = False
        if self._epoch != clock.epochs:
            clock.pause()
            clock.before_fetch = clock.after_fetch = None
            clock.new_epoch(clock.epochs)
            self._epoch = clock.epochs

    def _drop(self) -> None:
        """Nobody has it any more.

        Where the loop makes an iterator for each batch, ``next(iter(loader))``, the step goes on with that batch.
        """
        clock, turns = self._clock, self._turns
        if not turns.has() or self._epoch != clock.epochs or not clock.open:
            self._leave()
            return
        ledger = self._ledger
        at_once = clock.worked and clock.index == self._first_step and ledger.now() - ledger.last < AT_ONCE_NS
        turns.single = turns.single + 1 if at_once else 0
        if turns.single <= LOOKS:
            self._leave()
            return
        turns.finished(self)
        self._let_go()

    def _let_go(self) -> None:
        """Part with the loader's iterator: its workers take a while to end."""
        with Span(self._ledger, WORKER_STARTUP):
            self._iterator = iter(())

    def _leave(self) -> None:
        clock, turns = self._clock, self._turns
        in_progress = self._epoch == clock.epochs and clock.open
        if in_progress and not turns.has():  # garbage is collected by any thread
            clock.left_ns = clock.ledger.now()
            return
        turns.finished(self)
        if in_progress:
            clock.worked = clock.worked and turns.unused != clock.index
            clock.pause()

    def __del__(self, _ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ends():  # then even the names of modules are gone
            self._drop()


class _Following(_Training[T]):
    """An iteration beside another one that makes the steps: its waits are added to them."""

    __slots__ = ()

    def __next__(self) -> T:
        if get_ident() != self.thread:
            return self._next_elsewhere()
        clock = self._clock
        inside = clock.ledger.stack[-1] in (DATA_WAIT, FIRST_WAIT)  # what makes the steps asks itself
        self._alone = self._alone + 1 if self._step == clock.index and not inside else 0
        vacant = self._turns.leader is None and not self._superseded
        if vacant or self._alone > PATIENCE:
            self._lead()
            return next(self)
        self._ahead = self._ahead or not clock.open
        try:
            with WorkSpan(clock.ledger, FIRST_WAIT if clock.epoch_start else DATA_WAIT):
                told = clock.before_fetch is not None and not inside
                if told and clock.before_beside is not None:
                    clock.before_beside()
                batch = next(self._iterator)
                if told and clock.after_beside is not None:
                    clock.after_beside()
        except BaseException as exc:
            if isinstance(exc, StopIteration) and self._step != clock.index and not self._ahead:
                self._turns.unused = clock.index
            let_out(exc)
            raise
        self._step = clock.index
        clock.worked = clock.open
        return batch

    def __del__(self, _ends: Callable[[], bool] = sys.is_finalizing) -> None:
        """Leave the step in progress to the iteration that makes it."""
        if not _ends() and self._turns.has() and self._clock.open:
            self._let_go()


class _Validation(Generic[T]):
    """A watched validation loader: from its first batch to its last all time is validation."""

    def __init__(self, loader: Iterable[T], make: Callable[[], Iterator[T]], turns: Turns) -> None:
        self._turns = turns
        self._loader: Iterable[T] | None = loader
        self._batches = 0
        self._ledger = turns.clock.ledger
        self._ledger.enter(VALIDATION)
        self._mark()
        self._open = True
        # Without workers the first batch is made like all others.
        self._waiting = VALIDATION_START if attribute(loader, "num_workers", 0) else VALIDATION_WAIT
        with Span(self._ledger, VALIDATION_START):
            self._iterator = make()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            if not self._open or not self._turns.has():
                return self._next()
            waiting, self._waiting = self._waiting, VALIDATION_WAIT
            with Span(self._ledger, waiting):
                return self._next()
        except BaseException as exc:
            let_out(exc)
            raise

    def _next(self) -> T:
        try:
            batch = next(self._iterator)
            self._batches += 1
            return batch
        except BaseException as exc:
            self._leave()
            let_out(exc)
            raise

    def _leave(self) -> None:
        if self._open:
            self._open = False
            if self._turns.has():
                self._close()
            else:
                self._turns.owe(self._close)

    def _close(self) -> None:
        self._ledger.exit(VALIDATION)
        self._mark()
        loader, self._loader = self._loader, None
        self._turns.clock.evaluated(loader, self._batches)

    def _mark(self) -> None:
        ledger = self._ledger
        if ledger.device is not None:
            ledger.device.mark(ledger.stack[-1], ledger.last)

    def __del__(self, _ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ends():
            self._leave()
