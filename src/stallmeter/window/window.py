"""A run's history and the signals that rules may read. A signal that was not measured is None.

The window keeps records (`Store`), adds what hardware says (`HardwareSignals`) and here what steps and ledger say.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..records import StepRecord, WorkerBatch
from ..records.stats import Stats, stats
from .hardware import HardwareSignals
from .store import MIN_STEADY_STEPS

BODY = ("h2d", "forward", "backward", "compute")
"""Buckets of a step's own work."""

LOSSES = ("data_wait", "callbacks", "logging", "checkpoint")
"""Buckets that hold the steps up all through a run."""


@dataclass(frozen=True, slots=True)
class Outliers:
    """Steps that took much longer than the others, scaled from the sample to the whole run."""

    count: int
    excess_s: float
    """Seconds beyond the median step, all of them together."""
    longest_s: float


class Window(HardwareSignals):
    """History of one run on one rank, and its signals.

    Args:
        steps: Most step records kept.
        samples: Most samples kept of the host, of each GPU and of the workers' memory.
        batches: Most worker batches kept.
    """

    # -- the ledger ----------------------------------------------------------------------------------------------------

    @property
    def wall_s(self) -> float | None:
        """Wall time of the run."""
        return None if self.ledger is None else self.ledger.wall_s

    @property
    def training_s(self) -> float | None:
        """Wall time without the start: what a share of training refers to."""
        if self.ledger is None:
            return None
        return max(0.0, self.ledger.wall_s - self.ledger.buckets.get("start", 0.0))

    @property
    def _spent(self) -> Mapping[str, float]:
        """Seconds of wall time by bucket. Data wait that the device hid behind its queued work is compute."""
        return self.remember("spent", self._settle_spent)

    def _settle_spent(self) -> Mapping[str, float]:
        if self.ledger is None:
            return {}
        buckets, share = self.ledger.buckets, self.exposed_share
        if share is None:
            return buckets
        hidden = (1.0 - share) * buckets.get("data_wait", 0.0)
        moved = {"data_wait": buckets.get("data_wait", 0.0) - hidden, "compute": buckets.get("compute", 0.0) + hidden}
        return {**buckets, **moved}

    def bucket_s(self, bucket: str) -> float | None:
        """Seconds of wall time in a bucket, hidden data wait counted as compute."""
        return self._spent.get(bucket)

    def share_pct(self, seconds: float) -> float | None:
        """A number of seconds as a percentage of the wall time."""
        wall = self.wall_s
        return None if not wall else 100.0 * seconds / wall

    def training_share_pct(self, seconds: float) -> float | None:
        """A number of seconds as a percentage of the training time."""
        return None if not self.training_s else 100.0 * seconds / self.training_s

    @property
    def data_wait_share_pct(self) -> float | None:
        """Data wait as a share of the training time: the exposed one where it was measured, else the host's."""
        wait, training = self.bucket_s("data_wait"), self.training_s
        if wait is None or not training:
            return None
        return 100.0 * wait / training

    @property
    def host_wait_share_pct(self) -> float | None:
        """Data wait by the host's clock as a share of the training time, whether or not it cost anything."""
        if self.ledger is None or not self.training_s or "data_wait" not in self.ledger.buckets:
            return None
        return 100.0 * self.ledger.buckets["data_wait"] / self.training_s

    @property
    def coverage_pct(self) -> float | None:
        """Share of the wall time in a named bucket."""
        other = self.bucket_s("other")
        share = None if other is None else self.share_pct(other)
        return None if share is None else 100.0 - share

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second of training time."""
        if self.ledger is None or not self.training_s:
            return None
        return self.ledger.steps / self.training_s

    @property
    def samples_per_s(self) -> float | None:
        """Items per second of training time; None when batch sizes are unknown."""
        if self.ledger is None or self.ledger.samples is None or not self.training_s:
            return None
        return self.ledger.samples / self.training_s

    @property
    def start_s(self) -> float | None:
        """Seconds before the first step."""
        return self.bucket_s("start")

    @property
    def epochs(self) -> int | None:
        """Epochs begun."""
        return None if self.ledger is None else self.ledger.epochs

    @property
    def callbacks_by_name_s(self) -> Mapping[str, float] | None:
        """Seconds in each callback, by class name."""
        return None if self.ledger is None else self.ledger.callbacks

    @property
    def logging_by_name_s(self) -> Mapping[str, float] | None:
        """Seconds in each logger, by class name."""
        return None if self.ledger is None else self.ledger.logging

    # -- the steps -----------------------------------------------------------------------------------------------------

    @property
    def step_time_s(self) -> Stats | None:
        """Time of steady steps, validation left out."""
        return self._stats_of("step_time_s", lambda s: s.step_time_s)

    @property
    def work_s(self) -> Stats | None:
        """Time of steady steps without the data wait: what a step costs when data are free."""
        return self._stats_of("work_s", lambda s: s.step_time_s - s.data_wait_s)

    @property
    def body_s(self) -> Stats | None:
        """Time of steady steps in copy, forward, backward and the loop's own body.

        Optimizer and framework are left out: both have work to do in some steps only.
        """
        return self._stats_of("body_s", _body_s)

    def outliers(self, factor: float) -> Outliers | None:
        """Find steps whose body takes ``factor`` times the median or more; None when bodies were not measured."""
        body = self.body_s
        if body is None or body.median <= 0 or self.ledger is None:
            return None
        above = [b for s in self.steady if (b := _body_s(s)) >= factor * body.median]
        stride = max(self._steady.stride, self.ledger.steps // max(1, len(self.steady)))
        slow = [b for s in self.slow_steps if (b := _body_s(s)) is not None]
        # The ledger knows exactly how much all steps took beyond their median; a sample may overstate it.
        total = sum(self.ledger.buckets.get(name, 0.0) for name in BODY)
        most = max(0.0, total - self.ledger.steps * body.median)
        return Outliers(
            count=len(above) * stride,
            excess_s=min(most, stride * sum(b - body.median for b in above)),
            longest_s=max((b for b in (*above, *slow) if above), default=0.0),
        )

    @property
    def step_share_pct(self) -> float | None:
        """Work of the steps themselves, the framework's included, as a share of training without validation."""
        training, validation = self.training_s, self.bucket_s("validation")
        if self.ledger is None or training is None or validation is None or training <= validation:
            return None
        work = sum(self._spent.get(name, 0.0) for name in (*BODY, "optimizer", "loop"))
        return 100.0 * work / (training - validation)

    @property
    def step_work_s(self) -> float | None:
        """Seconds of the steps' own work and the optimizer's."""
        return None if self.ledger is None else sum(self._spent.get(name, 0.0) for name in (*BODY, "optimizer"))

    @property
    def idle_in_steps_s(self) -> float | None:
        """Seconds in which the GPU idled inside the steps' own work.

        All the time that the GPU used most was idle, without what other buckets explain: exposed data wait, worker
        start-up, callbacks, loggers, checkpoints, validation, and copies, which do not count as utilization.
        """
        busy, training = self.busiest_gpu_pct, self.training_s
        if busy is None or training is None:
            return None
        named = ("data_wait", "worker_startup", "callbacks", "logging", "checkpoint", "validation")
        explained = sum(self._spent.get(name, 0.0) for name in named)
        copies = (self.h2d_share_pct or 0.0) / 100.0 * training
        return max(0.0, training * (1.0 - busy / 100.0) - explained - copies)

    @property
    def largest_loss_pct(self) -> float | None:
        """Largest of the buckets that hold the steps up, as a share of training time."""
        if self.ledger is None:
            return None
        return self.training_share_pct(max(self._spent.get(name, 0.0) for name in LOSSES))

    @property
    def save_s(self) -> Stats | None:
        """Time that steps with a checkpoint in them were held by it."""
        return self.remember("save_s", lambda: stats(s.checkpoint_s for s in self.steady if s.checkpoint_s))

    # -- the wait and the prefetch queue -------------------------------------------------------------------------------

    def wait_share(self, of: Callable[[StepRecord], bool | None]) -> float | None:
        """Share (0 to 1) of the steady data wait in steps of which something is known to be true.

        None when less than half of the wait is in steps of which it is known.
        """
        known = true = total = 0.0
        for step in self.steady:
            total += step.data_wait_s
            answer = of(step)
            if answer is not None:
                known += step.data_wait_s
                true += step.data_wait_s if answer else 0.0
        return true / known if known > 0 and known >= 0.5 * total else None

    @property
    def ready_wait_share(self) -> float | None:
        """Share of the wait in steps whose batch was ready when it was asked for: it only had to be handed over."""
        return self.wait_share(lambda s: s.head_ready)

    @property
    def blocked_wait_share(self) -> float | None:
        """Share of the wait in steps whose batch was late while others were ready behind it."""
        return self.wait_share(
            lambda s: None if s.head_ready is None or s.ready is None else not s.head_ready and s.ready > 0
        )

    @property
    def handover_s(self) -> float | None:
        """Median wait for a batch that was ready: the cost of handing it over between processes."""
        waits = [s.data_wait_s for s in self.steady if s.head_ready]
        return statistics.median(waits) if len(waits) >= MIN_STEADY_STEPS else None

    @property
    def top_wait_share(self) -> float | None:
        """Share of the steady data wait in the tenth of the steps that waited longest."""
        waits = sorted((s.data_wait_s for s in self.steady), reverse=True)
        total = sum(waits)
        if len(waits) < 2 * MIN_STEADY_STEPS or total <= 0:
            return None
        return sum(waits[: -(-len(waits) // 10)]) / total

    # -- the loader and its workers ------------------------------------------------------------------------------------

    @property
    def num_workers(self) -> int | None:
        """Workers of the training loader."""
        return None if self.loader is None else self.loader.num_workers

    @property
    def batch_size(self) -> int | None:
        """Items in a batch of the training loader."""
        return None if self.loader is None else self.loader.batch_size

    @property
    def pin_memory(self) -> bool | None:
        """Whether the training loader puts its batches into pinned memory."""
        return None if self.loader is None else self.loader.pin_memory

    def batch_stats(self, name: str, of: Callable[[WorkerBatch], float | None]) -> Stats | None:
        """Describe a quantity over the probed batches; None below five of them."""
        found = self.remember(f"batch {name}", lambda: stats(v for b in self.batches.items if (v := of(b)) is not None))
        return found if found is not None and found.count >= MIN_STEADY_STEPS else None

    @property
    def batch_wall_s(self) -> Stats | None:
        """Time a worker spends on a batch."""
        return self.batch_stats("wall", lambda b: b.wall_s)

    @property
    def service_s(self) -> Stats | None:
        """Time a worker spends on a batch, waiting for a CPU left out."""
        return self.batch_stats("service", lambda b: b.service_s)

    @property
    def batch_cpu_s(self) -> Stats | None:
        """CPU time of a batch, threads of decoders included."""
        return self.batch_stats("cpu", _batch_cpu_s)

    @property
    def batch_queue_s(self) -> Stats | None:
        """Time a worker was ready to run a batch but had no CPU."""
        return self.batch_stats("queue", lambda b: b.run_queue_s)

    @property
    def blocked_share(self) -> float | None:
        """Share (0 to 1) of the service time in which workers waited for storage, network or a lock."""
        blocked = self.batch_stats("blocked", lambda b: b.blocked_s)
        service = self.service_s
        if blocked is None or service is None or service.trimmed_mean <= 0:
            return None
        return min(1.0, blocked.trimmed_mean / service.trimmed_mean)

    @property
    def queue_share(self) -> float | None:
        """Share (0 to 1) of the workers' time spent waiting for a CPU."""
        queue, wall = self.batch_queue_s, self.batch_wall_s
        if queue is None or wall is None or wall.trimmed_mean <= 0:
            return None
        return min(1.0, queue.trimmed_mean / wall.trimmed_mean)

    @property
    def fork_s(self) -> float | None:
        """Seconds the training thread was held by forks; None when forks are not watched."""
        return sum(f.wall_s for f in self.forks) if self.forks else None


def _batch_cpu_s(batch: WorkerBatch) -> float:
    """In a worker the process makes nothing but batches; in the loop thread only the thread's own time counts."""
    if batch.worker < 0 or batch.process_cpu_s is None:
        return batch.cpu_s
    return max(batch.cpu_s, batch.process_cpu_s)


def _body_s(step: StepRecord) -> float:
    return sum(s or 0.0 for s in (step.h2d_s, step.forward_s, step.backward_s, step.compute_s))
