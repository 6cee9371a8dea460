"""What is known of a loader's workers besides their batches: their shared memory, and whether they were heard of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

from ...records import LoaderInfo
from .in_flight import InFlight
from .ring import Ring
from .worker import WorkerInit

SILENT_BATCHES = 8
"""When the loop has had so many batches and none came from the workers, they are another loader's."""


class Row:
    """The shared memory of one loader's workers."""

    __slots__ = ("in_flight", "init", "last", "loader", "number", "ring")

    def __init__(self, init: WorkerInit, ring: Ring, number: int) -> None:
        self.init = weakref.ref(init)
        self.ring = ring
        self.in_flight = InFlight()
        self.number = number
        self.last: int | None = None
        """The worker that made the newest batch."""
        self.loader: Callable[[], Any] = _nothing
        """The loader that had the function last."""


class Ear:
    """Whether one loader's workers were heard of."""

    __slots__ = ("heard", "loader", "silent", "since", "sure")

    def __init__(self, loader: Any, since: int) -> None:
        self.loader = weakref.ref(loader)
        self.heard = False
        self.since: int | None = since
        """Batches that the loop had had when workers were expected; None when there is nothing to wait for."""
        self.silent: LoaderInfo | None = None
        """Of a loader whose workers make none of the loop's batches: what it would be."""
        self.sure = False
        """Whether the loop was seen to take its batches, whoever else feeds the iterator that is looked at."""

    def listen(
        self, info: LoaderInfo | None, number: int, heard: Set[int], feeding: Set[int], handed_out: int
    ) -> LoaderInfo | None:
        """Workers were heard of, or were not: then it may be another loader's that make the batches.

        Where the loop's iterator can be looked into, it tells whose they are: workers of a validation loader in the
        same wrapper are heard of, too.

        Args:
            info: What is known of the loader.
            number: Of the loader.
            heard: Loaders whose workers have made batches since the last time.
            feeding: Those that the loop's iterator takes batches of; empty where it does not tell.
            handed_out: Batches that the loop has had.

        Returns:
            What is to be told of the loader from now on; None where that is what was told.
        """
        if self.sure:
            return None
        if feeding and self.heard and number not in feeding:
            self.heard, self.since = False, self.since or 0
        if number in feeding or (not feeding and number in heard):
            known, self.silent, self.since, self.heard = self.silent, None, None, True
            return known
        if self.since is not None and handed_out - self.since >= SILENT_BATCHES:
            self.since = None
            if info is not None and info.probed:
                self.silent = info
                return silenced(info)
        return None


def silenced(info: LoaderInfo) -> LoaderInfo:
    """Return what is known of a loader whose workers make no batches of the loop: not how many make them."""
    why_not = f"none of the loop's batches came from its workers: {info.kind} hands out those of another loader"
    return replace(info, num_workers=None, probed=False, why_not=why_not)


def _nothing() -> None:
    return None
