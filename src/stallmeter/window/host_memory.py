"""Whether the memory that this rank's processes hold grows, and how full shared memory is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from ..records import HostSample, MemorySample
from ..records.stats import Reservoir
from .memo import Memo
from .steps import StepSignals
from .trends import Trend, after_warm_up, slope, trend_of

MIN_IN_USE = 5
"""Readings of the allocator from which a median slope is told: ten pairs, of which more than half must be far off."""


class SharedMemorySignals:
    """Signals of /dev/shm, of all samples: of those that are kept the fullest moment may be missing."""

    def __init__(self) -> None:
        self._size: int | None = None
        self._least: int | None = None
        self._most: int | None = None

    def append(self, sample: HostSample) -> None:
        """Take a sample."""
        free = sample.shm_free_bytes
        if free is None or sample.shm_size_bytes is None:
            return
        self._size = sample.shm_size_bytes
        self._least = free if self._least is None else min(free, self._least)
        self._most = free if self._most is None else max(free, self._most)

    @property
    def size_bytes(self) -> int | None:
        """Size of /dev/shm; None where there is none."""
        return self._size

    @property
    def least_free_bytes(self) -> int | None:
        """Least free space that was seen."""
        return self._least

    @property
    def most_free_bytes(self) -> int | None:
        """Most free space that was seen: what the loader may fill."""
        return self._most


class HostMemorySignals:
    """Signals of the memory that processes hold.

    Where the kernel does not tell pages of files from the rest, they are made of resident memory, once a second.

    Args:
        samples: Of the host.
        steps: Tell when training began, and its epochs.
        memo: Of the samples.
        size: Most samples kept.
    """

    def __init__(self, samples: Reservoir[HostSample], steps: StepSignals, memo: Memo, *, size: int = 1024) -> None:
        self.memo = Memo(memo)
        self._hosts, self._steps = samples, steps
        self._samples: Reservoir[MemorySample] = Reservoir(size)
        self._peak_pct: float | None = None
        self.shm = SharedMemorySignals()

    def append(self, sample: MemorySample | HostSample) -> None:
        """Take a sample. Those of the host are kept by who made this."""
        self.memo.changes += 1
        if not isinstance(sample, HostSample):
            self._samples.add(sample)
            return
        self.shm.append(sample)
        used, limit = sample.memory_limit_used_bytes, sample.memory_limit_bytes
        if used is not None and limit:
            self._peak_pct = max(100.0 * used / limit, self._peak_pct or 0.0)

    @property
    def peak_pct(self) -> float | None:
        """Highest share of the memory limit in use, of all samples: of those that are kept a peak may be missing."""
        return self._peak_pct

    @property
    def is_resident(self) -> bool | None:
        """Whether pages of files are counted, too; None when nothing was measured."""
        return not self._samples.items if self._samples.items or self._hosts.items else None

    @property
    def main_trend(self) -> Trend | None:
        """Trend of the memory of the training process, bytes, since the first steps."""
        return self.memo(
            "main",
            lambda: self._find(lambda s: s.main_bytes + s.main_shared_bytes, lambda s: s.main_rss_bytes),
        )

    @property
    def in_use_per_s(self) -> float | None:
        """Rise of the memory in use by the second, bytes: the median slope between two readings.

        None where there are fewer than `MIN_IN_USE`. These do not tell a trend, but whether they contradict one.
        """
        return self.memo("in use a second", self._in_use_per_s)

    @property
    def in_use_trend(self) -> Trend | None:
        """Trend of the memory of the training process without what it has freed and its allocator keeps, bytes.

        None where the allocator does not tell, or was not asked often enough.
        """
        return self.memo("in use", lambda: trend_of(self._while_stepping(), _in_use))

    @property
    def workers_trend(self) -> Trend | None:
        """Trend of what the child processes have taken since each began, bytes; without child processes it is level."""
        return self.memo("workers", lambda: self._find(lambda s: s.workers_grown_bytes, lambda s: s.children_rss_bytes))

    @property
    def workers_bytes(self) -> float | None:
        """Memory of all child processes, median since the first steps."""
        begun_s = self._steps.begun_s
        held: list[float] = [s.workers_bytes for s in self._samples.items if s.time_s >= begun_s]
        resident = [s.children_rss_bytes for s in self._hosts.items if s.children_rss_bytes is not None]
        return statistics.median(held or resident) if held or resident else None

    @property
    def private_trend(self) -> Trend | None:
        """Trend of the memory that no two processes share, bytes: where it grows alone, shared pages become copies."""
        return self.memo("private", lambda: self._of_hosts(lambda s: s.job_uss_bytes))

    @property
    def used_trend(self) -> Trend | None:
        """Trend of the memory in use under the limit, bytes, whoever uses it."""
        return self.memo("used", lambda: self._of_hosts(lambda s: s.memory_limit_used_bytes))

    @property
    def left_bytes(self) -> float | None:
        """Memory left under the limit in the newest sample that tells."""
        for s in reversed(self._hosts.items):
            if s.memory_limit_bytes is not None and s.memory_limit_used_bytes is not None:
                return max(0, s.memory_limit_bytes - s.memory_limit_used_bytes)
        return None

    @property
    def steps_per_s(self) -> float | None:
        """Steps begun a second, over the samples since the first steps."""
        begun_s = self._steps.begun_s
        known = [(s.time_s, s.step) for s in self._samples.items if s.time_s >= begun_s and s.step is not None]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])

    @property
    def later_epochs_share(self) -> float | None:
        """Share (0 to 1) of the time since the first steps that lies after the first epoch; None without steps.

        A cache of the dataset fills in the first epoch, so that growth in later ones is none of it.
        """
        steps = self._steps.steady
        if not steps:
            return None
        first, began_s, ended_s = steps[0].epoch, steps[0].time_s, steps[-1].time_s
        second_s = next((step.time_s for step in steps if step.epoch > first), ended_s)
        return (ended_s - second_s) / (ended_s - began_s) if ended_s > began_s else 0.0

    def _in_use_per_s(self) -> float | None:
        known = [(s.time_s, used) for s in self._while_stepping() if (used := _in_use(s)) is not None]
        kept = after_warm_up(known)
        return slope(kept) if len(kept) >= MIN_IN_USE else None

    def _find(
        self, held: Callable[[MemorySample], float | None], resident: Callable[[HostSample], float | None]
    ) -> Trend | None:
        if not self._samples.items:
            return self._of_hosts(resident)
        return trend_of(self._while_stepping(), held)

    def _while_stepping(self) -> Sequence[MemorySample]:
        """Samples between which a step began: a leak stands still in a long validation and after the last step."""
        begun_s, last = self._steps.begun_s, None
        kept = []
        for sample in self._samples.items:
            if sample.time_s >= begun_s and (sample.step is None or sample.step != last):
                kept.append(sample)
            last = sample.step
        return kept

    def _of_hosts(self, of: Callable[[HostSample], float | None]) -> Trend | None:
        return trend_of(self._hosts.items, of, since_s=self._steps.begun_s)


def _in_use(sample: MemorySample) -> float | None:
    free = sample.main_free_bytes
    return None if free is None else sample.main_bytes + sample.main_shared_bytes - free
