"""Finds out which loaders a program trains on, and has them timed as `Monitor.watch` would.

The sign of training is the step of an optimizer on the thread that iterates. An iteration that is begun before anything
is known is remembered until there is one, and booked then. Under ``no_grad``, and without such a step until its end,
it is validation. A run starts with the first step of an optimizer, so a program that trains nothing records nothing.
Where optimizers step and no loader is ever asked, see `updates`. A program without any optimizer trains where it
computes gradients.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import Any

from ..engine.guard import Guard
from ..engine.monitor import Monitor, turns_of
from ..engine.options import Options
from ..engine.run import Run, are_loops_claimed
from ..engine.wiring import plain_run
from ..errors import StallmeterError
from ..timing.clock import StepClock
from ..timing.ledger import (
    DATA_WAIT,
    FIRST_WAIT,
    VALIDATION_START,
    VALIDATION_WAIT,
    WORKER_STARTUP,
    Ledger,
)
from ..timing.loop import Watched
from ..timing.turns import Turns
from ..timing.updating import UpdateSpan
from .hindsight import begin_validation, book_training, book_updates, book_validation
from .iteration import (
    Asking,
    Iteration,
    Timed,
    Undecided,
    Validating,
    alive,
    asked_here,
    begun_beside,
    has_enough_gradients,
    in_this_process,
    records_gradients,
)
from .known import Known, Stage
from .probed import Probed
from .renewed import Renewed
from .updates import NoLoader, PastUpdates, Updates
from .watching import watch

_log = logging.getLogger("stallmeter")
now = time.perf_counter_ns

WAITS = frozenset({DATA_WAIT, FIRST_WAIT, VALIDATION_START, VALIDATION_WAIT, WORKER_STARTUP})
"""In these somebody who is timed asks a loader: what that iterates in turn is no loop."""

MOST_TRIES = 8
"""So often a run is put together for a loop that proves to be none: it takes some hundredths of a second."""

FEW_BATCHES = 2
"""Fewer are a look at a batch, from which nothing is learnt."""


class Loop:
    """The training loop of one process, which nobody has told of.

    Args:
        options: Of the run.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.framework = "loop"
        """Name and version of what drives it, as far as that is known."""
        self.pid = os.getpid()
        self.run: Run | None = None
        """Put together when a loader is iterated, started with the first step of an optimizer."""
        self.monitor: Monitor | None = None
        """Of the run that has started."""
        self.fetching: int | None = None
        """The thread that waits for a batch of an iteration that is not decided."""
        self.updates = 0
        """Signs of training on the thread that iterates: steps of all optimizers; without any, gradients computed."""
        self.updating = False
        """Whether an optimizer's step that began on the loop's thread has not ended."""
        self.batches_elsewhere = False
        """Whether an optimizer was stepped on another thread than the one that iterates."""
        self.closed = False
        self._seen = False
        """Whether a loader was iterated that nobody else measures."""
        self._guard = Guard(lambda _: None)
        self._known = Known()
        self._undecided: list[weakref.ref[Iteration]] = []
        self._training: list[weakref.ref[Iteration]] = []
        self._validating: list[weakref.ref[Iteration]] = []
        self._probed = Probed()
        self._renewed = Renewed()
        self._tries = 0
        # Whoever holds it makes, starts or drops the run, or tells it of a loader before it starts. Nobody waits for
        # it: of two threads that train, the other one asks again at its next update, and what would be dropped is used.
        self._deciding = threading.Lock()
        self._alone = Updates()
        """Makes the steps where no loader does."""
        self._past = PastUpdates()
        self._turns: Turns | None = None
        self._heard_of_updates = False
        self._optimizer_span: UpdateSpan | None = None

    # -- the loop asks for an iterator ---------------------------------------------------------------------------------

    def begin(self, loader: Any, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return what the loop iterates in place of its loader's iterator.

        Args:
            loader: What is iterated.
            make: Makes its iterator; called once.
        """
        if self._is_not_ours():
            return make()
        grad = records_gradients()
        stage = self._guard("zero-code", self._expect, loader, grad)
        if stage is Stage.TRAINING:
            return self._train(loader, make)
        if stage is None:
            return make()
        if self.monitor is not None and stage is Stage.UNKNOWN:
            self._guard("zero-code", self._expect_one_batch, loader)
        began = now()
        iterator = self._unseen(make)
        kind = Validating if stage is Stage.VALIDATION else Undecided
        iteration = kind(self, loader, iterator, began, now(), grad)
        self._seen = True
        if kind is Undecided:
            self._undecided.append(weakref.ref(iteration))
        self._tell_training()
        return iteration

    def clock_here(self) -> StepClock | None:
        """Return the clock of the run that is recorded, for the thread whose turn it is to move it."""
        turns = self._turns
        if self.monitor is None or self.closed or turns is None or not turns.has():
            return None
        return turns.clock

    def ledger_here(self) -> Ledger | None:
        """Return that clock's ledger."""
        clock = self.clock_here()
        return None if clock is None else clock.ledger

    def _unseen(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        before, self.fetching = self.fetching, get_ident()
        try:
            return make()
        finally:
            self.fetching = before

    def _is_not_ours(self) -> bool:
        """Whether what begins is part of something that is timed already, or somebody else's."""
        turns, run = self._turns, self.run
        if self.closed or self.fetching == get_ident():
            return True
        if turns is not None and turns.has():
            stack = turns.clock.ledger.stack
            if len(stack) > 1 and stack[-1] in WAITS:
                return True
        if self.monitor is None or turns is None or turns.has():
            return are_loops_claimed(run)
        # Beside the loop, in another thread?
        return turns.clock.open or self._alone.make_steps or are_loops_claimed(run)

    def _expect(self, loader: Any, grad: bool) -> Stage:
        if self.monitor is None:
            if grad:
                self._if_nobody_decides(partial(self._prepare, loader))
            return Stage.UNKNOWN
        leader = self._leader()
        return self._known.expected(loader, grad=grad, in_its_midst=leader is not None and leader.loader is loader)

    def _expect_one_batch(self, loader: Any) -> None:
        leader = self._leader()
        if self.run is not None and leader is not None:
            self._renewed.begin(self.run, loader, leader.loader, by_updates=self._alone.make_steps)

    def _prepare(self, loader: Any) -> None:
        """Put a run together before anything is known: workers are probed from their start or not at all."""
        if self.monitor is not None:  # another thread has begun to train meanwhile
            return
        if self.run is None and self._tries < MOST_TRIES:
            self._tries += 1
            self._assemble()
        if self.run is not None:
            self._probed.prepare(self.run, loader)

    def _assemble(self, began_ns: int | None = None) -> None:
        try:
            self.run = plain_run(self.options, self.framework, began_ns, may_be_discarded=True)
        except (OSError, StallmeterError) as exc:
            _log.warning("stallmeter: nothing is recorded: %s", exc)
            self.closed = True
            return
        self._turns = turns_of(self.run)

    def _train(self, loader: Any, make: Callable[[], Iterator[Any]]) -> Iteration:
        made: list[Iterator[Any]] = []

        def keep() -> Iterator[Any]:
            made.append(self._unseen(make))
            return made[0]

        began = now()
        timed = self._watch(loader, "train").iterate_by(keep)
        iteration = Timed(self, loader, made[0], began, now(), True)
        iteration.timed = timed
        self._training.append(weakref.ref(iteration))
        return iteration

    def _watch(self, loader: Any, stage: str, *, begun: bool = False) -> Watched[Any]:
        assert self.run is not None
        assert self._turns is not None
        return watch(self.run, self._turns, loader, stage, begun=begun)

    # -- an optimizer steps --------------------------------------------------------------------------------------------

    def before_update(self, optimizer: object, called_ns: int, made_ns: int | None, *, timed: bool = True) -> None:
        """An optimizer is about to step.

        Args:
            optimizer: Which.
            called_ns: When it was asked to.
            made_ns: When the newest optimizer was made.
            timed: As for `UpdateSpan.begin`.
        """
        if not self._heard_of_updates:
            self._heard_of_updates = True
            self._alone.forget()
            self._past.forget()
        if self.closed:
            return
        if self._undecided or self._validating:
            self._guard("zero-code", self._decide)
        if self.monitor is None and self._alone.are_enough():
            self._guard("zero-code", self._if_nobody_decides, partial(self._adopt_updates, called_ns))
        if self.monitor is None:
            self.updating = True
            self._past.begin(optimizer, called_ns, now(), made_ns, timed=timed)
            return
        turns, span = self._turns, self._optimizer_span
        if span is not None and turns is not None and turns.has() and span.begin(timed=timed):
            self.updating = True
            self._alone.before()

    def after_update(self, optimizer: object) -> None:
        """An optimizer has stepped, since `updating`."""
        if self.monitor is None:
            self._past.end(optimizer, now())
            self.updating = False
            return
        turns, span = self._turns, self._optimizer_span
        if self.closed or span is None or turns is None or not turns.has() or not span.end():
            return
        self.updating = False
        self._count_update(turns.clock, optimizer)

    def _count_update(self, clock: StepClock, optimizer: object) -> None:
        self.updates += 1
        if clock.count_update(optimizer) and self.run is not None:
            self.run.tell_optimizer(optimizer)
        self._alone.after(optimizer, self.run)

    def after_backward(self, *, optimizers: bool) -> None:
        """Gradients were computed: a sign of training where no optimizer is ever heard of.

        Args:
            optimizers: Whether there are any: of these a step will be heard.
        """
        if self.closed or self._heard_of_updates:
            return
        if any(has_enough_gradients(iteration) for iteration in alive(self._undecided)):
            self._guard("zero-code", self._decide)
        elif self.monitor is None and not optimizers and self._alone.are_enough():
            self._guard("zero-code", self._if_nobody_decides, partial(self._adopt_updates, now()))
        turns = self._turns
        if self.monitor is None:
            ended_ns = now()
            self._past.begin(self, ended_ns, ended_ns, None)
            self._past.end(self, ended_ns)
        elif turns is not None and turns.has():
            self._alone.before()
            self._count_gradients(self)

    def _count_gradients(self, by: object) -> None:
        self.updates += 1
        self._alone.after(by, self.run)

    def _adopt_updates(self, called_ns: int) -> None:
        """Time the loop by its updates from now on, and those that it has made: nobody here asks a loader for batches.

        Args:
            called_ns: When the present update was asked for.
        """
        began_ns, past = self._past.take()
        if self._is_not_ours():
            return
        if self.run is not None:
            began_ns = None  # it was put together for a loader, and its ledger was begun then
        else:
            self._assemble(began_ns)
        run, turns = self.run, self._turns
        if self.monitor is not None or run is None or turns is None or not turns.take():
            return
        run.loaders.ask_none()
        steps = partial(iter, self._watch(NoLoader(), "train", begun=True))
        if began_ns is None:
            self._alone.begin(run.clock, steps())
        else:
            made = partial(self._count_update, run.clock) if self._heard_of_updates else self._count_gradients
            book_updates(run.clock, self._alone, steps, past, made, own_slot=run.clock.ledger.own_slot)
        self._start(run, called_ns)

    def _decide(self) -> None:
        """What has been asked for batches on this thread is what is trained on."""
        self._end_validations()
        asked = [iteration for iteration in alive(self._undecided) if iteration.fetches]
        found = asked_here(asked)
        if not found:
            self.batches_elsewhere = self.batches_elsewhere or bool(asked)
            return
        found.sort(key=lambda iteration: (not self._probed.looks_into(iteration.loader), iteration.fetches[0].asked))
        self._if_nobody_decides(partial(self._adopt, found))

    def _if_nobody_decides(self, call: Callable[[], None]) -> None:
        """Make, start or drop the run, unless another thread is doing that: nobody waits for it."""
        if self._deciding.acquire(blocking=False):
            try:
                call()
            finally:
                self._deciding.release()

    def _adopt(self, found: list[Iteration]) -> None:
        """Time iterations as training from now on, and from their beginning."""
        self._alone.end()
        late = self.run is None
        if late:
            self._assemble()
        run, turns = self.run, self._turns
        adopted = {id(iteration) for iteration in found}
        self._undecided = [known for known in self._undecided if id(known()) not in adopted]
        if run is None or turns is None or not turns.take():  # another thread may be moving the ledger
            for iteration in found:
                iteration.__class__ = Timed
            return
        for iteration in found:
            self._known.remember(iteration.loader, Stage.TRAINING if iteration.grad else Stage.MIXED)
            iteration.updates = self.updates
            if late:  # there was no ledger then
                iteration.began = iteration.made = run.clock.ledger.origin
                iteration.fetches = iteration.fetches[-1:]
        book_training(run.clock, partial(self._watch, begun=True), found)
        self._probed.settle(run, found, self._leader())
        self._training += [weakref.ref(iteration) for iteration in found]
        if self.monitor is None:
            self._start(run)

    def _start(self, run: Run, since_ns: int | None = None) -> None:
        ledger, own_slot = run.clock.ledger, run.clock.ledger.own_slot
        ledger.enter(own_slot, since_ns)
        try:
            self.monitor = Monitor.of(run, turns=self._turns)
            self._optimizer_span = UpdateSpan(run.clock)
            self._probed.forget()
            self._past.forget()
            run.start()
        finally:
            ledger.exit(own_slot)

    # -- another iteration beside the training -------------------------------------------------------------------------

    def _tell_training(self) -> None:
        """Have the training ask, before its next batch, what has become of an iteration that began in its midst."""
        for iteration in alive(self._training):
            if type(iteration) is Timed:
                iteration.__class__ = Asking

    def before_batch(self, training: Iteration) -> None:
        """The training goes on, and beside it something has begun that may be going on, too."""
        self._guard("zero-code", self._settle, training)

    def _settle(self, training: Iteration) -> None:
        self._end_validations()
        beside = begun_beside(training, alive(self._undecided))
        if beside:
            self._if_nobody_decides(partial(self._adopt, beside))

    def begin_validation(self, iteration: Iteration) -> None:
        """The first batch of a validation is asked for."""
        iteration.__class__ = Timed
        run = self.run
        if run is None or self._turns is None or self.closed or not self._turns.take():
            return
        if run.clock.ledger.last > iteration.began:
            iteration.began = iteration.made = now()
        begin_validation(run.clock, partial(self._watch, begun=True), iteration)
        iteration.fetches.clear()
        self._validating.append(weakref.ref(iteration))
        self._tell_training()

    def _end_validations(self) -> None:
        """The training goes on: what is still being validated on is asked for a batch now and then."""
        for iteration in alive(self._validating):
            if iteration.thread != get_ident():
                continue
            iteration.timed = iteration.iterator  # what timed it closes its span
            self._known.remember(iteration.loader, Stage.MIXED)
            iteration.__class__ = Undecided
            if not any(known() is iteration for known in self._undecided):
                self._undecided.append(weakref.ref(iteration))
        self._validating = [known for known in self._validating if type(known()) is Timed]

    # -- an iteration is over ------------------------------------------------------------------------------------------

    def left(self, iteration: Iteration) -> None:
        """An iteration has come to its end, or nobody has it any more. On any thread."""
        if self.closed or not in_this_process(self):
            return
        if type(iteration) is Undecided:
            iteration.__class__ = Timed
            self._guard("zero-code", self._leave_undecided, iteration)
        elif iteration.exhausted is False and self.monitor is not None:
            iteration.exhausted = True
            if iteration.updates == self.updates and self._known.stage(iteration.loader) is Stage.TRAINING:
                self._known.remember(iteration.loader, Stage.MIXED)

    def _leave_undecided(self, iteration: Iteration) -> None:
        ended = now()
        run, turns = self.run, self._turns
        enough = iteration.exhausted or len(iteration.fetches) >= FEW_BATCHES
        if enough and iteration.fetches:
            self._known.learn_validation(iteration.loader)
        if self.monitor is None:
            others = [other for other in alive(self._undecided) if other is not iteration]
            if not others and run is not None:
                self._if_nobody_decides(partial(self._drop, run))
        elif run is not None and turns is not None and turns.has() and iteration.fetches:
            if run.clock.ledger.last > iteration.began:
                pass  # something else was timed meanwhile
            elif enough:
                book_validation(run.clock, partial(self._watch, begun=True), iteration, ended)
            elif iteration.thread == get_ident() and iteration.fetches[-1].grad:
                self._renewed.left(run, iteration, by_updates=self._alone.make_steps)
        self._undecided = [known for known in self._undecided if known() not in (None, iteration)]

    def _drop(self, run: Run) -> None:
        if self.monitor is None:  # else another thread has begun to train meanwhile
            self._discard(run)

    def _discard(self, run: Run) -> None:
        run.discard()
        self.run = self._turns = None
        self._probed.forget()

    def _leader(self) -> Any:
        turns = self._turns
        return None if turns is None else turns.leader

    def why_nothing(self) -> str | None:
        """Return why nothing was recorded of this process; None when something was, or no loader was iterated."""
        if self.monitor is not None or not self._seen or not in_this_process(self):
            return None
        if self.batches_elsewhere:
            return "its DataLoader is iterated in a thread of its own, where a wait is not the loop's"
        return "while its DataLoaders were iterated, no optimizer of torch made a step on the same thread"

    def close(self) -> None:
        """Time nothing any more, and end the run."""
        self.closed = True
        run = self.run
        self._probed.forget()
        if run is None or not in_this_process(self):
            return
        if self.monitor is None:
            self._discard(run)
        else:
            self.monitor.close()
