"""Which starts of workers are looked into, and what was seen of them; the looking itself is `start_look`'s."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from .loop_look import read_answers
from .ring import Order, Ring
from .worker import start_answers

FIRST_BATCHES = Order(number=1, batches=1, slow=False, first=True)
"""Stands until it is taken back: each worker that finds it looks into its own first batch."""

OF_WORKER = 0
"""It is asked of one worker of each start."""


class StartOrders:
    """Has the first batches of workers looked into.

    Args:
        answers: File that what is seen of batches is written to.
        lock: Held by whoever calls `order`, or changes what ``rings`` returns.
        rings: Returns those of the workers that may start.
    """

    def __init__(self, answers: str, lock: threading.Lock, rings: Callable[[], Sequence[Ring]]) -> None:
        self._answers = start_answers(answers)
        self._lock = lock
        self._rings = rings
        self._left = 0

    def look_at(self, most: int) -> None:
        """Look into starts from now on.

        Args:
            most: So many at the most; those that take no time are none.
        """
        with self._lock:
            self._left = most
            for ring in self._rings():
                self.order(ring)

    def order(self, ring: Ring) -> None:
        """Tell the workers of a ring, where starts are looked into."""
        if self._left:
            ring.order(OF_WORKER, FIRST_BATCHES.word)

    def seen(self) -> list[dict[str, Any]]:
        """Return what was seen by now; nothing once enough was."""
        found = read_answers(self._answers) if self._left else []
        if found:
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._take_back()
        return found

    def look_no_more(self) -> None:
        """Take back what was ordered."""
        with self._lock:
            self._left = 0
            self._take_back()

    def _take_back(self) -> None:
        for ring in self._rings():
            ring.take_back(OF_WORKER, FIRST_BATCHES.word)

    def close(self) -> None:
        """Delete what was seen and nobody took."""
        read_answers(self._answers)
