"""From records of a run, or of a probe, to the costs and limits that the model takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from random import Random
from typing import Any

from ..errors import SettingError
from ..machine.budget import Budget
from ..records import BatchContent, HostSample, LoaderInfo, StepRecord, WorkerBatch, WorkerMemory
from .model import HANDOVER_S, PROFILE_BATCHES, Limits, LoaderCosts

HANDOVER_PER_TENSOR_S = 0.00025
"""Each further tensor of a batch has a descriptor and a handshake of its own (16 tensors: 4-6 ms)."""

HANDOVER_PER_BYTE_S = 0.3e-9
"""The loop maps what the worker wrote and unmaps the batch before (7.2 MB: 4 ms)."""

SHARED_MEMORY_PER_TENSOR_S = 0.0002
"""A worker's CPU time to make a tensor ready for the loop (1 to 64 tensors: 0.14-0.25 ms each, whatever their size)."""

SHARED_MEMORY_PER_BYTE_S = 0.5e-9
"""A worker writes a batch into fresh shared memory, page by page; the loop thread would not (7.2 MB: 3-4 ms)."""

UNPICKLING_PER_BYTE_S = 1.5e-9
"""What is no tensor comes through a pipe: the loop's thread copies it out of there and unpickles it (an array of 12 MB:
19 ms)."""

PICKLING_PER_BYTE_S = 0.5e-9
"""CPU time of a worker for that, in a thread beside the one that makes batches (an array of 12 MB: 6.2 ms)."""

NUMBER_BYTES = 30
"""A number of Python's in a batch takes as long as so many bytes of an array (100,000 of them: 4.2 to 4.7 ms)."""

MIN_BATCHES = 8
"""Below this many batches a mean service time is a guess."""

MIN_STEPS = 5

BUSY = 0.85
"""Workers busy for more than this share of the time may themselves be what the loop waits for."""

IDLE = 0.5
"""Workers busy for less than this share of the time wait for the loop: what it waits for in turn is the hand-over."""

MEAN_OF_QUICK = 1.25
"""Mean work of a step over that of the quickest tenth where nobody is in its way: 1.18 to 1.30, loops whose workers had
nothing to do on these CPUs (our measurement). Beside workers that compute it was 2.2 to 5.3."""

FORK_S = 0.01
"""What one more worker adds to the start of an epoch where that was not measured (benchmarks/workers: 5-20 ms)."""

LONGEST = 64
"""So many of the longest service times are kept."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What has to be handed over."""

    tensors: int
    bytes: int
    """Of the tensors."""
    pickled_bytes: int = 0
    """Of all else: it goes through a pipe."""

    @classmethod
    def of(cls, content: BatchContent) -> BatchShape:
        """Return the shape that was recorded."""
        return cls(content.tensors, content.bytes, content.pickled_bytes)

    @property
    def sending_s(self) -> float:
        """CPU time of a worker to put it into shared memory, or to pickle it; the loop thread need not."""
        shared_s = SHARED_MEMORY_PER_TENSOR_S * self.tensors + SHARED_MEMORY_PER_BYTE_S * self.bytes
        return shared_s + PICKLING_PER_BYTE_S * self.pickled_bytes

    @property
    def as_one_tensor(self) -> BatchShape:
        """The same content where collate makes one tensor of it."""
        return BatchShape(1, self.bytes + self.pickled_bytes)


MOST_OF_START = 0.5
"""Part of a start from which on it is what an iterable dataset does before its first item; our choice."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """What the start of workers costs in a run of several epochs, whose workers do not live on."""

    steps: float
    """Of one epoch."""
    start_s: float
    """Of the workers, in one epoch."""
    in_turn: bool = True
    """Whether they start one after the other, as by fork."""


def batch_shape(batch: object, depth: int = 0) -> BatchShape:
    """Count the tensors in a batch and the bytes of all it holds, without reading values.

    Looks into mappings and sequences; of one of numbers only the first is looked at.
    """
    size, width = (getattr(batch, name, None) for name in ("nelement", "element_size"))
    if callable(size) and callable(width):
        return BatchShape(1, _elements(batch, size) * int(width()))
    if isinstance(array_bytes := getattr(batch, "nbytes", None), int):
        return BatchShape(0, 0, array_bytes)
    if isinstance(batch, (str, bytes)):
        return BatchShape(0, 0, len(batch))
    if isinstance(batch, (int, float)):
        return BatchShape(0, 0, NUMBER_BYTES)
    members: Collection[object] = ()
    if isinstance(batch, Mapping):
        members = batch.values()
    elif isinstance(batch, (list, tuple)):
        members = batch
    if depth > 4 or not members:
        return BatchShape(0, 0)
    if isinstance(next(iter(members)), (int, float)):
        return BatchShape(0, 0, len(members) * NUMBER_BYTES)
    parts = [batch_shape(member, depth + 1) for member in members]
    return BatchShape(*(sum(values) for values in zip(*map(astuple, parts), strict=True)))


def _elements(tensor: object, size: Callable[[], int]) -> int:
    """Return how many numbers a tensor is handed over with: of a sparse one its values, and as many indices."""
    kept = getattr(tensor, "_nnz", None)
    if not callable(kept) or str(getattr(tensor, "layout", "torch.strided")) == "torch.strided":
        return int(size())
    return 2 * int(kept())


def default_handover_s(batch: BatchShape | None) -> float:
    """Return what handing a batch over to the loop's thread takes as a rule, seconds."""
    if batch is None:
        return HANDOVER_S
    tensors_s = HANDOVER_PER_TENSOR_S * max(0, batch.tensors - 1) + HANDOVER_PER_BYTE_S * batch.bytes
    return HANDOVER_S + tensors_s + UNPICKLING_PER_BYTE_S * batch.pickled_bytes


def costs_from(
    batches: Sequence[WorkerBatch],
    steps: Sequence[StepRecord],
    *,
    current: int,
    loader: LoaderInfo | None = None,
    host: Sequence[HostSample] = (),
    budget: Budget | None = None,
    batch: BatchShape | None = None,
    device_s: float | None = None,
    per_step: float = 1.0,
    epoch: EpochStart | None = None,
) -> LoaderCosts | None:
    """Condense records of one operating point into costs.

    Throughput follows from means, not medians: a batch that takes ten times as long delays all that follow. So means
    are taken of all that adds up, without the slowest hundredth (a hiccup of the machine is no property of the loader)
    and without the first batch of each worker (imports, opened files, fresh memory). The hand-over is a median, because
    what lies above it is waiting, for workers that may be late; where they pause for most of the time it is a mean.

    Args:
        batches: Made with ``current`` workers.
        steps: Taken with ``current`` workers. First steps of epochs are left out.
        current: Workers at that time.
        loader: Whether the number may be changed, and whether batches come in order.
        host: Samples from the same time: CPU time of the loop, CPU use of neighbours.
        budget: What the job may use: under a quota some neighbours are in nobody's way.
        batch: What a batch consists of, for defaults where its way from a worker was never measured.
        device_s: Device time of a step. It binds where a loop that only launches kernels looks faster.
        per_step: Batches of the workers that a step takes, where a wrapper makes others of them.
        epoch: Start of workers; None where it happens once, or is not known.

    Returns:
        None with fewer than 8 batches, each worker's first one left out, or 5 steps.

    Raises:
        SettingError: ``current`` or ``device_s`` is negative.
    """
    if device_s is not None and not (math.isfinite(device_s) and device_s >= 0):
        raise SettingError(f"device_s is {device_s!r}; give 0 or more seconds")
    made = _settled(batches, current)
    steady = [step for step in steps if not step.epoch_start]
    if len(made) < MIN_BATCHES or len(steady) < MIN_STEPS:
        return None
    indices_s = (loader and loader.indices_s) or 0.0
    inside_s = 0.0 if current else indices_s  # of what a batch takes without workers
    cpu_s = per_step * _mean([max(0.0, b.computed_s - inside_s) for b in made])
    times_s = _of_steps([max(0.0, b.service_s - inside_s) for b in made], per_step)
    service_s = per_step / max(1, round(per_step)) * _mean(times_s)
    step_time_s = _mean([_step_s(step) for step in steady])
    busy_share = _busy_share(made, current, step_time_s / per_step)
    handover_s, default_s = _handover(steady, current, busy_share, batch, per_step * indices_s)
    during = [sample for sample in host if steady[0].time_s <= sample.time_s] or host
    main_cpus = _average(sample.main_cpus for sample in during)
    loop_cpu_s = (main_cpus or 0.0) * step_time_s - (cpu_s if current == 0 else 0.0)
    works_s = [max(0.0, _step_s(step) - step.data_wait_s) for step in steady]
    work_s = _mean(works_s)
    sending_s, sent_s = batch.sending_s if batch else 0.0, 0.0
    if current and main_cpus is not None:
        beside_s = max(0.0, ((_average(s.job_cpus for s in during) or 0.0) - main_cpus) * step_time_s - cpu_s)
        sent_s = min(beside_s, 2 * sending_s)  # between two fetches a worker sends; other children may compute, too
    once_s, each_s, none_s = _start(epoch, current, service_s, _refill_s(batches, made, current, loader))
    return LoaderCosts(
        current=current,
        work_s=max(device_s or 0.0, work_s + per_step * indices_s),
        quick_work_s=max(device_s or 0.0, min(work_s, _quick_s(works_s)) + per_step * indices_s),
        indices_s=per_step * indices_s,
        service_s=service_s,
        cpu_s=cpu_s + sent_s,
        sent_cpu_s=sent_s,
        handover_s=handover_s,
        default_handover_s=per_step * default_s,
        shared_memory_s=0.0 if current else sending_s,
        loop_cpu_s=max(0.0, loop_cpu_s),
        **_cpu_waits(made, during, current, budget, cpu_s=cpu_s + sent_s, per_step=per_step),
        start_once_s=once_s,
        start_each_s=each_s,
        start_none_s=none_s,
        step_time_s=step_time_s + (once_s + current * each_s if current else 0.0),
        profile=() if loader and loader.in_order is False else _profile(times_s),
        longest_s=tuple(sorted(times_s, reverse=True)[:LONGEST]),
        batches=len(made),
        **_of_loader(loader),
    )


def _of_loader(loader: LoaderInfo | None) -> dict[str, Any]:
    if loader is None:
        return {}
    said = {"iterable": loader.iterable, "stateful": loader.stateful, "shards_itself": loader.shards_itself}
    return {**{name: bool(value) for name, value in said.items()}, "torch_threads": loader.torch_threads}


def limits_from(
    host: Sequence[HostSample],
    *,
    budget: Budget | None = None,
    memory: Sequence[WorkerMemory] = (),
    loader: LoaderInfo | None = None,
    batch_bytes: int | None = None,
    shards: int | None = None,
) -> Limits:
    """Condense what is known about the machine into limits.

    Args:
        host: Samples from the time in which the costs were measured.
        budget: What the job may use; without it ``usable_cpus`` of the samples is taken for one rank. The other ranks
            of the node will start as many workers: each gets an equal part of the memory and of /dev/shm that is left.
            CPUs are divided by what each rank needs of them.
        memory: Of the loader's workers.
        loader: For its prefetch factor.
        batch_bytes: Tensor bytes of one batch.
        shards: Parts into which an iterable dataset is split at most.
    """
    others, job = _average(s.others_cpus for s in host), _average(s.job_cpus for s in host)
    other_ranks, usable = _average(s.ranks_cpus for s in host), _average(s.usable_cpus for s in host)
    cpus = None
    if budget is not None:
        cpus = available_cpus(
            affinity_cpus=budget.affinity_cpus or budget.host_cpus,
            quota_cpus=budget.quota_cpus,
            others_cpus=others or 0.0,
            job_cpus=job or 0.0,
            ranks_cpus=other_ranks,
            ranks=budget.ranks_on_node,
            bound_per_rank=budget.bound_per_rank,
        )
    elif usable is not None:
        cpus = available_cpus(affinity_cpus=usable, others_cpus=others or 0.0, job_cpus=job or 0.0)
    last = host[-1] if host else None
    ranks = 1 if budget is None else budget.ranks_on_node
    return Limits(
        available_cpus=cpus,
        neighbour_cpus=_in_the_way(host, budget),
        worker_bytes=_worker_bytes(memory),
        unique_bytes=max((m.uss_bytes // m.workers for m in memory if m.uss_bytes and m.workers), default=None),
        free_bytes=None if last is None else _part(_free_bytes(last), ranks),
        batch_bytes=batch_bytes,
        shm_free_bytes=None if last is None else _part(last.shm_free_bytes, ranks),
        prefetch_factor=(loader.prefetch_factor if loader else None) or 2,
        shards=shards,
    )


def available_cpus(
    *,
    affinity_cpus: float,
    quota_cpus: float | None = None,
    others_cpus: float = 0.0,
    job_cpus: float = 0.0,
    ranks_cpus: float | None = None,
    ranks: int = 1,
    bound_per_rank: bool = False,
) -> float:
    """Return the CPUs that training process and workers of this rank may keep busy together.

    A neighbour takes from the CPUs in the affinity mask, not from a quota: with 4 of 64 CPUs' worth of quota it does
    not matter that ten are busy. Other ranks of the same job are no neighbours: their share is not subtracted but
    divided by. Ranks that train together take as many steps, so what each needs for a step is as what it was seen to
    use: that is its part of the node, and at least an equal one, for a rank that waits may do so by spinning. Where
    they cannot be told from neighbours, they are taken to do what this one does. However busy the neighbours, the
    scheduler is fair: half of the CPUs can be had by asking for them, and so can what the job was seen to get.

    Args:
        affinity_cpus: CPUs in the affinity mask.
        quota_cpus: Of the cgroup, shared by all ranks.
        others_cpus: CPUs of the mask that processes outside the job keep busy; without ``ranks_cpus`` all outside this
            rank.
        job_cpus: CPUs that this rank's own processes keep busy.
        ranks_cpus: CPUs that the job's other ranks keep busy; None when they are among the others.
        ranks: Training processes on this node.
        bound_per_rank: The mask is this rank's own.

    Raises:
        SettingError: A number is negative, or there is no rank.
    """
    given = (affinity_cpus, quota_cpus or 0.0, others_cpus, job_cpus, ranks - 1)
    if any(not math.isfinite(number) or number < 0 for number in given):
        raise SettingError(f"CPUs must be 0 or more and ranks 1 or more, not {given}")
    sharing = 1 if bound_per_rank else ranks
    strangers = others_cpus if ranks_cpus is not None else max(0.0, others_cpus - (sharing - 1) * job_cpus)
    part = 1.0 / ranks
    if ranks > 1 and ranks_cpus is not None and job_cpus > 0:
        part = max(part, job_cpus / (job_cpus + ranks_cpus))
    share = max(affinity_cpus - strangers, affinity_cpus / 2) * (1.0 if bound_per_rank else part)
    if quota_cpus is not None:
        share = min(share, quota_cpus * part)
    return max(share, job_cpus)


def _settled(batches: Sequence[WorkerBatch], current: int) -> list[WorkerBatch]:
    """Batches of this many workers in the order they were finished, without the first of each worker.

    Of workers that start again and again each start has such a first one, as far as that is known.
    """
    if current < 0:
        raise SettingError(f"current is {current!r}; give 0 or more workers")
    own = [batch for batch in sorted(batches, key=lambda b: b.time_s) if (batch.worker < 0) == (current == 0)]
    tells = any(batch.idle_s is not None for batch in own)
    seen: set[int] = set()
    settled = []
    for batch in own:
        if batch.worker in seen and not (tells and batch.idle_s is None):
            settled.append(batch)
        seen.add(batch.worker)
    return settled


def _start(epoch: EpochStart | None, current: int, service_s: float, refill_s: float) -> tuple[float, float, float]:
    """Return what the start of an epoch adds to a step: with any number of workers, for each of them, and without any.

    The first batch of an epoch is waited for with any number.
    """
    if epoch is None or epoch.steps < 1:
        return 0.0, 0.0, 0.0
    if current == 0:
        return service_s / epoch.steps, FORK_S / epoch.steps, 0.0
    # One after the other they start, side by side they fill their buffers.
    in_turn = epoch.in_turn and refill_s / current < MOST_OF_START * epoch.start_s
    once_s = min(service_s, epoch.start_s) if in_turn else epoch.start_s
    return once_s / epoch.steps, (epoch.start_s - once_s) / current / epoch.steps, refill_s / epoch.steps


def _refill_s(
    batches: Sequence[WorkerBatch], made: Sequence[WorkerBatch], current: int, loader: LoaderInfo | None
) -> float:
    """Return the work that all workers have with the first batch of an epoch beyond others, CPU time, seconds.

    What a map-style dataset does then, such as reading a table, it does once where the loop makes the batches itself.
    An iterable one is iterated anew, and fills its shuffle buffer again.
    """
    firsts = [b.computed_s for b in batches if b.worker >= 0 and b.idle_s is None]
    if not current or not firsts or loader is None or not loader.iterable:
        return 0.0
    return current * max(0.0, statistics.median(firsts) - _mean([b.computed_s for b in made]))


def _of_steps(times_s: Sequence[float], per_step: float) -> list[float]:
    """Return what the batches of a step take together, where it takes several: those of two loaders, say, in turn."""
    each = max(1, round(per_step))
    whole = [math.fsum(times_s[at : at + each]) for at in range(0, len(times_s) - each + 1, each)]
    return whole if len(whole) >= MIN_BATCHES else [each * time_s for time_s in times_s]


def _profile(times_s: Sequence[float]) -> tuple[float, ...]:
    """Return service times to play through: all of them, or as many as stand for all, rare slow ones included.

    The last ones may by chance hold none of the slow, and those decide. The order is drawn, always the same: sorted or
    evenly spread, slow batches would cost more or less than they do.
    """
    if len(times_s) <= PROFILE_BATCHES:
        return tuple(times_s)
    ordered = sorted(times_s)
    chosen = [ordered[(2 * i + 1) * len(ordered) // (2 * PROFILE_BATCHES)] for i in range(PROFILE_BATCHES)]
    Random(0).shuffle(chosen)  # noqa: S311 - no secret
    return tuple(chosen)


def _busy_share(made: Sequence[WorkerBatch], current: int, step_time_s: float) -> float:
    """Share of the workers' time in which they make batches; guessed from the step time where pauses are not known."""
    known = [(b.wall_s, b.idle_s) for b in made if b.idle_s is not None]
    if len(known) >= MIN_BATCHES:
        busy_s, idle_s = (math.fsum(part) for part in zip(*known, strict=True))
        return busy_s / (busy_s + idle_s) if busy_s + idle_s > 0 else 1.0
    return _mean([b.wall_s for b in made]) / (max(1, current) * step_time_s) if step_time_s else 1.0


def _handover(
    steps: Sequence[StepRecord], current: int, busy_share: float, batch: BatchShape | None, indices_s: float
) -> tuple[float | None, float]:
    """Return the measured hand-over and the default to use without it.

    A worker counts a batch as put when it begins to send it, and a busy worker sends slowly: its next batch holds the
    interpreter. That wait costs latency, no throughput. So only a queue that holds a batch per worker, filled by
    workers that pause, shows what the loop thread itself must spend. Choosing the items of a later batch is apart.
    """
    full = [max(0.0, s.data_wait_s - indices_s) for s in steps if s.head_ready and (s.ready or 0) >= max(2, current)]
    if len(full) >= MIN_STEPS and busy_share <= BUSY:
        return statistics.median(full) if busy_share > IDLE else _mean(full), HANDOVER_S
    default_s = default_handover_s(batch)
    ready = [max(0.0, s.data_wait_s - indices_s) for s in steps if s.head_ready]
    return None, min([default_s, statistics.median(ready)] if len(ready) >= MIN_STEPS else [default_s])


def _cpu_waits(
    batches: Sequence[WorkerBatch],
    host: Sequence[HostSample],
    current: int,
    budget: Budget | None,
    *,
    cpu_s: float,
    per_step: float,
) -> dict[str, Any]:
    """Return the waits for a CPU that other jobs cause in the batches of a step, and those that the job's own do.

    The job's own processes make each other wait where they are more than the CPUs: ``n`` that always compute have each
    a CPU for ``B / n`` of the time. What is waited beyond that is the neighbours' doing, however many they are on each
    CPU. While they keep a worker waiting they run: it is no larger part of a batch's time than they keep CPUs busy.
    """
    others, usable = _in_the_way(host, budget), _average(s.usable_cpus for s in host)
    waited = [batch.run_queue_s for batch in batches if batch.run_queue_s is not None]
    all_s, theirs_s = per_step * _mean(waited) if waited else 0.0, 0.0
    if others and usable:
        loop = min(1.0, _average(s.main_cpus for s in host) or 0.0)
        processes = current + loop + (_average(s.ranks_cpus for s in host) or 0.0)
        own_s = cpu_s * max(0.0, processes / usable - 1.0)
        most_s = min(1.0, others) * per_step * _mean([batch.wall_s for batch in batches])
        theirs_s = min(most_s, max(0.0, all_s - own_s))
    return {"neighbour_wait_s": theirs_s, "own_wait_s": all_s - theirs_s if current else 0.0}


def _in_the_way(host: Sequence[HostSample], budget: Budget | None) -> float:
    """CPUs that neighbours keep busy and the job could use."""
    others = _average(s.others_cpus for s in host) or 0.0
    return others if budget is None else budget.in_the_way(others)


def _worker_bytes(memory: Sequence[WorkerMemory]) -> int | None:
    """Most memory of one worker that it shares with nobody; all its memory where only that was measured."""
    unique = [m.uss_bytes // m.workers for m in memory if m.uss_bytes is not None and m.workers]
    return max(unique or [m.rss_bytes // m.workers for m in memory if m.workers], default=None)


def _free_bytes(sample: HostSample) -> int | None:
    rooms = [] if sample.memory_available_bytes is None else [sample.memory_available_bytes]
    if sample.memory_limit_bytes is not None and sample.memory_limit_used_bytes is not None:
        rooms.append(max(0, sample.memory_limit_bytes - sample.memory_limit_used_bytes))
    return min(rooms, default=None)


def _part(free_bytes: int | None, ranks: int) -> int | None:
    return None if free_bytes is None else free_bytes // ranks


def _step_s(step: StepRecord) -> float:
    return step.step_time_s - (step.checkpoint_s or 0.0)


def _mean(values: Sequence[float]) -> float:
    """Mean without the slowest hundredth, at least one of 20 or more."""
    kept = sorted(values)
    if len(kept) >= 20:
        kept = kept[: -max(1, len(kept) // 100)]
    return math.fsum(kept) / len(kept)


def _quick_s(values: Sequence[float]) -> float:
    """Return what values would be in the mean if none were lengthened, from the quickest tenth of them."""
    return MEAN_OF_QUICK * sorted(values)[len(values) // 10]


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
