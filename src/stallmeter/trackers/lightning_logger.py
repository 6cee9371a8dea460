"""Forwards to any Lightning logger through ``log_metrics``: TensorBoard, CSV, W&B and whatever else a trainer has."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..errors import TrackerUnavailableError
from ..interfaces import Page, Point

MAILBOX_POINTS = 20_000
"""Most points that wait for the training thread."""

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
        self._mailbox: deque[Point] = deque()
        self._mailbox_points = mailbox_points

    def send(self, points: Sequence[Point]) -> None:
        """Put points into the mailbox.

        Raises:
            TrackerUnavailableError: It is full.
        """
        if len(self._mailbox) + len(points) > self._mailbox_points:
            raise TrackerUnavailableError(f"{len(self._mailbox)} points wait for the training thread to log them")
        self._mailbox.extend(points)

    @property
    def waiting(self) -> bool:
        """Whether there is anything to deliver."""
        return bool(self._mailbox)

    def deliver(self) -> int:
        """Log what is in the mailbox, one call per step where that is possible. Call it on the training thread.

        Returns:
            Number of points logged.
        """
        count = len(self._mailbox)
        rows: list[tuple[int, dict[str, float]]] = []
        newest: dict[int, dict[str, float]] = {}
        for _ in range(count):
            point = self._mailbox.popleft()
            key = _PREFIX[point.group] + point.key
            # With gradient accumulation several batches share a step: a second value of a key is a call of its own.
            if key in newest.get(point.step, {key: 0.0}):
                newest[point.step] = {}
                rows.append((point.step, newest[point.step]))
            newest[point.step][key] = point.value
        for step, metrics in rows:
            self._logger.log_metrics(metrics, step=step)
        return count

    def show(self, page: Page) -> None:
        """Do nothing: loggers have no common way to show it."""

    def close(self) -> None:
        """Do nothing: the trainer closes its loggers."""
