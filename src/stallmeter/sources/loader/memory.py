"""What the workers of the loaders hold in memory, and on which CPUs they may run, asked for now and then."""

from __future__ import annotations

from collections.abc import Sequence

from ...records import WorkerMemory
from .ring import Worker

RSS_EVERY_S = 5.0
USS_EVERY_S = 60.0
"""The kernel walks every page of every worker for it."""


class MemoryLooks:
    """Asks how much the workers hold, when it is time to."""

    def __init__(self) -> None:
        self._rss_due_s = self._uss_due_s = 0.0

    def sample(self, time_s: float, workers: Sequence[Worker]) -> WorkerMemory | None:
        """Return the workers' memory; None when it is not yet time, or none of them lives.

        Args:
            time_s: Unix time of this poll.
            workers: That have been seen.
        """
        if time_s < self._rss_due_s or not workers:
            return None
        # Not in workers: psutil takes 26 ms to import.
        from ...machine.binding import process_cpus, shared_cpus
        from ...machine.processes import find_readable, rss_bytes, unique_bytes

        found = [find_readable(worker.pid, worker.since_s) for worker in workers]
        sizes = [(process, rss_bytes(process)) for process in found if process is not None]
        alive = {process: size for process, size in sizes if size is not None}
        if not alive:
            return None
        self._rss_due_s = time_s + RSS_EVERY_S
        unique = None
        if time_s >= self._uss_due_s:
            self._uss_due_s = time_s + USS_EVERY_S
            parts = [unique_bytes(process) for process in alive]
            unique = None if None in parts else sum(part or 0 for part in parts)
        own = process_cpus()
        return WorkerMemory(
            time_s=time_s,
            workers=len(alive),
            rss_bytes=sum(alive.values()),
            uss_bytes=unique,
            cpus=shared_cpus([process.pid for process in alive]),
            process_cpus=None if own is None else len(own),
        )
