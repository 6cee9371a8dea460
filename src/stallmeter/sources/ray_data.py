"""What Ray Data has itself counted of the loop's waits: its statistics become evidence.

Ray keeps them in the generator that the loop iterates (``DatasetStats`` of ``ray.data``), from where they are read
while it runs; `Dataset.stats()` tells them only of finished executions. Ray is neither imported nor called.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..records import LibraryWait

MOST_OBJECTS = 512

TOTAL = "iter_total_blocked_s"

PARTS = {
    "production": "iter_blocked_production_wait_s",
    "transfer": "iter_blocked_data_transfer_s",
    "batching": "iter_blocked_batching_s",
    "format": "iter_blocked_format_s",
    "collate": "iter_blocked_collate_s",
    "finalize": "iter_blocked_finalize_s",
}
"""What Ray attributes the waits to, and where it keeps that. Before 2.50 it kept the total alone."""


class RayDataSource:
    """The source of `LibraryWait`; returns nothing where the loop iterates no Ray Data.

    Args:
        iterator_of: Returns the iterator that the loop asks for batches, None while there is none.
    """

    name = "ray data"
    overflows = False

    def __init__(self, iterator_of: Callable[[], object | None]) -> None:
        self._iterator_of = iterator_of
        self._last_s = 0.0

    def sample(self, time_s: float) -> Sequence[LibraryWait]:
        """Return what Ray has counted of the present iteration, where that has grown.

        Args:
            time_s: Unix time of this poll.
        """
        iterator = self._iterator_of() if "ray.data" in sys.modules else None
        stats = None if iterator is None else find_statistics(iterator)
        total_s = None if stats is None else _seconds(stats, TOTAL)
        if not total_s or total_s == self._last_s:
            return ()
        self._last_s = total_s
        parts = {name: known for name, of in PARTS.items() if (known := _seconds(stats, of))}
        return [LibraryWait(time_s=time_s, library="Ray Data", blocked_s=total_s, parts=parts)]

    def close(self) -> None:
        """Nothing is held open."""


def find_statistics(iterator: object) -> Any | None:
    """Return Ray's statistics of an iteration, None where it has none.

    The garbage collector is asked what each object refers to: that runs no code of theirs, and sees the variables of
    generators.
    """
    queue, seen = deque([iterator]), {id(iterator): iterator}
    while queue and len(seen) < MOST_OBJECTS:
        part = queue.popleft()
        if type(part).__name__ == "DatasetStats" and type(part).__module__.startswith("ray.data"):
            return part
        for member in gc.get_referents(part):
            if id(member) in seen or isinstance(member, (type, str, bytes, int, float)) or _is_namespace(member):
                continue
            seen[id(member)] = member
            queue.append(member)
    return None


def _is_namespace(member: object) -> bool:
    return type(member) is type(sys) or (type(member) is dict and "__builtins__" in member)


def _seconds(stats: Any, name: str) -> float | None:
    with suppress(AttributeError, TypeError, ValueError):  # another version's
        return float(getattr(stats, name).get())
    return None
