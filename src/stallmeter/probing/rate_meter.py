"""How fast steps come once they have settled, measured until enough were seen or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable

from .result import Rate

MIN_STEPS = 5
"""Fewer steps after the warm-up are measured only where the deadline does not allow more."""


def warm_up(workers: int) -> int:
    """Return how many first batches do not count: imports, opened files, and a queue that fills meanwhile."""
    return 3 + 2 * workers


class RateMeter:
    """Counts steps and says when to stop.

    Throughput follows from the mean, so that is what is kept. It is taken over whole rounds of the workers, which
    deliver in bursts. A device is waited for at both ends and nowhere between.

    Args:
        workers: Of the loader that feeds the steps; 0 without one.
        seconds: Most time to measure after the warm-up.
        deadline_s: When to stop whatever was seen, on the clock of ``now``.
        now: Monotonic seconds.
        synchronize: Waits for the device; called only at both ends of what is measured.
        least: Steps to measure even where they take longer than ``seconds``.
        pause_s: Pause at the end of each step, for what a step of the run has besides.
        on_progress: Called about ten times with the part of ``seconds`` that is over, 0 to 1.
    """

    def __init__(
        self,
        *,
        workers: int,
        seconds: float,
        deadline_s: float,
        now: Callable[[], float],
        synchronize: Callable[[], None],
        least: int = MIN_STEPS,
        pause_s: float = 0.0,
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._warm_up = warm_up(workers)
        self._round = max(1, workers)
        self._seconds = seconds
        self._deadline_s = deadline_s
        self._now = now
        self._synchronize = synchronize
        self._least = max(least, self._round)
        self._pause_s = pause_s
        self._on_progress = on_progress
        self._next_word_s = 0.0
        self._seen = 0
        self._first_s = self._start_s = self._end_s = 0.0
        self._samples: int | None = 0
        self._over = False

    def tick(self, samples: int | None) -> bool:
        """A step ended, or a batch came.

        Args:
            samples: Items in it; None where it does not say.

        Returns:
            True when it is enough. What comes afterwards is not counted.
        """
        if self._over:
            return True
        if self._pause_s:
            time.sleep(self._pause_s)
        self._seen += 1
        if self._seen == 1:
            self._synchronize()
            self._first_s = self._now()
        elif self._samples is not None:
            self._samples = None if samples is None else self._samples + samples
        if self._seen == self._warm_up:
            self._synchronize()
            self._start_s = self._now()
            self._samples = 0
        now_s = self._now()
        self._over = now_s >= self._deadline_s or self._enough(now_s)
        if self._over:
            self._synchronize()
            self._end_s = self._now()
        return self._over

    def _enough(self, now_s: float) -> bool:
        counted = self._seen - self._warm_up
        if counted < 0:
            return False
        spent_s = now_s - self._start_s
        if spent_s >= self._next_word_s:
            self._next_word_s = spent_s + self._seconds / 10
            self._on_progress(min(1.0, spent_s / self._seconds))
        return counted >= self._least and counted % self._round == 0 and spent_s >= self._seconds

    def rate(self) -> Rate | None:
        """Return how fast it went; None with fewer than two steps, which have no time between them."""
        settled = self._seen > self._warm_up
        steps = self._seen - (self._warm_up if settled else 1)
        spent_s = self._end_s - (self._start_s if settled else self._first_s)
        if not self._over or steps < 1 or spent_s <= 0:
            return None
        samples = None if not self._samples else self._samples / steps
        return Rate(step_time_s=spent_s / steps, batch_samples=samples, steps=steps, settled=settled)
