"""What is known of a loader's workers besides their batches: their shared memory, and whether they were heard of."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...records import LoaderInfo
from .in_flight import InFlight
from .ring import Ring
from .worker import WorkerInit


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

    __slots__ = ("heard", "loader", "silent", "since")

    def __init__(self, loader: Any, since: int) -> None:
        self.loader = weakref.ref(loader)
        self.heard = False
        self.since: int | None = since
        """Batches that the loop had had when workers were expected; None when there is nothing to wait for."""
        self.silent: LoaderInfo | None = None
        """Of a loader whose workers make none of the loop's batches: what it would be."""


def silenced(info: LoaderInfo) -> LoaderInfo:
    """Return what is known of a loader whose workers make no batches of the loop: not how many make them."""
    why_not = f"none of the loop's batches came from its workers: {info.kind} hands out those of another loader"
    return replace(info, num_workers=None, probed=False, why_not=why_not)


def _nothing() -> None:
    return None
