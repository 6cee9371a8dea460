"""Where every second of wall time goes: a stack of spans, exclusive time per slot.

Each instant belongs to exactly one slot, the top of the stack, so the slots sum to the wall time by construction.
One thread, the training thread, moves the ledger; other threads may read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Final, Protocol

from ..records import BUCKETS, OWN_NAME, VALIDATION_PARTS

FIRST_WAIT: Final = len(BUCKETS)
"""Slot of the data wait of an epoch's first step, shared out between data_wait and worker_startup when it is read."""
VALIDATION_START: Final = FIRST_WAIT + 1
VALIDATION_WAIT: Final = FIRST_WAIT + 2
"""Slots of what a validation loader takes, both of the bucket of validation."""

(
    START,
    WARMUP,
    WORKER_STARTUP,
    DATA_WAIT,
    H2D,
    FORWARD,
    BACKWARD,
    OPTIMIZER,
    CALLBACKS,
    LOGGING,
    CHECKPOINT,
    VALIDATION,
    LOOP,
    COMPUTE,
    OTHER,
) = range(len(BUCKETS))


PEEKS = 10
"""A reading from outside is taken so often when the ledger moves meanwhile: twice in a row is rare."""


def validation_ns(acc: Sequence[int]) -> int:
    """Return what stands in the slots of validation."""
    return acc[VALIDATION] + acc[VALIDATION_START] + acc[VALIDATION_WAIT]


class DeviceMarks(Protocol):
    """Follows the device through the same spans; see `stallmeter.timing.device`."""

    def ask(self, number: int, epoch_start: bool, now: int) -> None:
        """A batch is asked for, which is step ``number``'s."""

    def mark(self, slot: int, now: int) -> None:
        """What the device is given from now (ns) on belongs to ``slot``."""

    def leave(self, worked: bool, now: int) -> None:
        """The loop stops asking for batches; ``worked`` says whether it used the last one."""


class Ledger:
    """Nanoseconds per slot. The first slots are the buckets of `BUCKETS`; named callbacks and loggers get their own.

    Args:
        base: Slot that time belongs to while no span is open.
        now: Returns monotonic nanoseconds; passed in by tests.
    """

    __slots__ = ("_names", "acc", "device", "last", "now", "origin", "slots", "stack", "thread")

    def __init__(self, base: int = START, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.now = now
        self.acc: list[int] = [0] * (VALIDATION_WAIT + 1)
        self.slots: list[tuple[int, str | None]] = [
            *((i, None) for i in range(FIRST_WAIT)),
            (DATA_WAIT, None),
            *((VALIDATION, part) for part in VALIDATION_PARTS),
        ]
        """Bucket and name of each slot."""
        self._names: dict[tuple[int, str], int] = {}
        self.stack: list[int] = [base]
        self.device: DeviceMarks | None = None
        """Told of what may change the device's work; None where there is no device to time."""
        self.origin: int = now()
        self.last: int = self.origin
        self.thread: int = get_ident()
        """Who moves it: at first who made it."""

    def begin_at(self, at_ns: int) -> None:
        """Have it begin earlier (ns); nothing may have been booked yet."""
        self.origin = self.last = at_ns

    def slot(self, bucket: int, name: str | None = None) -> int:
        """Return the slot of a bucket, or of a named part of it, making the latter when it is new."""
        if name is None:
            return bucket
        known = self._names.get((bucket, name))
        if known is None:
            known = self._names[bucket, name] = len(self.acc)
            self.acc.append(0)
            self.slots.append((bucket, name))
        return known

    @property
    def own_slot(self) -> int:
        """The slot of what stallmeter itself does on the training thread, among the callbacks."""
        return self.slot(CALLBACKS, OWN_NAME)

    def settle(self) -> int:
        """Book the time up to now where it belongs and return now (ns)."""
        now = self.now()
        self.acc[self.stack[-1]] += now - self.last
        self.last = now
        return now

    def base(self, slot: int, since: int | None = None) -> int:
        """From now on time outside every span belongs to ``slot``; returns now (ns).

        Args:
            slot: Where to.
            since: From then on (ns) instead of from now; ignored if the ledger was moved later.
        """
        if since is not None and self.last <= since:
            self.acc[self.stack[-1]] += since - self.last
            self.last = now = since
        else:
            now = self.settle()
        self.stack[0] = slot
        return now

    def enter(self, slot: int, since: int | None = None) -> None:
        """Open a span.

        Args:
            slot: Of the span.
            since: When it began (ns), where that is past; ignored if the ledger was moved later.
        """
        now = self.now() if since is None or since < self.last else since
        stack = self.stack
        self.acc[stack[-1]] += now - self.last
        self.last = now
        stack.append(slot)

    def exit(self, slot: int) -> None:
        """Close the innermost open span of ``slot``, and those inside it; ignore it when none is open."""
        self.settle()
        stack = self.stack
        for depth in range(len(stack) - 1, 0, -1):
            if stack[depth] == slot:
                del stack[depth:]
                return

    def unwind(self) -> int:
        """Close every open span; returns now (ns)."""
        now = self.settle()
        del self.stack[1:]
        return now

    def peek(self) -> list[int]:
        """Nanoseconds per slot up to now, for another thread: the open span is included.

        The training thread moves the ledger meanwhile, and takes no lock for it. The GIL makes a copy of a list one
        piece, and lets another thread in at calls and jumps only, none of which lie between a counter's change and that
        of `last`. What may come in between is a whole move: then `last` is another number than before, and everything
        is read again. Where a thread is let in elsewhere (a tracer, an interpreter without the GIL), a reading may be
        off by one span; the counters themselves are not, and the next reading is right.
        """
        for _ in range(PEEKS):
            last = self.last
            acc, top = self.acc[:], self.stack[-1]
            if self.last is last:
                break
        acc[top] += max(0, self.now() - last)
        return acc


class Span:
    """A reusable ``with`` block over one slot; state lives in the ledger, so one object serves nested use."""

    __slots__ = ("action", "ledger", "slot")

    def __init__(self, ledger: Ledger, slot: int, action: str = "") -> None:
        self.ledger = ledger
        self.slot = slot
        self.action = action

    def __enter__(self) -> str:
        ledger = self.ledger
        now = ledger.now()
        stack = ledger.stack
        ledger.acc[stack[-1]] += now - ledger.last
        ledger.last = now
        stack.append(self.slot)
        return self.action

    def __exit__(self, *exc: object) -> None:
        ledger = self.ledger
        stack = ledger.stack
        if stack[-1] != self.slot or len(stack) == 1:
            ledger.exit(self.slot)
            return
        now = ledger.now()
        ledger.acc[self.slot] += now - ledger.last
        ledger.last = now
        stack.pop()


class WorkSpan(Span):
    """A span whose work may run on a device, which is timed where it can be."""

    __slots__ = ()

    def __enter__(self) -> str:
        ledger = self.ledger
        now = ledger.now()
        stack = ledger.stack
        ledger.acc[stack[-1]] += now - ledger.last
        ledger.last = now
        stack.append(self.slot)
        if ledger.device is not None:
            ledger.device.mark(self.slot, now)
        return self.action

    def __exit__(self, *exc: object) -> None:
        ledger = self.ledger
        stack = ledger.stack
        if stack[-1] != self.slot or len(stack) == 1:
            ledger.exit(self.slot)
            if ledger.device is not None:
                ledger.device.mark(stack[-1], ledger.last)
            return
        now = ledger.now()
        ledger.acc[self.slot] += now - ledger.last
        ledger.last = now
        stack.pop()
        if ledger.device is not None:
            ledger.device.mark(stack[-1], now)
