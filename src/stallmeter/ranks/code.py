"""Where in the code a rank's steps do their own work, from looks at its training thread's stack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..records import CodeLook
from ..records.code import BETWEEN_EPOCHS, STEPS
from ..records.diagnosis import Location

CALLS = "collectives that it calls itself, share of a step's work, 1"
"""A fact about a rank; what is waited for late ranks is part of it."""

BUFFERS = "sending of the model's buffers, share of a step's work, 1"
"""A fact about a rank; so is its wait there."""

MOST_PLACES = 8
"""Functions of a rank that are known to the others, the largest."""

_MOST = 0.5
"""Part of what a function takes; our choice."""

_LEAST_LOOKS = 50
"""Fewer do not tell a share to a tenth."""

_LEAST_BETWEEN = 20
"""The same between epochs, where the largest function is asked for and no more."""


def places_of(looks: Iterable[object]) -> tuple[Location, ...]:
    """Return in which functions a rank's steps do their own work, the largest first; none where nobody looked.

    What is called once the gradients are there holds the model's time that it takes, too, to evaluate say: of two ranks
    that both call the model this tells who calls it for more.

    Args:
        looks: Of the rank, in any order.
    """
    newest = _newest(looks, STEPS, _LEAST_LOOKS)
    if newest is None:
        return ()
    spots = {(spot.file, spot.function): spot for spot in newest.spots}
    for spot in newest.after:
        known = spots.get((spot.file, spot.function))
        if known is None or spot.wall_s > known.wall_s:
            spots[spot.file, spot.function] = spot
    largest = sorted(spots.values(), key=lambda spot: -spot.wall_s)[:MOST_PLACES]
    meets = {spot.key: spot for spot in newest.meets}
    # Who spends most of it in a collective that a library calls, to log a mean of all ranks say, calls the collective.
    largest = [
        replace(spot, calls=met.calls, called_there=None)
        if (met := meets.get(spot.key)) and met.wall_s >= _MOST * spot.wall_s
        else spot
        for spot in largest
    ]
    return tuple(Location.of(spot, 100.0 * spot.wall_s / newest.wall_s) for spot in largest)


def calls_of(looks: Iterable[object]) -> dict[str, float]:
    """Return which part of its steps' own work a rank is in collectives of its own calls, or sends the buffers.

    Nothing where nobody looked.

    Args:
        looks: Of the rank, in any order.
    """
    newest = _newest(looks, STEPS, _LEAST_LOOKS)
    if newest is None:
        return {}
    sent = {} if newest.buffers_s is None else {BUFFERS: newest.buffers_s / newest.wall_s}
    return {CALLS: newest.collectives_s / newest.wall_s, **sent}


def between_of(looks: Iterable[object]) -> Location | None:
    """Return the function that a rank is in most between two epochs; None where nobody looked, or too seldom.

    Args:
        looks: Of the rank, in any order.
    """
    newest = _newest(looks, BETWEEN_EPOCHS, _LEAST_BETWEEN)
    if newest is None or not newest.spots:
        return None
    return Location.of(newest.spots[0], 100.0 * newest.spots[0].wall_s / newest.wall_s)


def _newest(looks: Iterable[object], bucket: str, least: int) -> CodeLook | None:
    found = [look for look in looks if isinstance(look, CodeLook) and look.place == "loop" and look.bucket == bucket]
    newest = max(found, key=lambda look: look.time_s, default=None)
    return None if newest is None or newest.seen < least or newest.wall_s <= 0 else newest
