"""The ledger's spans on the device's own timeline: what the device did between two marks, read later.

An event is recorded where the work of the next span begins. The device reaches it when all that was queued before is
done, so two events are as far apart as the device's part of the span between them: for the wait for data, during which
nothing is queued, that is the time the device really idled. Nobody ever waits for the device: events are asked on the
sampler thread whether they have come to pass, oldest step first. A step for which that fails keeps the host's clock.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Protocol

from ..records import DeviceStep
from .ledger import (
    BACKWARD,
    COMPUTE,
    DATA_WAIT,
    FIRST_WAIT,
    FORWARD,
    H2D,
    OPTIMIZER,
    VALIDATION,
    VALIDATION_START,
    VALIDATION_WAIT,
)

MAX_EVENTS = 4096
"""Events in flight, over 400 steps of Lightning: a device further behind is timed no more until it has caught up."""

WAIT, COPY, FORWARDS, BACKWARDS, UPDATE, BODY, ASIDE, IDLE = range(8)
_KIND: Final = [IDLE] * (VALIDATION_WAIT + 1)
_KIND[DATA_WAIT] = _KIND[FIRST_WAIT] = WAIT
_KIND[H2D] = COPY
_KIND[FORWARD] = FORWARDS
_KIND[BACKWARD] = BACKWARDS
_KIND[OPTIMIZER] = UPDATE
_KIND[COMPUTE] = BODY
_KIND[VALIDATION] = _KIND[VALIDATION_START] = _KIND[VALIDATION_WAIT] = ASIDE
_KINDS: Final = 8


class TimedEvent(Protocol):
    """A device event with timing, as `torch.cuda.Event` has it."""

    def query(self) -> bool:
        """Whether the device has reached it; does not wait."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from this event to a later one; both must have been reached."""


class Device(Protocol):
    """What is needed of a device."""

    def event(self) -> TimedEvent:
        """Make an event."""

    def record(self, event: Any) -> None:
        """Record it on the stream that the calling thread queues work on.

        Raises:
            RuntimeError: The device has failed.
        """

    def capturing(self) -> bool:
        """Whether that stream is being captured into a graph: an event would become a part of the graph."""


class _Step:
    """A step on its way through the device."""

    __slots__ = ("closing", "epoch_start", "host", "kind", "last", "marks", "number", "owns_closing", "spoiled")

    def __init__(self, number: int, epoch_start: bool, now: int) -> None:
        self.number = number
        self.epoch_start = epoch_start
        self.marks: list[tuple[TimedEvent, int]] = []
        """Where each kind of work begins."""
        self.host = [0] * _KINDS
        """Host nanoseconds of each kind."""
        self.kind = WAIT
        self.last = now
        self.closing: TimedEvent | None = None
        self.owns_closing = True
        """False when it is the next step's first event, too."""
        self.spoiled = False


class DeviceTimeline:
    """Follows the ledger on a device. `resolve` is for the sampler thread, the rest for the training thread.

    Args:
        device: Makes and records events.
        max_events: Most events in flight.
    """

    __slots__ = ("_device", "_free", "_made", "_max_events", "_pending", "_step", "failure", "stride")

    def __init__(self, device: Device, max_events: int = MAX_EVENTS) -> None:
        self.stride = 1
        """Every how many steps one is timed."""
        self.failure: str | None = None
        """Why the device can be timed no more."""
        self._device = device
        self._max_events = max_events
        self._made = 0
        self._free: deque[TimedEvent] = deque()
        self._pending: deque[_Step] = deque()
        self._step: _Step | None = None

    @property
    def events(self) -> int:
        """Events made so far."""
        return self._made

    @property
    def unused(self) -> int:
        """Events that are free for use."""
        return len(self._free)

    def ask(self, number: int, epoch_start: bool, now: int) -> None:
        """A batch is asked for, which is step ``number``'s."""
        step = self._step
        if step is not None and step.number == number:
            self.mark(DATA_WAIT, now)
            return
        wanted = number % self.stride == 0
        if step is None and not wanted:
            return
        event = self._event()
        if step is not None:
            self._close(step, event, now, shared=wanted)
        if not wanted:
            self._step = None
            return
        self._step = step = _Step(number, epoch_start, now)
        if event is None:
            step.spoiled = True
        else:
            step.marks.append((event, WAIT))

    def mark(self, slot: int, now: int) -> None:
        """What the device is given from now (ns) on belongs to ``slot``."""
        step = self._step
        if step is None:
            return
        kind = _KIND[slot] if slot <= VALIDATION_WAIT else IDLE
        if kind == step.kind:
            return
        step.host[step.kind] += now - step.last
        step.kind = kind
        step.last = now
        if not step.spoiled:
            event = self._event()
            if event is None:
                step.spoiled = True
            else:
                step.marks.append((event, kind))

    def leave(self, worked: bool, now: int) -> None:
        """The loop stops asking for batches; ``worked`` says whether it used the last one."""
        step, self._step = self._step, None
        if step is None:
            return
        if not worked:
            step.number = -1
        self._close(step, self._event() if worked else None, now, shared=False)

    def resolve(self) -> list[DeviceStep]:
        """Return the steps that the device has finished since the last call, oldest first; never waits.

        Raises:
            RuntimeError: The device has failed.
        """
        done: list[DeviceStep] = []
        while self._pending:
            step = self._pending[0]
            events = [event for event, _ in step.marks]
            if step.closing is not None and not step.spoiled and not all(e.query() for e in (*events, step.closing)):
                break
            if step.number >= 0:
                done.append(_record(step))
            self._pending.popleft()
            self._free.extend(events)
            if step.closing is not None and step.owns_closing:
                self._free.append(step.closing)
        return done

    def _close(self, step: _Step, event: TimedEvent | None, now: int, *, shared: bool) -> None:
        step.host[step.kind] += now - step.last
        step.closing = event
        step.owns_closing = not shared
        step.spoiled = step.spoiled or event is None
        if step.marks or len(self._pending) < self._max_events:
            self._pending.append(step)

    def _event(self) -> TimedEvent | None:
        """Record an event; None when there is none to be had."""
        if self.failure is not None:
            return None
        try:
            if self._device.capturing():
                return None
            if self._free:
                event = self._free.popleft()
            elif self._made < self._max_events:
                event = self._device.event()
                self._made += 1
            else:
                return None
            self._device.record(event)
        except RuntimeError as exc:
            self.failure = str(exc)
            return None
        return event


def _record(step: _Step) -> DeviceStep:
    host = step.host
    spent: list[float | None] = [None] * _KINDS
    total_s = None
    if step.closing is not None and not step.spoiled:
        events = [event for event, _ in step.marks]
        for (event, kind), end in zip(step.marks, [*events[1:], step.closing], strict=True):
            # Below 0 only where the program changed to another stream in between.
            spent[kind] = (spent[kind] or 0.0) + max(0.0, event.elapsed_time(end) / 1e3)
        total_s = sum(s for kind, s in enumerate(spent) if s is not None and kind != ASIDE)
    return DeviceStep(
        index=step.number,
        epoch_start=step.epoch_start,
        host_wait_s=host[WAIT] / 1e9,
        host_idle_s=host[IDLE] / 1e9,
        host_work_s=(host[COPY] + host[FORWARDS] + host[BACKWARDS] + host[UPDATE] + host[BODY]) / 1e9,
        total_s=total_s,
        exposed_wait_s=spent[WAIT],
        h2d_s=spent[COPY],
        forward_s=spent[FORWARDS],
        backward_s=spent[BACKWARDS],
        optimizer_s=spent[UPDATE],
        compute_s=spent[BODY],
        idle_s=spent[IDLE],
    )
