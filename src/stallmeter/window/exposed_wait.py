"""What steps on the device's timeline say together: how much of the host's wait cost anything, and who set the pace."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from ..records import DeviceStep

MIN_TIMED_STEPS = 5
"""Below this many timed steps nothing is said."""

MIN_ASIDE_S = 20e-6
"""Below this much host time beside the work, events (0.5 µs apart at best) are too coarse to compare it with."""


def timed(steps: Sequence[DeviceStep]) -> Sequence[DeviceStep]:
    """Return the steps whose events could be read."""
    return [s for s in steps if s.exposed_wait_s is not None and s.total_s is not None]


def exposed_share(steps: Sequence[DeviceStep]) -> float | None:
    """Return which share (0 to 1) of the host's wait the device idled for.

    A step whose events could not be read counts with the host's wait, all of it. None with too few timed steps.
    """
    if len(timed(steps)) < MIN_TIMED_STEPS:
        return None
    host = sum(s.host_wait_s for s in steps)
    exposed = sum(s.host_wait_s if s.exposed_wait_s is None else min(s.host_wait_s, s.exposed_wait_s) for s in steps)
    return exposed / host if host > 0 else 1.0


def share_of(steps: Sequence[DeviceStep], part: Callable[[DeviceStep], float | None]) -> float | None:
    """Return a part of the steps as a share (0 to 1) of their device time; None where it was not measured."""
    known = [(p, s.total_s or 0.0) for s in timed(steps) if (p := part(s)) is not None]
    total = sum(t for _, t in known)
    return sum(p for p, _ in known) / total if len(known) >= MIN_TIMED_STEPS and total > 0 else None


def caught_up_share(steps: Sequence[DeviceStep]) -> float | None:
    """Return for which share (0 to 1) of the host time between two steps' work the device had nothing left to do.

    Near 0: work is queued, the device sets the pace. Near 1 it always catches up with the host. That may take it the
    time of a whole step where the host then waits for data for longer: see `queued_share`. None with too few timed
    steps, or where the host goes from one step's work to the next too quickly to tell.
    """
    known = timed(steps)
    host = sum(_aside_s(s) for s in known)
    if len(known) < MIN_TIMED_STEPS or host < MIN_ASIDE_S * len(known):
        return None
    return min(1.0, sum(_idle_s(s) for s in known) / host)


def queued_share(steps: Sequence[DeviceStep]) -> float | None:
    """Return which share (0 to 1) of a step's device time was still to be done when the host was through with the step.

    Near 0 where the device also caught up (`caught_up_share`): it followed the host closely, which therefore set the
    pace, by launching kernels one by one or because it waited for results. None where `caught_up_share` is.
    """
    known = timed(steps)
    work = sum(max(0.0, (s.total_s or 0.0) - _idle_s(s)) for s in known)
    if caught_up_share(steps) is None or work <= 0:
        return None
    return min(1.0, sum(max(0.0, _aside_s(s) - _idle_s(s)) for s in known) / work)


def _aside_s(step: DeviceStep) -> float:
    """Host time in which nothing is queued."""
    return step.host_wait_s + (step.host_idle_s if step.idle_s is not None else 0.0)


def _idle_s(step: DeviceStep) -> float:
    """What the device idled of it."""
    return (step.exposed_wait_s or 0.0) + (step.idle_s or 0.0)


def pace_s(steps: Sequence[DeviceStep]) -> float | None:
    """Return the mean device time of a step if data were free, seconds."""
    known = timed(steps)
    if len(known) < MIN_TIMED_STEPS:
        return None
    return statistics.fmean(max(0.0, (s.total_s or 0.0) - (s.exposed_wait_s or 0.0)) for s in known)


def mean_s(steps: Sequence[DeviceStep], part: Callable[[DeviceStep], float | None]) -> float | None:
    """Return the mean of a part over the timed steps that have it, seconds."""
    known = [p for s in timed(steps) if (p := part(s)) is not None]
    return statistics.fmean(known) if len(known) >= MIN_TIMED_STEPS else None
