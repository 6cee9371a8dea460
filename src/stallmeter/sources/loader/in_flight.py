"""How many workers of a loader were at work while each batch was made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .ring import Fetch, Making

MOST_RECENT = 1024
"""Finished batches that are kept, because others that overlap with them are still being made."""


class Company(NamedTuple):
    """What went on beside one batch."""

    ahead: int
    """Other batches that were being made when it was begun."""
    in_flight: float
    """Batches that were being made, itself included: mean over its time."""


class InFlight:
    """Looks back over the batches of one loader, a few at a time."""

    def __init__(self) -> None:
        self._recent: list[tuple[int, int]] = []

    def beside(self, made: Sequence[Fetch], making: Iterable[Making]) -> list[Company]:
        """Return what went on beside each batch.

        Args:
            made: Batches finished since the last call.
            making: Batches that were being made just before these were read.
        """
        spans = [(fetch.end_ns - max(1, fetch.wall_ns), fetch.end_ns) for fetch in made]
        begun = {span[0] for span in spans}
        still = [open_.began_ns for open_ in making if open_.began_ns not in begun]
        found = company([*spans, *self._recent], still)[: len(spans)]
        # What will be finished later was begun by now, or will be begun later than anything here ended.
        since = min(still, default=None)
        ended = [] if since is None else [span for span in (*self._recent, *spans) if span[1] > since]
        self._recent = ended[-MOST_RECENT:]
        return found


def company(spans: Sequence[tuple[int, int]], still: Sequence[int] = ()) -> list[Company]:
    """Return what went on beside each of some batches.

    Args:
        spans: Begin and end of each, which is later.
        still: Begin of those that have no end yet.
    """
    # In one moment ends come before begins: a worker that goes from batch to batch is one worker.
    events = [(begin, 1, i) for i, (begin, _) in enumerate(spans)] + [(end, 0, i) for i, (_, end) in enumerate(spans)]
    events += [(begin, 1, -1) for begin in still]
    ahead, area_at, found = [0] * len(spans), [0] * len(spans), [Company(0, 1.0)] * len(spans)
    now = count = area = 0
    for at, begins, i in sorted(events):
        area += count * (at - now)
        now = at
        if not begins:
            count -= 1
            begin, end = spans[i]
            found[i] = Company(ahead[i], (area - area_at[i]) / (end - begin))
            continue
        if i >= 0:
            ahead[i], area_at[i] = count, area
        count += 1
    return found
