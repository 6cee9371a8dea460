"""Looks in rounds: once there are enough of a place, a few more each time that it has grown by half.

What a function takes may grow with a run, or begin late in it. Looks of the first seconds alone would stand for all of
it. So those of a later round stand for all that the place has taken since the round before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .sampler import Look
from .tally import Tally

ROUND = 40
"""Looks of a round: a share is then known to 16 points, two standard errors, and there are several of them."""

GROWS = 1.5
"""Times the time that a place had taken by the last round, from which on there is another: of an hour 17."""


@dataclass(slots=True)
class _Round:
    looked_ns: int
    """What the looks of the first round stood for."""
    first_ns: int
    """What the place had taken when that ended."""
    taken_ns: int
    """The same of the newest round that has ended."""
    tallies: dict[int, Tally] = field(default_factory=dict)
    """Of the round that goes on, by slot; empty where none does."""
    is_open: bool = False


class Rounds:
    """Further looks at places of which there were enough."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, str, str], _Round] = {}

    def forget(self, place: tuple[str, str, str]) -> None:
        """Begin anew: what was seen there has become something else."""
        self._rounds.pop(place, None)

    def add(self, place: tuple[str, str, str], look: Look, bucket: int) -> bool:
        """Take a look for the round that goes on at a place; returns whether there is one."""
        found = self._rounds.get(place)
        if found is None or not found.is_open:
            return False
        found.tallies.setdefault(look.slot, Tally(bucket)).add(look)
        return True

    def wants(self, place: tuple[str, str, str], taken_ns: int, tallies: Mapping[int, Tally]) -> bool:
        """Whether a place of which there were enough looks is to be looked into again.

        Args:
            place: Which.
            taken_ns: What it has taken so far, by the ledger.
            tallies: Its looks so far by slot: a round that has ended is added to them.
        """
        found = self._rounds.get(place)
        if found is None:
            looked_ns = sum(tally.wall_ns for tally in tallies.values())
            self._rounds[place] = _Round(looked_ns, taken_ns, taken_ns)
            return False
        if not found.is_open:
            found.is_open = taken_ns >= GROWS * max(1, found.taken_ns)
            return found.is_open
        seen = found.tallies
        if sum(tally.count for tally in seen.values()) < ROUND:
            return True
        looked_ns = sum(tally.wall_ns for tally in seen.values())
        # As many nanoseconds a look as in the first round, times how much more each stands for.
        stands_ns = found.looked_ns * (taken_ns - found.taken_ns) / max(1, found.first_ns)
        for slot, tally in seen.items():
            if slot in tallies:
                tallies[slot].merge(tally, stands_ns / max(1, looked_ns))
        found.taken_ns, found.tallies, found.is_open = taken_ns, {}, False
        return False
