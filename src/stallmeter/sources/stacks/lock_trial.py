"""Whether the training waits for Python's lock because of the program's other threads: tried, by its switch interval.

A thread that computes in Python keeps the lock for the switch interval, 5 ms, each time that the training thread has
let go of it, as each operation of torch does. With a short interval it must hand it over at once. So the interval is
short and the program's own in turn, and what steps take in either is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...records import LockTrial
from .sampler import SWITCH_S

LEAST_S, LEAST_STEPS = 0.5, 4
"""How long each of the two lasts at least."""

PAIRS = 8
"""So often each is tried; our choice: of eight pairs that differ by chance alone six go one way in one run of seven."""


class SwitchTrial:
    """Decides which interval holds, and adds up the steps of each. For one thread, which calls it now and then."""

    def __init__(self) -> None:
        self.short = False
        """Whether the short one holds now."""
        self._began: tuple[int, int] | None = None
        """Steps and nanoseconds of work when it began to; None where nothing is tried."""
        self._short: tuple[int, int] | None = None
        """Those of the time with the short one, until the other one has had its time."""
        self._pairs: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def turn(self, *, wanted: bool, steps: int, work_ns: int, time_s: float) -> Sequence[LockTrial]:
        """Go on; returns what is known whenever both have had their time once more.

        Args:
            wanted: Whether steps are steady and other threads compute. A time in which they do not counts for nothing.
            steps: That have begun.
            work_ns: Time of the training thread in the steps' own work and in their wait for data, so far.
            time_s: Unix time.
        """
        if not wanted or len(self._pairs) >= PAIRS:
            self.short, self._began, self._short = False, None, None
            return ()
        if self._began is None:
            self.short, self._began = True, (steps, work_ns)
            return ()
        passed = steps - self._began[0], work_ns - self._began[1]
        if passed[0] < LEAST_STEPS or passed[1] < LEAST_S * 1e9:
            return ()
        was_short, self.short, self._began = self.short, not self.short, (steps, work_ns)
        if was_short:
            self._short = passed
            return ()
        if self._short is None:
            return ()
        self._pairs.append((self._short, passed))
        if len(self._pairs) >= PAIRS:
            self.short, self._began, self._short = False, None, None
        return [self._found(time_s)]

    def _found(self, time_s: float) -> LockTrial:
        short, usual = (_mean_s([pair[i] for pair in self._pairs]) for i in (0, 1))
        return LockTrial(
            time_s=time_s,
            pairs=len(self._pairs),
            faster=sum(_mean_s([short]) < _mean_s([usual]) for short, usual in self._pairs),
            short_s=SWITCH_S,
            short_step_s=short,
            usual_step_s=usual,
        )


def _mean_s(parts: Sequence[tuple[int, int]]) -> float:
    return sum(ns for _, ns in parts) / 1e9 / sum(steps for steps, _ in parts)
