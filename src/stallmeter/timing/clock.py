"""Step boundaries: marks on the training thread, StepRecords on another one.

A mark is a copy of the ledger's cumulative counters. The training thread pays for the copy and an append; the
differences between marks, which are the steps, are taken by whoever drains the clock. A mark that is dropped because
nobody drained in time therefore costs the detail of a step, never its time in the ledger.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ..records import BUCKETS, HINDSIGHT, StepRecord
from ..records.rows import is_kept
from .ledger import (
    DATA_WAIT,
    FIRST_WAIT,
    LOOP,
    OPTIMIZER,
    VALIDATION,
    VALIDATION_START,
    VALIDATION_WAIT,
    Ledger,
    WorkSpan,
    validation_ns,
)
from .sizes import Sizes

_PARTS = tuple((i, f"{name}_s") for i, name in enumerate(BUCKETS) if name not in (*HINDSIGHT, "data_wait"))

CAPACITY = 65_536
"""Marks kept between two drains: over a minute of 1 ms steps."""


class Mark(NamedTuple):
    """The ledger at a step boundary, and what is known of the step that ends there."""

    step: bool
    """False for the time between epochs, which belongs to no step."""
    at_ns: int
    acc: list[int]
    number: int
    epoch: int
    optimizer_step: int | None
    tracker_step: int
    samples: int | None
    epoch_start: bool
    ready: int | None
    head_ready: bool | None


class ShortMark(NamedTuple):
    """The end of a step since whose predecessor only three slots have moved: of most steps of a plain loop."""

    base: tuple[Any, ...]
    """A `Mark` with what has not changed since, of the same epoch."""
    at_ns: int
    number: int
    top: int
    """Slot of the loop's body."""
    spent_ns: int
    """What stands in that slot."""
    waited_ns: int
    """What stands in the slot of the data wait."""
    updated_ns: int
    """What stands in the slot of the optimizer."""
    optimizer_step: int | None
    samples: int | None


SHORT = len(ShortMark._fields)


@dataclass(frozen=True, slots=True)
class Drained:
    """What happened since the last drain."""

    steps: tuple[StepRecord, ...]
    """Those that were asked for."""
    count: int
    """All steps, the lost ones left out."""
    samples: int | None
    """Items in all of them; None when the size of one was not known."""
    lost: int
    """Steps whose marks were dropped."""


class StepClock:
    """Cuts the ledger into steps. A step runs from asking for a batch to asking for the next.

    Adapters set `epoch`, `optimizer_step`, `tracker_step` and `samples` of the step in progress, and `worked` once its
    batch was used: a fetch without work (the end of a loader, a batch skipped) opens no new step.

    Args:
        ledger: The ledger that the same thread moves.
        loop: Slot of time outside every span while steps run.
        idle: The same between epochs.
        capacity: Marks kept until they are drained.
        unix_ns: Returns unix time in ns, read once.
    """

    __slots__ = (
        "_drained_index",
        "_first_optimizer",
        "_measured",
        "_previous",
        "_previous_ns",
        "_sizes",
        "_unix_ns",
        "after_beside",
        "after_fetch",
        "at_boundary",
        "before_beside",
        "before_fetch",
        "epoch",
        "epoch_start",
        "epochs",
        "evaluated",
        "head_ready",
        "idle",
        "index",
        "ledger",
        "left_at",
        "left_ns",
        "loop",
        "marked",
        "marks",
        "on_update",
        "open",
        "optimizer_step",
        "ready",
        "samples",
        "tracker_step",
        "worked",
    )

    def __init__(
        self,
        ledger: Ledger,
        *,
        loop: int = LOOP,
        idle: int = LOOP,
        capacity: int = CAPACITY,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.ledger = ledger
        self.loop = loop
        self.idle = idle
        self.index = self.epoch = self.epochs = 0
        self.optimizer_step: int | None = None
        self._first_optimizer: int | None = None
        self.tracker_step = 0
        self.samples: int | None = None
        self.ready: int | None = None
        self.head_ready: bool | None = None
        self.epoch_start = True
        self.before_fetch: Callable[[], tuple[int | None, bool | None]] | None = None
        """Called when a batch is asked for; says how many were ready and whether the next one was."""
        self.after_fetch: Callable[[], bool | None] | None = None
        """Called when the batch has come; says whether it had been ready, None when that is not known."""
        self.before_beside: Callable[[], None] | None = None
        """Called, where the others are, when a loader beside the one that makes the steps is asked for a batch."""
        self.on_update: Callable[[Any], None] | None = None
        """Called with an optimizer of torch that has made its step, by who hears of all of them, if anybody does."""
        self.after_beside: Callable[[], None] | None = None
        """Called when that batch has come."""
        self.evaluated: Callable[[object, int], None] = lambda *_: None
        """Called with a loader, and how many batches were taken of it, when a validation is over."""
        self.at_boundary: Callable[[], None] | None = None
        """Called between two steps, and once more with `open` False when the loop stops asking for batches."""
        self.open = False
        self.worked = False
        self.left_ns: int | None = None
        """When the loop was left, where another thread was the first to see it: the next `pause` is for then."""
        # Appended by the training thread, popped by the sampler's: a deque does either in one piece under the GIL, and
        # each mark is a tuple that nobody changes. One that is full drops its oldest, see `Drained.lost`.
        self.marks: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        """What `drain` has not seen: a `Mark` in full, or a `ShortMark`."""
        self.marked: tuple[Any, ...] = ()
        """The newest in full."""
        self.left_at: int | None = None
        """`Ledger.last` where nothing but batches and updates was booked since that mark, so that short ones may refer
        to it: as an iteration or an optimizer's span left it. None when there was anything else.
        """
        self._unix_ns = unix_ns() - ledger.origin
        self._previous: Any = [0] * len(ledger.acc)
        self._previous_ns = ledger.origin
        self._drained_index = 0
        self._measured: set[int] = set()
        self._sizes = Sizes()

    def begin_at(self, at_ns: int) -> None:
        """Have clock and ledger begin earlier (ns): with what went on before anybody knew that it is to be timed."""
        self.ledger.begin_at(at_ns)
        self._previous_ns = at_ns

    def begin(self, at_ns: int) -> None:
        """A batch is asked for at ``at_ns``; the ledger must be settled up to it."""
        if self.worked:
            self._mark(at_ns, True)
            self.index += 1
            self.worked = self.epoch_start = False
            self.samples = self.ready = self.head_ready = None
            if self.at_boundary is not None:
                self.at_boundary()
        elif not self.open:
            self._mark(at_ns, False)
            self.open = True
            self.ledger.stack[0] = self.loop

    def new_epoch(self, epoch: int) -> None:
        """The next batch is the first of an epoch."""
        self.epoch = epoch
        self.epochs += 1
        self.epoch_start = True

    def pause(self) -> None:
        """The loop stops asking for batches (end of an epoch, of training, an exception): close what is open."""
        left_ns, self.left_ns = self.left_ns, None
        now = self.ledger.base(self.idle, left_ns)
        if self.ledger.device is not None:
            self.ledger.device.leave(self.worked, now)
        if not self.open:
            return
        self.begin(now)
        self.open = False
        self._mark(now, False)
        if self.at_boundary is not None:
            self.at_boundary()

    def unix_s(self, at_ns: int) -> float:
        """Unix time of a ledger time; anchored once, so a stepped wall clock changes nothing."""
        return (at_ns + self._unix_ns) / 1e9

    def count_update(self, optimizer: Any) -> bool:
        """An optimizer of torch has made its step: of several the first one's are counted.

        Returns:
            Whether it is the first step of all.
        """
        is_new = self._first_optimizer is None
        if is_new:
            self._first_optimizer, self.optimizer_step = id(optimizer), 0
        if id(optimizer) == self._first_optimizer:
            self.optimizer_step = (self.optimizer_step or 0) + 1
        if self.on_update is not None:
            self.on_update(optimizer)
        return is_new

    @property
    def pending(self) -> int:
        """Marks since the last drain: about as many steps."""
        return len(self.marks)

    def typical_s(self) -> float:
        """Median time between the boundaries that nobody has drained; 0 when there are none."""
        # Copied in one piece under the GIL, as the training thread goes on appending.
        times = [mark[1] for mark in self.marks.copy()]
        return statistics.median(b - a for a, b in pairwise(times)) / 1e9 if len(times) > 1 else 0.0

    def drain(self, every: int = 1, slower_than_s: float = math.inf, *, first: int = 0) -> Drained:
        """Turn the marks since the last drain into records. For one thread only, not the training thread.

        Args:
            every: Make a record of the steps of one row in so many, see `is_kept`, and of the first of each epoch. A
                rank that thins more keeps some of the steps that another keeps, and no others.
            slower_than_s: Make one of every step that took longer, too, or had fewer items; marked as an outlier.
            first: Make one of each of so many first steps of the run.
        """
        steps: list[StepRecord] = []
        count = lost = 0
        samples: int | None = 0
        slower_than_ns = slower_than_s * 1e9
        marks, done, previous, previous_ns = self.marks, self._drained_index, self._previous, self._previous_ns
        validated_ns, falls_to = validation_ns(_counters(previous)), self._sizes.falls
        # A thousand marks a second, while the training thread waits for the GIL: only of steps that are kept is a
        # `Mark` made.
        while marks:
            found = marks.popleft()
            if len(found) == SHORT:
                base, at_ns, number, *_, size = found
                step, epoch_start, validating_ns = True, False, validation_ns(base[2])
            else:
                step, at_ns, acc, number, _, _, _, size, epoch_start, _, _ = found
                validating_ns = validation_ns(acc)
            if number != done:
                lost += number - done + step
            elif step:
                rate = 1 if number < first else every
                even, falls = is_kept(number, rate), falls_to(size)
                if even or falls or epoch_start or at_ns - previous_ns - validating_ns + validated_ns > slower_than_ns:
                    steps.append(self._record(_in_full(found), _counters(previous), outlier=not even, every=rate))
                count += 1
                samples = None if size is None or samples is None else samples + size
            done = number + step
            previous, previous_ns, validated_ns = found, at_ns, validating_ns
        self._drained_index, self._previous, self._previous_ns = done, _counters(previous), previous_ns
        return Drained(tuple(steps), count, samples, lost)

    def _mark(self, at_ns: int, step: bool) -> None:
        self.left_at = None
        self.marked = (
            step,
            at_ns,
            self.ledger.acc[:],
            self.index,
            self.epoch,
            self.optimizer_step,
            self.tracker_step,
            self.samples,
            self.epoch_start,
            self.ready,
            self.head_ready,
        )
        self.marks.append(self.marked)

    def _record(self, mark: Mark, previous: list[int], *, outlier: bool, every: int) -> StepRecord:
        spent = [0] * len(BUCKETS)
        previous = previous + [0] * (len(mark.acc) - len(previous))  # slots that are new
        for (bucket, _), total, before in zip(self.ledger.slots, mark.acc, previous, strict=False):
            if total:
                self._measured.add(bucket)
                spent[bucket] += total - before
        parts = {field: spent[i] / 1e9 if i in self._measured else None for i, field in _PARTS}
        return StepRecord(
            index=mark.number,
            epoch=mark.epoch,
            optimizer_step=mark.optimizer_step,
            tracker_step=mark.tracker_step,
            samples=mark.samples,
            time_s=self.unix_s(mark.at_ns),
            total_s=sum(spent) / 1e9,
            data_wait_s=spent[DATA_WAIT] / 1e9,
            epoch_start=mark.epoch_start,
            ready=mark.ready,
            head_ready=mark.head_ready,
            outlier=outlier,
            every=every,
            **parts,
        )


def _counters(mark: Any) -> list[int]:
    """Return the ledger at a mark of either kind; before the first mark that is a list already."""
    if type(mark) is list:
        return mark
    if len(mark) != SHORT:
        return mark[2]  # type: ignore[no-any-return]
    base, _, _, top, spent_ns, waited_ns, updated_ns, _, _ = mark
    acc: list[int] = base[2][:]
    acc[top] = spent_ns
    acc[DATA_WAIT] = waited_ns
    acc[OPTIMIZER] = updated_ns
    return acc


def _in_full(mark: tuple[Any, ...]) -> Mark:
    """Return a mark of either kind as one in full."""
    if len(mark) != SHORT:
        return Mark._make(mark)
    base, at_ns, number, _, _, _, _, optimizer_step, samples = mark
    return Mark(
        step=True,
        at_ns=at_ns,
        acc=_counters(mark),
        number=number,
        epoch=base[4],
        optimizer_step=optimizer_step,
        tracker_step=number,
        samples=samples,
        epoch_start=False,
        ready=None,
        head_ready=None,
    )


Register = Callable[[str, Callable[[StepClock], bool]], None]
"""Has something called by the training thread between two steps, under a name, until it returns False."""


class DataSpan:
    """The span around ``next(loader)``: the first one after a batch was used opens a step."""

    __slots__ = ("action", "clock", "ledger", "slot")

    def __init__(self, clock: StepClock, slot: int, action: str = "") -> None:
        self.clock = clock
        self.ledger = clock.ledger
        self.slot = slot
        self.action = action

    def __enter__(self) -> str:
        ledger, clock = self.ledger, self.clock
        now = ledger.now()
        stack = ledger.stack
        ledger.acc[stack[-1]] += now - ledger.last
        ledger.last = now
        if clock.worked or not clock.open:
            clock.begin(now)
        stack.append(FIRST_WAIT if clock.epoch_start else self.slot)
        if ledger.device is not None:
            ledger.device.ask(clock.index, clock.epoch_start, ledger.last)
        if clock.before_fetch is not None:
            clock.ready, clock.head_ready = clock.before_fetch()
        return self.action

    def __exit__(self, *exc: object) -> None:
        clock = self.clock
        if clock.after_fetch is not None:
            known = clock.after_fetch()
            if known is not None:
                clock.head_ready = known
        self.leave()

    def leave(self) -> None:
        """Close the span; without a batch that is all."""
        ledger = self.ledger
        now = ledger.now()
        stack = ledger.stack
        top = stack[-1]
        ledger.acc[top] += now - ledger.last
        ledger.last = now
        if len(stack) > 1 and (top == FIRST_WAIT or top == self.slot):
            stack.pop()
        if ledger.device is not None:
            ledger.device.mark(stack[-1], now)


class ValidationWait:
    """The span around ``next()`` of a validation loader: of its first batch it is the start of the workers, if any."""

    __slots__ = ("_asked", "_clock", "_first", "_ledger", "_loader", "_slot", "action")

    def __init__(self, clock: StepClock, action: str = "") -> None:
        self.action = action
        self._clock = clock
        self._ledger = clock.ledger
        self._first = self._slot = VALIDATION_WAIT
        self._loader: object = None
        self._asked = 0

    def begin(self, loader: object = None, *, workers: bool) -> None:
        """A validation begins.

        Args:
            loader: Is asked for its batches; None where that is not known, or several are.
            workers: Whether it has workers.
        """
        self.end()
        self._loader = loader
        self._first = VALIDATION_START if workers else VALIDATION_WAIT

    def end(self, loader: object = None) -> None:
        """The validation is over, if one was going on.

        Args:
            loader: What was asked, where `begin` did not know.
        """
        # Whether a loader is true would be asked of its length, which may be code of the program's.
        loader, self._loader = loader if self._loader is None else self._loader, None
        asked, self._asked = self._asked, 0
        if loader is not None:
            self._clock.evaluated(loader, asked)

    def __enter__(self) -> str:
        # Elsewhere (a nested fit, `trainer.validate` of a callback) it belongs to what is open there.
        if VALIDATION in self._ledger.stack:
            self._slot, self._first = self._first, VALIDATION_WAIT
            self._asked += 1
            self._ledger.enter(self._slot)
        return self.action

    def __exit__(self, *exc: object) -> None:
        if VALIDATION in self._ledger.stack:
            self._ledger.exit(self._slot)


class ValidationSpan(WorkSpan):
    """The span around a whole validation.

    Args:
        wait: Around each batch in it.
    """

    __slots__ = ("_wait",)

    def __init__(self, ledger: Ledger, wait: ValidationWait) -> None:
        super().__init__(ledger, VALIDATION)
        self._wait = wait

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._wait.end()
