"""Several training loaders: what is known of each, and which of them sets the pace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..records import NO_LOADER, LoaderInfo, WorkerBatch
from ..records.stats import Reservoir
from .memo import Memo

MIN_BATCHES = 5
"""Below this many probed batches nothing is said."""

MOST_LOADERS = 16
"""Of further ones nothing is kept."""

NEAR = 0.9
"""Loaders with this share of the greatest need may as well be the slowest: then the busier one is."""

BUSY = 0.9
"""Workers busy for this share of their time set the pace, whatever else the loop waits for."""

TURNAROUND_S = 0.001
"""A worker that never runs out of work still takes up to this between two batches (benchmarks/workers: 0.2-0.8 ms)."""

FAIR_BATCHES = 8.0
"""Batches that each worker would have made if all had made as many: below, nothing is said of one without any."""

IDLE_SHARE = 0.1
"""A worker with less than this share of a fair share makes hardly any."""


@dataclass(frozen=True, slots=True)
class Starts:
    """How often a loader's workers started, and what their first batch takes beyond others."""

    times: int
    """All of them together count as one."""
    excess_s: float
    """Mean time of a worker for its first batch, its ``worker_init_fn`` included, beyond the mean of its others.

    0 where there are too few others.
    """
    batches: int = 0
    """That its workers have made."""
    init_s: float = 0.0
    """Mean time of a worker in its ``worker_init_fn``."""
    batch_s: float = 0.0
    """Mean time from one batch to the next, all of its workers making them."""
    batches_per_step: float = 1.0
    """That the loop takes."""
    ahead: int = 0
    """Batches that are made before they are asked for."""
    beside: int = 0
    """Starts of the other loaders that the loop asks."""


@dataclass(slots=True)
class OneLoader:
    """One loader's batches."""

    size: int
    info: LoaderInfo | None = None
    batches: Reservoir[WorkerBatch] = field(init=False)
    by_worker: Counter[int] = field(default_factory=Counter)
    """How many batches each worker has made, with the present number of workers."""
    firsts: int = 0
    """Batches that were a worker's first."""
    firsts_s: float = 0.0
    """What those took."""
    inits_s: float = 0.0
    """Of that in ``worker_init_fn``."""

    def __post_init__(self) -> None:
        self.batches = Reservoir(self.size)

    @property
    def usable(self) -> bool:
        """Whether its workers are known to make batches of the loop."""
        return self.info is not None and self.info.probed and self.info.num_workers is not None

    @property
    def service_s(self) -> float | None:
        """Mean time of a worker for a batch, waiting for a CPU left out."""
        items = self.batches.items
        return sum(b.service_s for b in items) / len(items) if len(items) >= MIN_BATCHES else None

    @property
    def need_s(self) -> float | None:
        """Seconds that its workers took for all their batches, each of them for its part."""
        service_s, workers = self.service_s, (self.info.num_workers if self.info else None) or 1
        return None if service_s is None else service_s * len(self.batches) / workers

    @property
    def cpu_s(self) -> float | None:
        """CPU time of its workers for all their batches; 0 where the loop makes them itself."""
        if self.info is None or not self.usable:
            return None
        made = [b.computed_s for b in self.batches.items if b.worker >= 0]
        return 0.0 if not self.info.num_workers or not made else len(self.batches) * math.fsum(made) / len(made)

    @property
    def busy_share(self) -> float | None:
        """Share of the workers' time in which they made batches."""
        known = [(b.wall_s, max(0.0, b.idle_s - TURNAROUND_S)) for b in self.batches.items if b.idle_s is not None]
        total = sum(wall + idle for wall, idle in known)
        return sum(wall for wall, _ in known) / total if len(known) >= MIN_BATCHES and total > 0 else None

    @property
    def starts(self) -> Starts | None:
        """How often its workers started; None where that cannot be told."""
        others = [b.service_s for b in self.batches.items if b.idle_s is not None]
        info = self.info
        workers = (info.num_workers if info else None) or 0
        if info is None or not workers or self.firsts + len(others) < MIN_BATCHES or not self.firsts:
            return None
        known = len(others) >= MIN_BATCHES
        excess_s = self.firsts_s / self.firsts - sum(others) / len(others) if known else 0.0
        return Starts(
            self.firsts // workers,
            max(0.0, excess_s),
            len(self.batches),
            self.inits_s / self.firsts,
            batch_s=(self.service_s or 0.0) / workers,
            batches_per_step=max(1.0, info.batches_per_step or 1.0),
            ahead=workers * (info.prefetch_factor or 2),
        )

    @property
    def idle_workers(self) -> int | None:
        """Workers without batches, or with hardly any, where the others made many; None when that cannot be told."""
        info = self.info
        workers = (info.num_workers if info else None) or 0
        made = sum(self.by_worker.values())
        if info is None or workers < 2 or made < MIN_BATCHES:
            return None
        if info.shards_itself and info.shards is not None and info.shards < workers:
            return workers - info.shards
        if made < FAIR_BATCHES * workers:
            return None
        # Where batches come as they are ready, one that is held up by a slow item falls behind.
        few = 0.0 if info.in_order is False else IDLE_SHARE * made / workers
        return sum(self.by_worker[worker] <= few for worker in range(workers))


class Pace:
    """What is known of the training's loaders, for the parts that speak of the one that sets the pace.

    Args:
        batches: Most batches kept of each loader.
    """

    def __init__(self, *, batches: int = 4096) -> None:
        self.memo = Memo()
        self._size = batches
        self._loaders: dict[int, OneLoader] = {}

    def add_info(self, info: LoaderInfo) -> None:
        """Take a loader's settings."""
        self.memo.changes += 1
        one = self._one(info.loader)
        if one is None:
            return
        if one.info is not None and one.info.num_workers != info.num_workers:
            one.by_worker.clear()
            one.firsts, one.firsts_s, one.inits_s = 0, 0.0, 0.0
        one.info = info

    def add_batch(self, batch: WorkerBatch) -> None:
        """Take a batch of a worker."""
        self.memo.changes += 1
        one = self._one(batch.loader)
        if one is None:
            return
        one.batches.add(batch)
        one.by_worker[batch.worker] += 1
        if batch.idle_s is None and batch.worker >= 0:
            one.firsts += 1
            one.firsts_s += batch.service_s + (batch.init_s or 0.0)
            one.inits_s += batch.init_s or 0.0

    def infos(self) -> dict[int, LoaderInfo]:
        """Return the settings of all loaders by their numbers."""
        return {number: one.info for number, one in sorted(self._loaders.items()) if one.info is not None}

    @property
    def count(self) -> int | None:
        """Training loaders whose batches the loop takes; None when none is known."""
        known = [one for one in self._loaders.values() if one.info is not None]
        return sum(one.usable for one in known) or len(known) or None

    @property
    def number(self) -> int:
        """The loader that sets the pace."""
        return self.memo("number", self._find)

    @property
    def leading(self) -> OneLoader:
        """What is known of the loader that sets the pace."""
        return self._loaders.get(self.number) or OneLoader(self._size)

    @property
    def starts(self) -> Starts | None:
        """Of the loader whose workers take longest to start, all of their starts together."""
        known = [starts for one in self._loaders.values() if (starts := one.starts) is not None]
        most = max(known, key=lambda starts: starts.times * starts.excess_s, default=None)
        return None if most is None else replace(most, beside=sum(one.times for one in known) - most.times)

    @property
    def cpu_s(self) -> float | None:
        """CPU time of all workers for all batches; None where a loader's workers are not known."""
        found = [one.cpu_s for one in self._loaders.values() if one.info is not None and one.info.kind != NO_LOADER]
        return None if None in found else math.fsum(cpu_s or 0.0 for cpu_s in found)

    @property
    def without_workers(self) -> Sequence[int]:
        """Numbers of the loaders that make their batches in the loop, where others have workers."""
        if self.certain:
            return ()
        infos = {number: info for number, info in self.infos().items() if self._loaders[number].usable}
        return [number for number, info in infos.items() if not info.num_workers]

    @property
    def certain(self) -> bool:
        """Whether it can be the one: not where another loader makes its batches in the loop, unseen."""
        usable = [one for one in self._loaders.values() if one.usable]
        if len({bool(one.info and one.info.num_workers) for one in usable}) < 2:
            return True
        return (self.leading.busy_share or 0.0) >= BUSY

    def _find(self) -> int:
        usable = {number: one for number, one in self._loaders.items() if one.usable}
        needs = {number: need_s for number, one in usable.items() if (need_s := one.need_s) is not None}
        if needs:
            near = [number for number, need_s in needs.items() if need_s >= NEAR * max(needs.values())]
            return max(near, key=lambda number: (usable[number].busy_share or 0.0, needs[number], -number))
        with_workers = [number for number, one in usable.items() if one.info and one.info.num_workers]
        return min(with_workers or usable or self._loaders, default=0)

    def _one(self, number: int) -> OneLoader | None:
        if number not in self._loaders and len(self._loaders) < MOST_LOADERS:
            self._loaders[number] = OneLoader(self._size)
        return self._loaders.get(number)
