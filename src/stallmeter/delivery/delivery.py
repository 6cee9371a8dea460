"""How far one tracker is with a recording: its cursor, and when to try again."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ..errors import RecordingError
from ..recording import Position, Reader
from ..recording.cursor import Cursor, cursor_path, read_cursor, write_cursor
from ..records.interfaces import Page, Point, Tracker
from .delays import delay_s
from .points import HAS_POINTS, points_of


class Delivery:
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
        self._sent = 0
        """Points behind the position that were sent: the first batches of a record with more points than a batch."""
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
        for start in range(self._sent, len(points), size):
            self.tracker.send(points[start : start + size])
            self._sent = start + size
        self._position, self._sent = position, 0
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
        self.next_try = now + delay_s(self._failures, longest_s)
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
            for record, _ in Reader(self._folder, self._rank, position, lines=HAS_POINTS):
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
        reader = Reader(self._folder, self._rank, self._position, lines=HAS_POINTS)
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
    delivery = Delivery(folder, rank, tracker, label)
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
    return Delivery(folder, rank, tracker, label).left(lambda: True)
