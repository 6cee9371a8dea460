"""Ships a recording to its trackers: one daemon thread and one byte cursor per tracker.

Trackers are replicas of the recording. What a tracker could not take stays in the recording, and its cursor says from
where to go on: in the next second, after an outage, or in another process with `deliver`.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..errors import RecordingError, TrackerError, TrackerUnavailableError
from ..recording import Position, Reader
from ..recording.cursor import Cursor, cursor_path, read_cursor, write_cursor
from ..records import Record, StepRecord, UserMetrics, WindowRecord
from ..records.diagnosis import Verdict
from ..records.interfaces import GuardedCall, Page, Point, Tracker

T = TypeVar("T")

FIRST_STEPS = 200
"""Steps from the start of a run that trackers get one by one: there a slow start can be seen as it happened."""

KEY_CHARACTERS = 230
"""Longest key: MLflow takes 250 characters with the prefix that the tracker adds."""

FIRST_DELAY_S = 1.0
"""Wait after the first failure; it doubles with each further one."""

MAX_DELAY_S = 15.0
"""Longest wait between two tries."""

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

_HAS_POINTS = re.compile(rb'\["(?:window"|log"|step",1?\d?\d,)')
_NOT_IN_KEY = re.compile(r"[^A-Za-z0-9_./ -]+")


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


def points_of(record: Record | Verdict) -> list[Point]:
    """Return what trackers get of a record: finite values under keys that all of them take.

    Windows give their step and hardware metrics, the first 200 steps give step time and data wait in ms, both with 4
    significant digits, and the user's own metrics go below ``user/`` as they are. All other records stay in the
    recording.
    """
    match record:
        case WindowRecord():
            return [
                *_points("steps", record.metrics.items(), record.tracker_step, record.time_s),
                *_points("hardware", record.hardware.items(), record.tracker_step, record.time_s),
            ]
        case StepRecord() if record.index < FIRST_STEPS:
            times = {
                "first_steps/step_time_ms": record.step_time_s * 1e3,
                "first_steps/data_wait_ms": record.data_wait_s * 1e3,
            }
            return _points("steps", times.items(), record.tracker_step, record.time_s)
        case UserMetrics():
            own = ((f"user/{key}", value) for key, value in record.metrics.items())
            return _points("steps", own, record.tracker_step, record.time_s, _exact)
        case _:
            return []


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _exact(value: float) -> float:
    return float(value)


def _points(
    group: str,
    metrics: Iterable[tuple[str, float]],
    step: int,
    time_s: float,
    number: Callable[[float], float] = _rounded,
) -> list[Point]:
    return [
        Point(group, clean, sent, step, time_s)
        for key, value in metrics
        if (sent := _finite(value, number)) is not None and (clean := _clean_key(key))
    ]


def _finite(value: float, number: Callable[[float], float]) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    try:
        found = number(value)
    except OverflowError:  # an int beyond the range of float
        return None
    return found if math.isfinite(found) else None


def _clean_key(key: str) -> str:
    text = re.sub(r"\.{2,}", ".", _NOT_IN_KEY.sub("_", key))
    parts = (part.strip() for part in text.split("/"))
    return "/".join(part for part in parts if part.strip("."))[:KEY_CHARACTERS].rstrip("/ ")


class _Delivery:
    """How far one tracker is: the cursor, and when to try again."""

    def __init__(self, folder: Path, rank: int, tracker: Tracker, label: str = "") -> None:
        self.tracker = tracker
        self.label = label or tracker.name
        self.stopped = False
        self.waiting = False
        """True after a failure, until something was delivered again."""
        self.next_try = 0.0
        # Written by the tracker's thread and read by the one that waits: a single value, old or new.
        self.asked_at: float | None = None
        """When the call in progress began; None while there is none."""
        self.caught_up = threading.Event()
        """Set when the tracker had got all that was written as the run ended, or there was no time left for it."""
        self._folder = folder
        self._rank = rank
        self._failures = 0
        self._shown: Page | None = None
        self._abandoned = False
        self._path = cursor_path(folder, self.label, rank)
        known = read_cursor(self._path)
        same = known is not None and (known.destination, known.rank) == (tracker.destination, rank)
        cursor = known if known is not None and same else Cursor(tracker.destination, rank)
        self._position, self._taken, self._complete = cursor.position, cursor.points, cursor.complete
        self._delivered = (self._taken, self._position)
        """Points that were handed over, and where the next ones begin."""
        # Touched by one thread at a time: the tracker's own; once that has ended or was given up, the one that closes.
        self._held: deque[tuple[int, Position]] = deque()
        """The same for what `Tracker.send` took but holds still."""

    def send_next(self) -> int:
        """Send the next batch and move the cursor behind what was handed over.

        Returns:
            Number of points sent; 0 when the tracker has got all that is written.

        Raises:
            TrackerUnavailableError, TrackerError: From the tracker; the cursor has not moved.
            RecordingError: The recording cannot be read.
        """
        points, position = self._next_batch()
        size = max(1, self.tracker.batch_size)
        for start in range(0, len(points), size):
            self.tracker.send(points[start : start + size])
        self._position = position
        self._taken += len(points)
        self._complete = self._complete and not points
        if self._settle():
            self.save()
        return len(points)

    def _settle(self) -> bool:
        """Move on to what was handed over by now; returns whether points were."""
        if self._held and self._held[-1][0] == self._taken:
            self._held.pop()
        self._held.append((self._taken, self._position))
        handed_over = self._taken - getattr(self.tracker, "held_points", 0)
        before = self._delivered
        while self._held and self._held[0][0] <= handed_over:
            self._delivered = self._held.popleft()
        return self._delivered[0] != before[0]

    def show(self, page: Page | None) -> None:
        """Bring the run's page up to date. Raises as `Tracker.show` does."""
        if self.behind(page) and page is not None:
            self.tracker.show(page)
            self._shown = page
            if page.final:
                self._complete = True
                self.save()

    def behind(self, page: Page | None) -> bool:
        """True when this page has not been shown."""
        return page is not None and page != self._shown

    def postpone(self, now: float, longest_s: float) -> None:
        """Note a failure: the next try comes later, the later the more have failed in a row."""
        self.waiting = True
        self.next_try = now + min(longest_s, FIRST_DELAY_S * 2.0 ** min(self._failures, 10))
        self._failures += 1

    def recover(self) -> None:
        """Note a success."""
        self.waiting = False
        self._failures = 0

    def left(self, in_time: Callable[[], bool]) -> int:
        """Count the points behind what the tracker took for as long as ``in_time`` says."""
        return self._count(self._position, in_time)

    def lost(self) -> int:
        """Count the points that were not handed over."""
        self.save()
        return self._count(self._delivered[1], lambda: True)

    def _count(self, position: Position, in_time: Callable[[], bool]) -> int:
        count = 0
        with contextlib.suppress(RecordingError, OSError):
            for record, _ in Reader(self._folder, self._rank, position, lines=_HAS_POINTS):
                count += len(points_of(record))
                if not in_time():
                    break
        return count

    def save(self) -> None:
        """Keep the cursor for another process."""
        self._settle()
        if self._abandoned and self._is_behind(read_cursor(self._path)):
            return
        ours = bool(getattr(self.tracker, "owns_run", False))
        points, position = self._delivered
        complete = self._complete and not self._held
        write_cursor(self._path, Cursor(self.tracker.destination, self._rank, position, points, complete, ours))

    def _is_behind(self, other: Cursor | None) -> bool:
        position = self._delivered[1]
        here = (position.part, position.offset)
        return other is not None and (other.position.part, other.position.offset) >= here

    def close(self) -> None:
        """Let go of the tracker."""
        self.save()
        self.tracker.close()
        self.save()

    def abandon(self) -> None:
        """From now on others may move the cursor on; a thread that comes back from a tracker must not undo that."""
        self._abandoned = True

    def _next_batch(self) -> tuple[list[Point], Position]:
        reader = Reader(self._folder, self._rank, self._position, lines=_HAS_POINTS)
        points: list[Point] = []
        position = self._position
        try:
            for record, behind in reader:
                more = points_of(record)
                if points and len(points) + len(more) > self.tracker.batch_size:
                    return points, position
                points += more
                position = behind
        except OSError as exc:
            raise RecordingError(f"the recording in {self._folder} cannot be read: {exc}") from exc
        return points, reader.position


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
            guard(f"tracker {label}", partial(_Delivery, folder, rank, tracker, label))
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
        return tuple(d.label for d in self._deliveries if d.asked_at is not None and now - d.asked_at > longer_than_s)

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

    def _run(self, delivery: _Delivery) -> None:
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

    def _turn(self, deliveries: Sequence[_Delivery]) -> bool:
        busy = False
        for delivery in deliveries:
            if delivery.stopped or self._monotonic() < delivery.next_try:
                continue
            more = self._guard(f"tracker {delivery.label}", partial(self._advance, delivery))
            delivery.asked_at = None
            delivery.stopped = delivery.stopped or more is None
            busy = busy or bool(more)
        return busy

    def _drain(self, deliveries: Sequence[_Delivery]) -> None:
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

    def _finish(self, deliveries: Sequence[_Delivery]) -> None:
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

    def _advance(self, delivery: _Delivery) -> bool:
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


def deliver(
    folder: Path,
    rank: int,
    tracker: Tracker,
    *,
    page: Page | None = None,
    label: str = "",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Send everything that a tracker has not got yet, in the caller's thread.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        tracker: Where to send.
        page: Shown behind the points; then the tracker is let go.
        label: Name of the cursor; the tracker's by default.
        progress: Called after each batch with the number of points sent so far.

    Returns:
        Number of points sent.

    Raises:
        RecordingError: There is nothing to read.
        TrackerUnavailableError: The tracker does not answer; call again later, it goes on where it stopped.
        TrackerError: The tracker refuses for good.
    """
    Reader(folder, rank).header()
    delivery = _Delivery(folder, rank, tracker, label)
    delivery.save()  # says where it was going, should it be interrupted at once
    total = 0
    while sent := delivery.send_next():
        total += sent
        if progress is not None:
            progress(total)
    if page is not None:
        delivery.show(page)
        delivery.close()
    delivery.save()
    return total


def points_left(folder: Path, rank: int, tracker: Tracker, label: str = "") -> int:
    """Return how many points `deliver` would send now."""
    return _Delivery(folder, rank, tracker, label).left(lambda: True)
