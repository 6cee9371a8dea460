"""How long the loop's own thread takes to choose the items of a batch: sampler and batch sampler run there.

Whatever the number of workers, torch asks the sampler in the thread that asks for batches. A sampler that sorts,
draws weights or looks lengths up therefore holds up the loop, and looks like a slow hand-over, or without workers like
a slow dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

from ...timing.tracebacks import let_out
from .dataloader import is_iterable

TORCH = "torch.utils.data.dataloader"
"""Iterators of other packages keep a state of the sampler's iterator: they are left as they are."""

ENOUGH = 16
"""So many batches tell how long choosing the items of one takes."""

SAME = 0.25
"""A time that differs by less from what was told, relatively, is the same."""

LEAST_S = 0.0005
"""A change by less is none."""


class IndexTimes:
    """Seconds that samplers took, by loader. For the training thread; `taken` may be read by another one."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken: dict[int, tuple[int, int]] = {}
        """Nanoseconds and batches, by the loader's number."""

    def watch(self, iterator: Any, number: int) -> None:
        """Time the sampler of a loader's iterator, for the epoch that it is in. Again for the same changes nothing."""
        if type(iterator).__module__ != TORCH or is_iterable(iterator):
            return
        asked = getattr(iterator, "_sampler_iter", None)
        # Only torch's iterator holds it, and makes a new one for each epoch: nothing is to be put back.
        if asked is not None and type(asked) is not _Timed:
            iterator._sampler_iter = _Timed(asked, self.taken, number)

    def to_tell(self, number: int, told_s: float | None) -> float | None:
        """Return the mean time of a batch of a loader where it is known, and is another one than was told; seconds."""
        spent_ns, count = self.taken.get(number, (0, 0))
        if count < ENOUGH:
            return None
        found_s = spent_ns / count / 1e9
        return found_s if told_s is None or abs(found_s - told_s) > max(LEAST_S, SAME * told_s) else None


class _Timed:
    """A sampler's iterator, with a clock around each of its answers."""

    __slots__ = ("_iterator", "_number", "_taken")

    def __init__(self, iterator: Iterator[Any], taken: dict[int, tuple[int, int]], number: int) -> None:
        self._iterator, self._taken, self._number = iterator, taken, number

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        begun = perf_counter_ns()
        try:
            found = next(self._iterator)
        except BaseException as exc:
            let_out(exc)
            raise
        spent, count = self._taken.get(self._number, (0, 0))
        self._taken[self._number] = spent + perf_counter_ns() - begun, count + 1
        return found

    def __getattr__(self, name: str) -> Any:
        if name in _Timed.__slots__:  # not set yet, as in a copy
            raise AttributeError(name)
        return getattr(self._iterator, name)
