"""What making a batch costs in the loader's workers, or in the loop's own thread where there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..records import Fork, WorkerBatch, WorkerMemory, WorkerWaits
from ..records.stats import Reservoir, Stats, stats
from .memo import Memo
from .waits import WaitSignals

MIN_BATCHES = 5
"""Below this many probed batches nothing is said."""

TURNAROUND_S = 0.001
"""A worker that never runs out of work still takes up to this between two batches (benchmarks/workers: 0.2-0.8 ms)."""

FORKS = 1024
"""Most forks that are kept; their total is exact."""


class WorkerSignals:
    """Signals of the loader's workers.

    Args:
        batches: Most batches kept.
        samples: Most samples kept of the workers' memory.
    """

    def __init__(self, *, batches: int = 4096, samples: int = 1024) -> None:
        self.memo = Memo()
        self.batches: Reservoir[WorkerBatch] = Reservoir(batches)
        self.memory: Reservoir[WorkerMemory] = Reservoir(samples)
        self.waits = WaitSignals(self.batches, self.memo)
        self._forks: Reservoir[Fork] = Reservoir(FORKS)
        self._fork_s = 0.0

    def append(self, record: WorkerBatch | WorkerMemory | WorkerWaits | Fork) -> None:
        """Take a batch, a sample of the workers' memory, looks at what they wait for, or a fork."""
        self.memo.changes += 1
        match record:
            case WorkerBatch():
                self.batches.add(record)
            case WorkerMemory():
                self.memory.add(record)
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
        return self._describe("cpu", _batch_cpu_s)

    @property
    def cpu_wait_s(self) -> Stats | None:
        """Time a worker was ready to run a batch but had no CPU."""
        return self._describe("cpu wait", lambda b: b.run_queue_s)

    @property
    def cpu_wait_share(self) -> float | None:
        """Share (0 to 1) of the workers' time spent waiting for a CPU."""
        return _ratio(self.cpu_wait_s, self.batch_wall_s)

    @property
    def blocked_share(self) -> float | None:
        """Share (0 to 1) of the service time in which workers waited for storage, network or a lock."""
        return _ratio(self._describe("blocked", lambda b: b.blocked_s), self.service_s)

    @property
    def busy_share(self) -> float | None:
        """Share (0 to 1) of the workers' time in which they made batches, the rest waiting for something to do."""
        return self.memo("busy", self._find_busy_share)

    def _find_busy_share(self) -> float | None:
        known = [(b.wall_s, max(0.0, b.idle_s - TURNAROUND_S)) for b in self.batches.items if b.idle_s is not None]
        total = sum(wall + idle for wall, idle in known)
        return sum(wall for wall, _ in known) / total if len(known) >= MIN_BATCHES and total > 0 else None

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


def _batch_cpu_s(batch: WorkerBatch) -> float:
    """In a worker the process makes nothing but batches; in the loop thread only the thread's own time counts."""
    if batch.worker < 0 or batch.process_cpu_s is None:
        return batch.cpu_s
    return max(batch.cpu_s, batch.process_cpu_s)
