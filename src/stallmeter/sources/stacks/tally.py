"""Looks at the training thread's stack, added up: how much time each stack stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from ...machine.frames import Stack
from .sampler import Look


class Tally:
    """The looks at one place. For one thread.

    Args:
        bucket: Of the ledger, as far as all of them are of one.
    """

    def __init__(self, bucket: int | None = None) -> None:
        self.bucket = bucket
        self.count = 0
        """How many looks."""
        self.wall_ns = 0
        """The time that they stand for."""
        # By the identity of the codes, which are kept: a code's hash reads all of its instructions.
        self._wall_ns: dict[tuple[tuple[int, int], ...], int] = {}
        self._stacks: dict[tuple[tuple[int, int], ...], Stack] = {}

    def add(self, look: Look) -> None:
        """Take a look."""
        key = tuple((id(code), at) for code, at in look.stack)
        self.count += 1
        self.wall_ns += look.weight_ns
        self._stacks.setdefault(key, look.stack)
        self._wall_ns[key] = self._wall_ns.get(key, 0) + look.weight_ns

    def merge(self, other: Tally, factor: float) -> None:
        """Take the looks of another one, each of which stands for so many times its time."""
        self.count += other.count
        for key, stack in other._stacks.items():
            wall_ns = round(factor * other._wall_ns[key])
            self.wall_ns += wall_ns
            self._stacks.setdefault(key, stack)
            self._wall_ns[key] = self._wall_ns.get(key, 0) + wall_ns

    def items(self) -> Iterator[tuple[Stack, int]]:
        """Yield each stack with its nanoseconds."""
        for key, stack in self._stacks.items():
            yield stack, self._wall_ns[key]


def items_of(tallies: Iterable[Tally]) -> Iterator[tuple[Stack, int]]:
    """Yield each stack of tallies with its nanoseconds."""
    return chain.from_iterable(tally.items() for tally in tallies)
