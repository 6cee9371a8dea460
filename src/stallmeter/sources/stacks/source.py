"""The source of looks at the training thread: decides what is looked into, and adds up what was seen.

Looking begins before there is a verdict: with the start, where a bucket takes a share of the time from which on a rule
may name it, and where something rare is met while it is open. With `ENOUGH` looks at a place it ends there, but for a
few more each time that the place has taken half as much again.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from ...machine.own_threads import Crowd, thread_ran_ns
from ...records import BUCKETS, CodeLook, LockTrial
from ...records.code import (
    BEFORE_MODEL,
    BETWEEN_EPOCHS,
    BUCKET_OF,
    EPOCH_STARTS,
    HELPERS,
    IN_THE_LOOP,
    LONG_STEPS,
    STEPS,
    WARMUP,
)
from ...records.code import DATA_WAIT as DATA_WAIT_BUCKET
from ...timing.clock import StepClock
from ...timing.ledger import (
    CALLBACKS,
    CHECKPOINT,
    DATA_WAIT,
    FIRST_WAIT,
    H2D,
    LOGGING,
    OPTIMIZER,
    OTHER,
    START,
    VALIDATION,
    WORKER_STARTUP,
)
from ...window import Window
from ..code.asked import at_epoch_starts, in_batches, in_sampler
from ..code.beside import (
    after_gradients,
    before_call,
    before_model,
    before_training,
    below_judges,
    below_training_step,
    beside,
    between,
    model_and_gradients_s,
    told_with_helpers,
    without_gradients,
)
from ..code.collectives import buffers_s, collectives, in_collectives
from ..code.derivatives import in_derivatives, repeated_derivatives
from ..code.evaluating import evaluations, without_evaluations
from ..code.fold import Seen, fold
from ..code.handlers import Handlers
from ..code.hooks import in_functions, in_hooks_of_gradients
from ..code.penalties import penalties
from ..code.reading import Reading
from ..code.recomputed import recomputed
from ..code.tracing import tracing_s
from ..code.whose import Whose
from ..code.within import in_modules
from .helpers import Helpers
from .lock_trial import Passed, SwitchTrial
from .others import awaits_thread
from .rounds import Rounds
from .sampler import LONG_STEP, STEADY, WORK, Look, StackSampler, Wanted
from .tally import Tally, items_of

ENOUGH = 200
"""Looks into one place: a share is then known to 7 points, two standard errors."""

LEAST = 8
"""Fewer looks say nothing."""

ASKED_SHARE = 0.03
"""Share of the time from which on a place is looked into: rules name it from 5 % on."""

ASKED_S = 0.1
"""Less than this in all is not looked into: rules name half a second."""

WORK_SHARE = 0.5
"""The same for the steps' own work, which is no loss: rules name it from 70 % on."""

FIRST_STEPS, SETTLED = 16, 2
"""Steps are steady after so many, and after so many times those that took longer."""

STARTING_S = 600.0
"""Steps that are not steady by then are looked at like others."""

SHOWN_STACKS = 60
"""Stacks that are kept of a place: it is told of a dozen times."""

GROWN = 1.25
"""A place is told of again when there are so many times the looks that were told of."""

STALE_S = 10.0
"""Or after so long, where there are any more at all."""

MEDIAN_TICKS = 8
"""So rarely the median step is asked for, later in a run: it sorts thousands."""

CROWDED_CPUS = 0.2
"""CPUs of other threads of the program from which on they may hold up the training at the lock; our choice."""

SHORT_S = 0.2
"""Steps of which three take less are missed by glances now and then."""

HANDLERS = frozenset(BUCKETS[bucket] for bucket in (CALLBACKS, CHECKPOINT, LOGGING))
"""Buckets of what the training calls beside itself."""

DRIFT = "step-time-drift"

_RULE = {bucket: rule for rule, bucket in reversed(BUCKET_OF.items())} | {
    "start": "slow-start",
    BEFORE_MODEL: "input-bound",
    EPOCH_STARTS: "slow-function",
    BETWEEN_EPOCHS: "slow-function",
}

Place = tuple[str, str, str]
"""Place, bucket and part of a look."""


class LoopLooks:
    """The source of `CodeLook` of the training thread. Begins to look when it is made.

    Args:
        clock: Of the training thread.
        window: What is known of the steps.
        own_slot: Of the ledger: stallmeter's own hooks.
        whose: Names functions; by default those of this process.
    """

    name = "loop looks"

    def __init__(self, clock: StepClock, window: Window, own_slot: int, whose: Whose | None = None) -> None:
        self._clock = clock
        self._ledger = clock.ledger
        self._window = window
        self._own_slot = own_slot
        self._whose = whose
        self._reading: Reading | None = None
        self._sampler = StackSampler(clock, own_slot)
        self._tallies: dict[tuple[Place, int], Tally] = {}
        """By place and slot of the ledger."""
        self._rounds = Rounds()
        self._crowd, self._lock_trial = Crowd(self._ledger.thread), SwitchTrial()
        self._is_crowded = False
        self._awaited, self._beside = Helpers("", lambda: clock.index), Helpers(STEPS, lambda: clock.index)
        self._first: list[Look] = []
        """Into steps that may be no steady ones."""
        self._first_told = 0
        self._outside: deque[tuple[int, Look]] = deque()
        """With the epochs so far: into what lies between two of them, if there is another one."""
        self._told: dict[Place, tuple[int, float]] = {}
        """Of each place that was told of: how many looks, and when."""
        self._asked: set[str] = set()
        self._primary: str | None = None
        self._quota: dict[str, int] = {}
        """Looks that are enough for a bucket, where one look was not."""
        self._wanted = Wanted()
        self._before: tuple[list[int], int] = ([], self._ledger.origin)
        self._ticks = 0
        self._sampler.start()

    # -- what to look into ---------------------------------------------------------------------------------------------

    def request(self, rule: str, steps: int) -> None:  # noqa: ARG002 - a Look's signature
        """Have what a primary cause names looked into once more.

        Args:
            rule: Primary cause of the run.
            steps: Steps so far.
        """
        drift = self._window.steps.drift
        if rule == DRIFT and DRIFT not in self._asked and drift is not None:
            self._look_anew(drift.bucket)
        if rule != self._primary and self._primary is not None:
            bucket = BUCKET_OF.get(rule)
            if bucket and rule not in self._asked and self._count(bucket) >= ENOUGH:
                self._quota[bucket] = self._quota.get(bucket, ENOUGH) + ENOUGH
        self._asked.add(rule)
        self._primary = rule

    def _look_anew(self, bucket: str) -> None:
        """Forget what was seen of a bucket: it has become another."""
        self._take()
        for key in [key for key in self._tallies if self._ledger.slots[key[1]][0] == BUCKETS.index(bucket)]:
            del self._tallies[key]
            self._rounds.forget(key[0])

    def _count(self, bucket: str) -> int:
        return sum(tally.count for (place, _), tally in self._tallies.items() if place[1] == bucket)

    def _decide(self, first_steps: bool) -> Wanted:
        acc, now = self._ledger.peek(), self._ledger.now()
        before, then = self._before
        self._before = acc, now
        grown = [ns - old for ns, old in zip(acc, [*before, *[0] * (len(acc) - len(before))], strict=True)]
        passed, elapsed = max(1, now - then), max(1, now - self._ledger.origin)
        work = sum(grown[slot] for slot in WORK) / passed
        slots: set[int] = set()
        enough: set[int] = set()
        again: dict[Place, bool] = {}
        for slot, (bucket, _) in enumerate(list(self._ledger.slots)[: len(acc)]):
            place = self._place(slot, STEADY)
            if place is None or bucket == START:  # which comes once: its looks get rarer instead
                continue
            if self._has_enough(place) or (bucket == OTHER and len(self._outside) >= ENOUGH):
                if place not in again:
                    again[place] = self._is_looked_at_again(place, acc)
                (slots if again[place] else enough).add(slot)
            elif place[1] in (EPOCH_STARTS, BETWEEN_EPOCHS):
                continue  # they are open for long, and met by glances
            elif slot in WORK:
                if work >= WORK_SHARE and not first_steps:
                    slots.add(slot)
            elif acc[slot] >= ASKED_S * 1e9:
                share = max(grown[slot] / passed, acc[slot] / elapsed)
                slots.update({slot} if share >= ASKED_SHARE else ())
        long_ones = not self._has_enough(("loop", LONG_STEPS, ""))
        median_ns, often = self._long_steps()
        return Wanted(
            slots=frozenset(slots),
            first_steps=first_steps,
            enough=frozenset(enough),
            median_ns=median_ns,
            long_ones=long_ones,
            crowded=self._is_crowded,
            short_interval=self._lock_trial.short,
            often=often and long_ones,
        )

    def _is_looked_at_again(self, place: Place, acc: Sequence[int]) -> bool:
        if place[1] in (EPOCH_STARTS, BETWEEN_EPOCHS):
            return False
        taken_ns = sum(ns for slot, ns in enumerate(acc) if self._place(slot, STEADY) == place)
        tallies = {slot: tally for (there, slot), tally in self._tallies.items() if there == place}
        return self._rounds.wants(place, taken_ns, tallies)

    def _has_enough(self, place: Place) -> bool:
        quota = self._quota.get(place[1], ENOUGH)
        return sum(tally.count for (there, _), tally in self._tallies.items() if there == place) >= quota

    def _long_steps(self) -> tuple[int | None, bool]:
        every = min(MEDIAN_TICKS, 1 + self._ticks // MEDIAN_TICKS)
        if self._ticks % every and self._wanted.median_ns is not None:
            return self._wanted.median_ns, self._wanted.often
        body = self._window.steps.body_s
        if body is None or body.count < FIRST_STEPS:
            return None, False
        found = self._window.steps.outliers(3.0)
        training_s = self._window.ledger.training_s
        share = 0.0 if found is None or not training_s else found.excess_s / training_s
        return int(body.median * 1e9), share >= ASKED_SHARE and body.median < SHORT_S / 3

    def _are_first(self) -> bool:
        """Whether the steps are not known to be steady."""
        index = self._clock.index
        if (self._ledger.now() - self._ledger.origin) / 1e9 > STARTING_S and index:
            return False
        warm_up = self._window.steps.warm_up
        return warm_up is None or index < max(FIRST_STEPS, SETTLED * warm_up.steps)

    # -- what was seen -------------------------------------------------------------------------------------------------

    def sample(self, time_s: float) -> Sequence[CodeLook | LockTrial]:
        """Return what there is to tell since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        first_steps = self._wanted.first_steps and self._are_first()
        self._take()
        if self._wanted.first_steps and not first_steps:
            self._settle()
        tried = self._try_lock(first_steps, time_s)
        self._wanted = self._sampler.wanted = self._decide(first_steps)
        self._ticks += 1
        told = [look for place, tallies in self._places().items() for look in self._tell(place, tallies, time_s)]
        return [
            *tried,
            *told,
            *(one for helpers in (self._awaited, self._beside) for one in self._tell_of_helpers(helpers, time_s)),
        ]

    def _try_lock(self, first_steps: bool, time_s: float) -> Sequence[LockTrial]:
        """Go on with finding out whether the training waits for the lock that other threads of the program hold."""
        self._is_crowded = (self._crowd.cpus() or 0.0) >= CROWDED_CPUS
        wanted = self._is_crowded and not first_steps
        ran_ns = thread_ran_ns(self._ledger.thread) if wanted else None
        acc = self._ledger.peek()
        body_ns = sum(acc[slot] for slot in WORK if slot < len(acc))
        # What it runs elsewhere counts as well: rather too little than too much is left that it stood still.
        stood_ns = None if ran_ns is None else body_ns - ran_ns
        now = Passed(self._clock.index, body_ns + acc[DATA_WAIT], stood_ns)
        return self._lock_trial.turn(now, wanted=wanted, time_s=time_s)

    def close(self) -> None:
        """Look no more."""
        self._sampler.end()

    def _take(self) -> None:
        looks = self._sampler.looks
        while looks:
            look = looks.popleft()
            if look.phase >= 0 and look.slot in WORK:
                self._first.append(look)
            elif self._ledger.slots[look.slot][0] == OTHER:
                self._outside.append((self._clock.epochs, look))
            else:
                self._add(look, look.phase)
        while self._outside and self._outside[0][0] < self._clock.epochs:
            self._add(self._outside.popleft()[1], STEADY)

    def _settle(self) -> None:
        """The steps are steady: what was seen of the first ones is either part of the start or not."""
        for look in self._first:
            self._add(look, self._settled_phase(look))
        self._first = []

    def _settled_phase(self, look: Look) -> int:
        warm_up = self._window.steps.warm_up
        return look.phase if warm_up is not None and look.phase < warm_up.steps else STEADY

    def _add(self, look: Look, phase: int) -> None:
        place = self._place(look.slot, phase)
        if place is not None:
            bucket = self._ledger.slots[look.slot][0]
            if not self._rounds.add(place, look, bucket):
                self._tallies.setdefault((place, look.slot), Tally(bucket)).add(look)
            in_steps = place[1] in (STEPS, LONG_STEPS)
            if awaits_thread(look.stack) and (
                place[1] == DATA_WAIT_BUCKET or (in_steps and self._window.loader.asks_none)
            ):
                self._awaited.add(look)
            elif in_steps:
                self._beside.add(look)

    def _place(self, slot: int, phase: int) -> Place | None:
        bucket, name = self._ledger.slots[slot]
        if bucket == START:
            return "startup", "start", ""
        if bucket in WORK:
            if phase >= 0:
                return "startup", WARMUP, ""
            return "loop", LONG_STEPS if phase == LONG_STEP else STEPS, ""
        if bucket == WORKER_STARTUP or slot == FIRST_WAIT:
            return "loop", EPOCH_STARTS, ""
        if bucket == OTHER:
            return "loop", BETWEEN_EPOCHS, ""
        if bucket == DATA_WAIT:
            return "loop", DATA_WAIT_BUCKET, ""
        if slot == self._own_slot or bucket not in (CALLBACKS, LOGGING, CHECKPOINT, VALIDATION):
            return None
        return "loop", BUCKETS[bucket], (name or "") if bucket in (CALLBACKS, LOGGING) else ""

    def _places(self) -> Mapping[Place, list[Tally]]:
        found: dict[Place, list[Tally]] = defaultdict(list)
        for (place, slot), tally in self._tallies.items():
            found[place].append(tally)
            if DRIFT in self._asked and place[1] == STEPS:
                found["loop", BUCKETS[slot], ""].append(tally)
        if len(self._first) < GROWN * self._first_told:  # to add them up takes the interpreter's lock for milliseconds
            return found
        self._first_told = len(self._first)
        first: dict[Place, Tally] = defaultdict(Tally)
        for look in self._first:
            place_now = self._place(look.slot, self._settled_phase(look))
            if place_now is not None:
                first[place_now].add(look)
        for place, tally in first.items():
            found[place].append(tally)
        return found

    def _tell_of_helpers(self, helpers: Helpers, time_s: float) -> Iterable[CodeLook]:
        helpers.count_runs()
        if not self._is_news((HELPERS, helpers.bucket, ""), helpers.count, time_s):
            return ()
        look = helpers.tell(self._read(), time_s)
        return () if look is None else (look,)

    def _is_news(self, place: Place, count: int, time_s: float) -> bool:
        """Whether there is more to tell of a place than was told; then it counts as told."""
        told, told_s = self._told.get(place, (0, 0.0))
        grown = count >= GROWN * told or count < told
        if count < LEAST or count == told or not (grown or time_s - told_s >= STALE_S):
            return False
        self._told[place] = count, time_s
        return True

    def _read(self) -> Reading:
        if self._reading is None:
            self._reading = Reading(self._whose or Whose.of_program())
        return self._reading

    def _tell(self, place: Place, tallies: Sequence[Tally], time_s: float) -> Iterable[CodeLook]:
        count = sum(tally.count for tally in tallies)
        if not self._is_news(place, count, time_s):
            return
        reading = self._read()
        copied = reading.seen(items_of(tally for tally in tallies if tally.bucket == H2D))
        seen = [*copied, *reading.seen(items_of(tally for tally in tallies if tally.bucket != H2D))]
        if place[1] == DATA_WAIT_BUCKET:
            yield self._look(place, count, seen, in_sampler(seen))
            if batches := in_batches(seen):
                yield self._look((place[0], IN_THE_LOOP, place[2]), count, seen, batches)
        elif place[1] == EPOCH_STARTS:
            yield self._look(place, count, seen, at_epoch_starts(seen))
        elif place[1] in HANDLERS:
            yield self._look(place, count, seen, [*map(self._handlers().own, seen)])
        else:
            yield self._look(place, count, seen, seen, copied)
            asks_none = place[1] in (STEPS, LONG_STEPS) and self._window.loader.asks_none
            before = before_call(without_evaluations([*seen, *self._usual(place)])) if asks_none else None
            if before is not None:
                part = "" if place[1] == STEPS else place[1]
                yield self._look((place[0], BEFORE_MODEL, part), count, seen, before)

    def _handlers(self) -> Handlers:
        first = ((look.stack, 0) for look in self._first)
        steps = (tally for (place, _), tally in self._tallies.items() if place[1] in (STEPS, WARMUP))
        return Handlers(self._read().seen(chain(first, items_of(steps))))

    def _usual(self, place: Place) -> Sequence[Seen]:
        """Return what was seen of usual steps, as no time: by its lines the parts of a long one are told.

        A step that is long for what it does once it has its gradients may never have been met before that.
        """
        if place[1] != LONG_STEPS:
            return ()
        usual = (tally for (known, _), tally in self._tallies.items() if known[1] == STEPS)
        return [replace(one, wall_s=0.0) for one in self._read().seen(items_of(usual))]

    def _look(
        self, place: Place, count: int, seen: Sequence[Seen], told: Sequence[Seen], copied: Sequence[Seen] = ()
    ) -> CodeLook:
        """Return what was seen at a place, of which only a part may be told.

        What is seen while a framework copies a batch is a hook of the user's that prepares it.
        """
        folded = fold(told)
        in_steps = (*seen, *self._usual(place)) if place[1] in (STEPS, LONG_STEPS) else ()
        evaluated = evaluations(in_steps)
        own_work = [below_judges(below_training_step(one)) for one in without_evaluations(in_steps)]
        updates = self._ledger.acc[OPTIMIZER] > 0
        on_weights = penalties(own_work, optimizer=updates)
        told_apart = {id(one) for one, _ in on_weights}
        own_work = [one for one in own_work if id(one) not in told_apart]
        hooks = [one for one in beside(copied, modules=True) if not one.stack[-1].sleeps] if own_work else []
        meetings = in_collectives(own_work)
        later = _joined(after_gradients(own_work, optimizer=updates), without_gradients(own_work))
        after = [*later, *in_hooks_of_gradients(own_work)]
        model_s, gradients_s = model_and_gradients_s(own_work)
        beside_model, after_model = told_with_helpers(own_work, fold(beside(own_work)).spots, fold(after).spots)
        return CodeLook(
            time_s=time.time(),
            place=place[0],
            rule=_RULE.get(place[1], DRIFT),
            bucket=place[1],
            part=place[2],
            method="samples",
            seen=count,
            wall_s=sum(one.wall_s for one in seen),
            spots=folded.spots,
            stacks=folded.stacks[:SHOWN_STACKS],
            between=fold(between(own_work, optimizer=updates)).spots,
            model_s=model_s,
            gradients_s=gradients_s,
            evaluated=fold(evaluated).spots,
            functions=fold(in_functions(in_steps)).spots,
            in_modules=in_modules(own_work),
            penalties=fold(penalty for _, penalty in on_weights).spots,
            derivatives=fold(repeated_derivatives(own_work)).spots,
            derivatives_s=sum(one.wall_s for one in in_derivatives(own_work)),
            tracing_s=tracing_s(in_steps),
            recomputed_s=sum(one.wall_s for one in recomputed(in_steps)) if in_steps else None,
            collectives_s=sum(one.wall_s for one in meetings),
            buffers_s=buffers_s(own_work) if in_steps else None,
            meets=fold(collectives(meetings)).spots,
            beside=beside_model,
            before=fold(_joined(before_model(own_work), hooks)).spots,
            apart=fold(_joined(before_training(own_work), hooks)).spots,
            after=after_model,
        )


def _joined(one: Sequence[Seen], other: Sequence[Seen]) -> list[Seen]:
    """Return what is in either, each once."""
    known = {id(seen) for seen in one}
    return [*one, *(seen for seen in other if id(seen) not in known)]
