"""Ships a recording to its trackers: one daemon thread and one byte cursor per tracker.

Trackers are replicas of the recording. What a tracker could not take stays in the recording, and its cursor says from
where to go on: in the next second, after an outage, or in another process with `deliver`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import RecordingError, TrackerError, TrackerUnavailableError
from ..records.interfaces import GuardedCall, Page, Tracker
from .delays import MAX_DELAY_S
from .delivery import Delivery

CLOSING_DELAY_S = 1.0
"""Longest wait between two tries while closing, when the time left is short."""

LOOK_S = 0.05
"""Time between two looks at whether a tracker that is waited for has failed."""

COST_SHARE = 0.003
"""While a run goes on, a tracker's thread may take this share of a CPU: it holds the GIL, and the training waits."""

LONGEST_PAUSE_S = 5.0
"""Longest wait for the next points of a tracker that is dear to talk to: one transaction then takes them all."""

BATCHES_PER_TURN = 20
"""Batches that one tracker may send before the next tracker has its turn."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What a tracker had not got when the forwarder was closed. The recording has it."""

    tracker: str
    """Name of the tracker."""
    destination: str
    points: int
    """Points left; a lower bound when there was no time to count them all."""
    page: bool
    """True when the newest page (tags, note, files) is missing too."""


class Forwarder:
    """Sends what is written to a recording to each tracker, each in a daemon thread of its own.

    A tracker that does not answer is tried again, after 1 s, then 2 s, up to 15 s; one that refuses for good is
    stopped. Neither delays the caller or another tracker, even if it hangs, and neither loses a point: the recording
    keeps them all.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        trackers: Where to send. Without any, no thread is started.
        guard: Runs the calls to a tracker; when one raises something unexpected, that tracker is stopped.
        let_go: The same for the last call to a tracker, made even if one failed before.
        on_problem: Called with a tracker's name and a message, once, when it refused for good. Runs in that tracker's
            thread.
        interval_s: Seconds between two looks at the recording.
        monotonic: Clock in seconds.
        sleep: Waits for some seconds on that clock.
        start: False to drive it with `turn` instead of threads.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        trackers: Sequence[Tracker],
        *,
        guard: GuardedCall,
        let_go: GuardedCall | None = None,
        on_problem: Callable[[str, str], None],
        interval_s: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        start: bool = True,
    ) -> None:
        names = [str(tracker.name) for tracker in trackers]
        # Two loggers of one class, two runs of MLflow: each has a cursor.
        twins = (names[:i].count(name) for i, name in enumerate(names))
        labels = [f"{name}-{1 + twin}" if twin else name for name, twin in zip(names, twins, strict=True)]
        opened = (
            guard(f"tracker {label}", partial(Delivery, folder, rank, tracker, label))
            for tracker, label in zip(trackers, labels, strict=True)
        )
        self._deliveries = [delivery for delivery in opened if delivery is not None]
        self._guard = guard
        self._let_go = let_go
        self._on_problem = on_problem
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._sleep = sleep
        # Replaced whole by the sampler thread and read by each tracker's: no lock, the newest page wins.
        self._page: Page | None = None
        self._ending = threading.Event()
        self._closing = threading.Event()
        self._deadline = math.inf
        self._undelivered: tuple[Undelivered, ...] | None = None
        self._threads: list[threading.Thread] = []
        for delivery in self._deliveries:
            delivery.save()  # says where the recording was going, should nothing ever arrive
            if start:
                name = f"stallmeter-forwarder-{delivery.label}"
                self._threads.append(threading.Thread(target=self._run, args=(delivery,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def show(self, page: Page) -> None:
        """Have the run's page brought up to date, after the points that are written by now. The newest page wins."""
        self._page = page  # one reference: a tracker's thread sees the page before or this one, never half of it

    def hanging(self, longer_than_s: float) -> tuple[str, ...]:
        """Return the trackers whose call has not come back for so long; they go on when it does."""
        now = self._monotonic()
        # Read once: the tracker's thread sets it to None when the call has come back.
        asked = [(d.label, d.asked_at) for d in self._deliveries]
        return tuple(label for label, at in asked if at is not None and now - at > longer_than_s)

    def turn(self) -> bool:
        """Send what is due to each tracker, in the caller's thread.

        Returns:
            True when there is more to send at once.
        """
        return self._turn(self._deliveries)

    def catch_up(self, budget_s: float = 10.0) -> bool:
        """Send what is written by now, the newest page included, and go on until `close`, where a last page may come.

        Args:
            budget_s: Most seconds to wait. A tracker that has just failed is not waited for: its thread tries on.

        Returns:
            Whether every tracker has got it.
        """
        deadline = self._monotonic() + budget_s
        self._deadline = deadline
        self._ending.set()
        if not self._threads:
            self._drain(self._deliveries)
        while waiting := [d for d in self._deliveries if not d.caught_up.is_set() and not d.stopped and not d.waiting]:
            left_s = deadline - self._monotonic()
            if left_s <= 0 or not self._threads:
                break
            waiting[0].caught_up.wait(min(left_s, LOOK_S))
        return all(d.caught_up.is_set() and not d.stopped for d in self._deliveries)

    def close(self, budget_s: float = 10.0) -> tuple[Undelivered, ...]:
        """Send what is left, the newest page included, and let go of the trackers. Call it after the recorder's close.

        Args:
            budget_s: Most seconds that this may take, even if a tracker hangs.

        Returns:
            One entry for each tracker that has not got everything.
        """
        if self._undelivered is not None:
            return self._undelivered

        def in_budget() -> bool:
            return self._monotonic() < started + budget_s

        started = self._monotonic()
        # The last fifth is for letting go of the trackers and for counting what is left.
        self._deadline = started + 0.8 * budget_s
        self._closing.set()
        self._ending.set()
        if not self._threads:
            self._finish(self._deliveries)
        for thread in self._threads:
            thread.join(max(0.0, started + 0.95 * budget_s - self._monotonic()))
        page = self._page
        results = [
            Undelivered(d.label, d.tracker.destination, d.left(in_budget), d.behind(page)) for d in self._deliveries
        ]
        for delivery in self._deliveries:
            delivery.abandon()
        self._undelivered = tuple(u for u in results if u.points or u.page)
        return self._undelivered

    def settle(self) -> tuple[Undelivered, ...]:
        """Keep what was handed over after `close`, by trackers that hold points for a thread of their own.

        Returns:
            One entry for each of those that still has not got everything it took.
        """
        holding = [delivery for delivery in self._deliveries if hasattr(delivery.tracker, "held_points")]
        lost = (Undelivered(d.label, d.tracker.destination, d.lost(), False) for d in holding)
        return tuple(one for one in lost if one.points)

    def _run(self, delivery: Delivery) -> None:
        busy, pause_s, paused_at_s = False, self._interval_s, time.thread_time()
        while not self._ending.wait(0.0 if busy else pause_s):
            busy = self._turn([delivery])
            if not busy:
                cost_s, paused_at_s = time.thread_time() - paused_at_s, time.thread_time()
                pause_s = max(self._interval_s, min(LONGEST_PAUSE_S, cost_s / COST_SHARE))
        if not self._closing.is_set():
            self._drain([delivery])
        while not self._closing.wait(self._interval_s):  # the last page is being made
            self._turn([delivery])
        self._finish([delivery])

    def _turn(self, deliveries: Sequence[Delivery]) -> bool:
        busy = False
        for delivery in deliveries:
            if delivery.stopped or self._monotonic() < delivery.next_try:
                continue
            more = self._guard(f"tracker {delivery.label}", partial(self._advance, delivery))
            delivery.asked_at = None
            delivery.stopped = delivery.stopped or more is None
            busy = busy or bool(more)
        return busy

    def _drain(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            delivery.next_try = 0.0
        while self._in_time():
            busy = self._turn(deliveries)
            waiting = [d.next_try for d in deliveries if d.waiting and not d.stopped]
            if not busy and not waiting:
                break
            if not busy:
                now = self._monotonic()
                self._sleep(max(0.0, min(min(waiting), self._deadline) - now))
        for delivery in deliveries:
            if not delivery.waiting:
                delivery.caught_up.set()

    def _finish(self, deliveries: Sequence[Delivery]) -> None:
        self._drain(deliveries)
        for delivery in deliveries:
            delivery.asked_at = self._monotonic()
            if self._let_go is None:
                self._guard(f"closing tracker {delivery.label}", delivery.close)
            else:
                self._let_go(f"tracker {delivery.label}", delivery.close)
            delivery.asked_at = None

    def _in_time(self) -> bool:
        return self._monotonic() < self._deadline

    def _advance(self, delivery: Delivery) -> bool:
        page = self._page  # read first: the points before it are then sent before it
        try:
            for _ in range(BATCHES_PER_TURN):
                delivery.asked_at = self._monotonic()
                if not delivery.send_next():
                    break
                delivery.recover()
                if not self._in_time():
                    return True
            else:
                return True
            delivery.show(page)
        except (TrackerUnavailableError, RecordingError):
            longest_s = CLOSING_DELAY_S if self._ending.is_set() else MAX_DELAY_S
            delivery.postpone(self._monotonic(), longest_s)
            return False
        except TrackerError as exc:
            delivery.stopped = True
            self._on_problem(delivery.label, str(exc))
            return False
        delivery.recover()
        return False
