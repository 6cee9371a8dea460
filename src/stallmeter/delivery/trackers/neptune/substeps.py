"""Steps that grow within each series, for trackers that take no others.

Neptune wants every point of a series to have a larger step than the one before. Batches that share an optimizer step
and reporting periods without a step would break that, so further points of a step get fractions of it: 7, 7.000001,
7.000002. What was accepted of a sending that failed half-way is remembered, so that sending it again doubles nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ....records.interfaces import Point

SUBSTEP = 1e-6
"""Distance of two points that share a step; neptune-scale keeps six decimals."""


@dataclass(frozen=True, slots=True)
class PlacedPoint:
    """A point with a step that its series can take."""

    point: Point
    step: float
    time_s: float
    """Unix time, never before that of the series' point before: neptune-scale refuses a clock that was set back."""


class Substeps:
    """Remembers where each series is."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], PlacedPoint] = {}
        self._accepted: list[Point] = []

    def place(self, points: Sequence[Point]) -> tuple[list[PlacedPoint], list[Point]]:
        """Return the points that have not been accepted yet, in order, and those whose step is behind their series."""
        accepted = Counter(self._accepted)
        last = dict(self._last)
        placed: list[PlacedPoint] = []
        behind: list[Point] = []
        for point in points:
            if accepted[point]:
                accepted[point] -= 1
                continue
            series = (point.group, point.key)
            found = _after(last.get(series), point)
            if found is None:
                behind.append(point)
            else:
                last[series] = found
                placed.append(found)
        return placed, behind

    def accept(self, placed: Sequence[PlacedPoint]) -> None:
        """Note what the tracker took."""
        for one in placed:
            self._last[one.point.group, one.point.key] = one
            self._accepted.append(one.point)

    def complete(self) -> None:
        """Note that the caller knows of everything that was accepted and will not send it again."""
        self._accepted.clear()


def _after(last: PlacedPoint | None, point: Point) -> PlacedPoint | None:
    if last is None:
        return PlacedPoint(point, point.step, point.time_s)
    time_s = max(point.time_s, last.time_s)
    if point.step > last.step:
        return PlacedPoint(point, point.step, time_s)
    if point.step == math.floor(last.step):
        return PlacedPoint(point, round(last.step + SUBSTEP, 6), time_s)
    return None
