"""What making a batch costs in the loader's workers, or in the loop's own thread where there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..records import Fork, WorkerBatch, WorkerMemory, WorkerWaits
from ..records.stats import Reservoir, Stats, stats
from .memo import Memo
from .pace import MIN_BATCHES, Pace, Starts
from .waits import WaitSignals

FORKS = 1024
"""Most forks that are kept; their total is exact."""


class _Leading:
    """Reads as the batches of the loader that sets the pace. No property, for records are no signal."""

    def __get__(self, part: WorkerSignals, owner: type) -> Reservoir[WorkerBatch]:
        return part._pace.leading.batches


class WorkerSignals:
    """Signals of the loader's workers; where there are several loaders, of the one that sets the pace.

    Args:
        pace: Knows the loaders.
        batches: Most batches kept, without one.
        samples: Most samples kept of the workers' memory.
    """

    batches = _Leading()

    def __init__(self, pace: Pace | None = None, *, batches: int = 4096, samples: int = 1024) -> None:
        self._pace = Pace(batches=batches) if pace is None else pace
        self.memo = Memo(self._pace.memo)
        self.memory: Reservoir[WorkerMemory] = Reservoir(samples)
        self.waits = WaitSignals(self._pace, self.memo)
        self._forks: Reservoir[Fork] = Reservoir(FORKS)
        self._fork_s = 0.0

    def append(self, record: WorkerBatch | WorkerMemory | WorkerWaits | Fork) -> None:
        """Take a batch, a sample of the workers' memory, looks at what they wait for, or a fork."""
        self.memo.changes += 1
        match record:
            case WorkerBatch():
                self._pace.add_batch(record)
            case WorkerMemory():
                self.memory.add(record)
                self.waits.append(record)
            case WorkerWaits():
                self.waits.append(record)
            case Fork():
                self._forks.add(record)
                self._fork_s += record.wall_s

    @property
    def batch_wall_s(self) -> Stats | None:
        """Time a worker spends on a batch."""
        return self._describe("wall", lambda b: b.wall_s)

    @property
    def service_s(self) -> Stats | None:
        """Time a worker spends on a batch, waiting for a CPU left out."""
        return self._describe("service", lambda b: b.service_s)

    @property
    def batch_cpu_s(self) -> Stats | None:
        """CPU time of a batch, threads of decoders included."""
        return self._describe("cpu", lambda b: b.computed_s)

    @property
    def total_cpu_s(self) -> float | None:
        """CPU time that all workers of all training loaders spent on batches, seconds; None where some are unknown."""
        return self.memo("total", lambda: self._pace.cpu_s)

    @property
    def cpu_wait_share(self) -> float | None:
        """Share (0 to 1) of the workers' time spent waiting for a CPU."""
        return _ratio(self._describe("cpu wait", lambda b: b.run_queue_s), self.batch_wall_s)

    @property
    def blocked_share(self) -> float | None:
        """Share (0 to 1) of the service time in which workers waited for storage, network or a lock."""
        return _ratio(self._describe("blocked", lambda b: b.blocked_s), self.service_s)

    @property
    def busy_share(self) -> float | None:
        """Share (0 to 1) of the workers' time in which they made batches, the rest waiting for something to do."""
        return self.memo("busy", lambda: self._pace.leading.busy_share)

    @property
    def idle(self) -> int | None:
        """Workers that made no batch, or hardly any, while others made many."""
        return self.memo("idle", lambda: self._pace.leading.idle_workers)

    @property
    def starts(self) -> Starts | None:
        """How often workers started, and what their first batches take beyond others; of the loader that lost most."""
        return self.memo("starts", lambda: self._pace.starts)

    @property
    def forks(self) -> Sequence[Fork]:
        """A sample of the forks of the training process."""
        return self._forks.items

    @property
    def fork_s(self) -> float | None:
        """Seconds the training thread was held by forks; None when forks are not watched."""
        return self._fork_s if self._forks.items else None

    def _describe(self, name: str, of: Callable[[WorkerBatch], float | None]) -> Stats | None:
        found = self.memo(name, lambda: stats(v for b in self.batches.items if (v := of(b)) is not None))
        return found if found is not None and found.count >= MIN_BATCHES else None


def _ratio(part: Stats | None, whole: Stats | None) -> float | None:
    if part is None or whole is None or whole.trimmed_mean <= 0:
        return None
    return min(1.0, part.trimmed_mean / whole.trimmed_mean)
