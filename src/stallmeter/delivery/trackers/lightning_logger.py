"""Forwards to any Lightning logger through ``log_metrics``: TensorBoard, CSV, W&B and whatever else a trainer has."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...errors import TrackerUnavailableError
from ...records.interfaces import Page, Point
from ..delays import delay_s

MAILBOX_POINTS = 20_000
"""Most points that wait for the training thread."""

REFUSAL_SHARE = 0.01
"""Most of the training's time that a logger which refuses may take: one that is slow to refuse is asked less often."""

_PREFIX = {"steps": "stallmeter/", "hardware": "stallmeter/hardware/"}


class MetricsLogger(Protocol):
    """The part of a Lightning logger that is used."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> Any:
        """Log metrics of one step."""
        ...


class LightningLoggerTracker:
    """Hands points to a Lightning logger on the training thread.

    Loggers are not thread-safe, so `send`, which runs in the forwarder's thread, only puts points into a mailbox;
    the Lightning adapter calls `deliver` on the training thread every so often and once at the end. Loggers have no
    common way to show a note or tags, so `show` does nothing: the verdict is in the recording and on the console.

    Args:
        logger: A Lightning logger.
        mailbox_points: Most points that may wait. When it is full, the forwarder keeps the rest and tries again.
    """

    batch_size = 500

    def __init__(self, logger: MetricsLogger, *, mailbox_points: int = MAILBOX_POINTS) -> None:
        self.name = f"logger-{type(logger).__name__}"
        self.destination = type(logger).__name__
        self._logger = logger
        self._lock = threading.Lock()  # between the mailbox's two threads, never held while the logger works
        self._mailbox: deque[tuple[int, Point]] = deque()
        self._taken = 0
        self._mailbox_points = mailbox_points
        self._failures = 0
        self._next_try_s = -math.inf
        """When to ask a logger again that has refused."""

    def send(self, points: Sequence[Point]) -> None:
        """Put points into the mailbox.

        Raises:
            TrackerUnavailableError: It is full.
        """
        # Without the lock, for a bound that need not be exact: nobody else adds but what a logger has just refused.
        if len(self._mailbox) + len(points) > self._mailbox_points:
            raise TrackerUnavailableError(f"{len(self._mailbox)} points wait for the training thread to log them")
        with self._lock:
            self._mailbox.extend(enumerate(points, self._taken))
            self._taken += len(points)

    @property
    def held_points(self) -> int:
        """Points from the oldest one on that the logger has not got; what it has is no longer held."""
        with self._lock:
            return self._taken - self._mailbox[0][0] if self._mailbox else 0

    @property
    def waiting(self) -> bool:
        """Whether there is anything to deliver."""
        return bool(self._mailbox)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to deliver: after a refusal in 1 s, then 2 s, up to 15 s, as for every other tracker.

        Args:
            now_s: On the clock that `deliver` is given.
        """
        return now_s >= self._next_try_s

    def deliver(self, now: Callable[[], float] = time.monotonic) -> int:
        """Log what is in the mailbox, one call per step where that is possible. Call it on the training thread.

        Args:
            now: Clock in seconds.

        Returns:
            Number of points logged.

        Raises:
            Exception: From the logger; the points that it did not take are kept for the next call.
        """
        with self._lock:
            found = list(self._mailbox)
        rows: list[tuple[int, dict[str, float]]] = []
        row_of: list[int] = []
        newest: dict[int, int] = {}
        for _, point in found:
            key = _PREFIX[point.group] + point.key
            row = newest.get(point.step)
            # With gradient accumulation several batches share a step: a second value of a key is a call of its own.
            if row is None or key in rows[row][1]:
                row = newest[point.step] = len(rows)
                rows.append((point.step, {}))
            rows[row][1][key] = point.value
            row_of.append(row)
        logged = 0
        try:
            for step, metrics in rows:
                asked_s = now()
                self._logger.log_metrics(metrics, step=step)
                logged += 1
                self._failures = 0
        finally:
            self._next_try_s = -math.inf if logged == len(rows) else self._next_try_after(asked_s, now())
            kept = [one for one, row in zip(found, row_of, strict=True) if row >= logged]
            # What was added meanwhile stands behind: the first ones are still those that were found.
            with self._lock:
                for _ in found:
                    self._mailbox.popleft()
                self._mailbox.extendleft(reversed(kept))
        return len(found)

    def _next_try_after(self, asked_s: float, now_s: float) -> float:
        wait_s = max(delay_s(self._failures), (now_s - asked_s) / REFUSAL_SHARE)
        self._failures += 1
        return now_s + wait_s

    def show(self, page: Page) -> None:
        """Do nothing: loggers have no common way to show it."""

    def close(self) -> None:
        """Do nothing: the trainer closes its loggers."""
