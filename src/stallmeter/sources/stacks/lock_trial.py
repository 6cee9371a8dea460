"""Whether the training waits for Python's lock because of the program's other threads: tried, by its switch interval.

A thread that computes in Python keeps the lock for the switch interval, 5 ms, each time that the training thread has
let go of it, as each operation of torch does. With a short interval it must hand it over at once. So the interval is
short and the program's own in turn, and what steps take in either is compared.

To ask for the lock that often costs time as well, so a short interval wins only a part. How long the training thread
stood still with the program's own says what there is to win at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...records import LockTrial
from .sampler import SWITCH_S

LEAST_S, LEAST_STEPS = 0.5, 4
"""How long each of the two lasts at least."""

PAIRS = 8
"""So often each is tried; our choice: of eight pairs that differ by chance alone six go one way in one run of seven."""


class Passed(NamedTuple):
    """What the training thread has done so far, or in one time of the two."""

    steps: int
    """That have begun."""
    work_ns: int
    """In the steps' own work and in their wait for data."""
    stood_ns: int | None = None
    """In the steps' own work, neither on a CPU nor in line for one; None where nobody counts."""

    def since(self, before: Passed) -> Passed:
        """Return what has come since then."""
        known = self.stood_ns is not None and before.stood_ns is not None
        stood_ns = (self.stood_ns or 0) - (before.stood_ns or 0) if known else None
        return Passed(self.steps - before.steps, self.work_ns - before.work_ns, stood_ns)


class SwitchTrial:
    """Decides which interval holds, and adds up the steps of each. For one thread, which calls it now and then."""

    def __init__(self) -> None:
        self.short = False
        """Whether the short one holds now."""
        self._began: Passed | None = None
        """What had passed when it began to; None where nothing is tried."""
        self._short: Passed | None = None
        """What passed with the short one, until the other one has had its time."""
        self._pairs: list[tuple[Passed, Passed]] = []

    def turn(self, now: Passed, *, wanted: bool, time_s: float) -> Sequence[LockTrial]:
        """Go on; returns what is known whenever both have had their time once more.

        Args:
            now: What has passed so far.
            wanted: Whether steps are steady and other threads compute. A time in which they do not counts for nothing.
            time_s: Unix time.
        """
        if not wanted or len(self._pairs) >= PAIRS:
            self.short, self._began, self._short = False, None, None
            return ()
        if self._began is None:
            self.short, self._began = True, now
            return ()
        passed = now.since(self._began)
        if passed.steps < LEAST_STEPS or passed.work_ns < LEAST_S * 1e9:
            return ()
        was_short, self.short, self._began = self.short, not self.short, now
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
        short, usual = ([pair[i] for pair in self._pairs] for i in (0, 1))
        stood = [one.stood_ns for one in usual if one.stood_ns is not None]
        steps = sum(one.steps for one in usual)
        return LockTrial(
            time_s=time_s,
            pairs=len(self._pairs),
            faster=sum(_mean_s([one]) < _mean_s([other]) for one, other in self._pairs),
            short_s=SWITCH_S,
            short_step_s=_mean_s(short),
            usual_step_s=_mean_s(usual),
            stood_step_s=max(0, sum(stood)) / 1e9 / steps if len(stood) == len(usual) else None,
        )


def _mean_s(parts: Sequence[Passed]) -> float:
    return sum(one.work_ns for one in parts) / 1e9 / sum(one.steps for one in parts)
