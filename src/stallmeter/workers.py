"""The model behind the recommended ``num_workers``: measured costs of one batch in, a predicted step time out.

A loop that takes ``t`` seconds for a step, fed by ``w`` workers that take ``s`` seconds for a batch, can be bound by
itself, by the number of workers, by the CPUs or by something that all workers share::

    w = 0    t + s
    w > 0    max(t + h,  s / w,  (c + l) / B,  b)

``h`` is the hand-over of a batch that lies ready (unpickling in the loop thread), ``c`` the CPU time a worker needs for
a batch, ``l`` the CPU time the training process needs for a step, ``B`` the CPUs that this rank may keep busy and ``b``
the time a batch takes of a shared store. A loop that computes with several threads on the CPUs needs more of ``l`` the
more workers compete with it (`_crowding`). Where batches take unevenly long, ``max`` is too hopeful: torch's loader
hands batches over in order and lets each worker run only ``prefetch_factor`` batches ahead, so one late batch stops
all. The first two terms are therefore played through with the measured times (`_ordered_queue_s`).

Everything here is a pure function of plain numbers: seconds, bytes and CPUs. `docs/explain/workers-model.md` has the
measurements behind it, `benchmarks/workers` compares it with exhaustive sweeps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count, islice, takewhile
from typing import Any

from .budget import Budget
from .diagnosis import WorkerAdvice
from .errors import SettingError
from .records import HostSample, LoaderInfo, StepRecord, WorkerBatch, WorkerMemory

HANDOVER_S = 0.0012
"""Hand-over of one small tensor where it was never measured (benchmarks/workers: 1.0-1.3 ms)."""

HANDOVER_PER_TENSOR_S = 0.00025
"""Each further tensor of a batch has a descriptor and a handshake of its own (16 tensors: 4-6 ms)."""

HANDOVER_PER_BYTE_S = 0.3e-9
"""The loop maps what the worker wrote and unmaps the batch before (7.2 MB: 4 ms)."""

SHARED_MEMORY_PER_BYTE_S = 0.5e-9
"""A worker writes a batch into fresh shared memory, page by page; the loop thread would not (7.2 MB: 3-4 ms)."""

TURNAROUND_S = 0.0005
"""What a worker does between two fetches, median (benchmarks/workers: 0.2-0.8 ms)."""

DEFAULT_WORKER_BYTES = 150 << 20
"""Memory of one more worker where none was measured. Forked workers made 8-26 MiB their own in `benchmarks/workers` and
168 MiB where the dataset keeps a table; a spawned one that imports torch starts at about 200."""

MEMORY_SHARE = 0.8
"""Share of the free memory that new workers may take: the rest is for the file cache and for growth."""

MIN_BATCHES = 8
"""Below this many batches a mean service time is a guess."""

MIN_STEPS = 5
NOISE = 0.03
"""Predicted gains below this are not worth a change: repeated measurements differ by as much."""

NEAR_BEST = 0.02
"""The smallest number of workers this close to the best prediction is taken: each worker costs memory and start-up."""

SERVICE_GROWTH = 0.25
"""Service time that grows by more than this with load, without more CPU time, was spent queueing for a shared store."""

HEADROOM = 0.1
"""Workers are counted as if they took this much longer: being one short costs time, one too many costs memory."""

BUSY = 0.85
"""Workers busy for more than this share of the time may themselves be what the loop waits for."""

UNEXPLAINED = 0.5
"""When the prediction for the present setting is off by more than this, something unknown binds."""

SEVERAL_THREADS = 1.5
"""CPU time of the loop over its wall time from which on it must compute with more than one thread: stallmeter's and the
tracker's threads add to it, too, but not half a CPU."""

PREFETCH_FACTORS = (4, 8, 16)
"""Depths that are tried: each holds twice the memory of the one before it."""

PROFILE_BATCHES = 128
"""Service times that are played through."""


def _check(instance: object) -> None:
    for item in fields(instance):  # type: ignore[arg-type]
        value = getattr(instance, item.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and not (math.isfinite(number) and number >= 0):
                raise SettingError(f"{item.name} is {number!r}; give a finite number of 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCosts:
    """What one batch costs, measured while the run runs. `costs_from` makes it from records.

    Raises:
        SettingError: A number is negative or not finite.
    """

    current: int
    """Workers while this was measured."""
    work_s: float
    """t: a step without data wait, validation and checkpoint: what it costs when data are free, host or device,
    whichever takes longer. Mean."""
    service_s: float
    """s: wall time in which a worker (or the loop thread) makes a batch, without waiting for a CPU. Mean."""
    cpu_s: float
    """c: CPU time of that, decoder threads included. Mean."""
    handover_s: float | None = None
    """h: wait for a batch that lies ready. Median; None when the queue was never full enough to see it."""
    default_handover_s: float = HANDOVER_S
    """Used for h when it was not measured."""
    shared_memory_s: float = 0.0
    """What putting a batch into shared memory would add to s; 0 when workers did that while s was measured."""
    loop_cpu_s: float = 0.0
    """l: CPU time of the training process per step, without making batches in it. Mean."""
    neighbour_wait_s: float = 0.0
    """Wait for a CPU per batch for which other jobs are to blame: it is there with any number of workers."""
    turnaround_s: float = TURNAROUND_S
    """Time of a worker between two batches."""
    step_time_s: float | None = None
    """The step as it is now, validation and checkpoint left out. Mean."""
    profile: tuple[float, ...] = ()
    """Single service times in the order in which they were measured; only their proportions count."""
    batches: int = 0
    """Batches behind these numbers."""
    iterable: bool = False
    """The dataset is iterable: another number of workers may repeat or drop samples."""
    stateful: bool = False
    """The loader's saved state depends on its number of workers."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def ready_step_s(self) -> float:
        """A step whose batch lies ready: t + h."""
        return self.work_s + (self.default_handover_s if self.handover_s is None else self.handover_s)

    @property
    def cpus_for_full_speed(self) -> float | None:
        """CPUs with which loop and workers would not slow each other down; None when a step takes no time."""
        return (self.cpu_s + self.loop_cpu_s) / self.ready_step_s if self.ready_step_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the workers of one rank may use. None where it is not known; then it does not limit.

    Raises:
        SettingError: A number is negative or not finite.
    """

    available_cpus: float | None = None
    """B: CPUs that training process and workers of this rank may keep busy; see `available_cpus`."""
    neighbour_cpus: float = 0.0
    """CPUs that other jobs keep busy on the same CPUs."""
    worker_bytes: int | None = None
    """Memory of one worker that it shares with nobody."""
    free_bytes: int | None = None
    """Memory left for more workers."""
    batch_bytes: int | None = None
    """Tensor bytes of one batch."""
    shm_free_bytes: int | None = None
    """Free space in /dev/shm, through which batches are handed over."""
    prefetch_factor: int = 2
    """Batches that each worker may be ahead."""
    shared_s: float = 0.0
    """b: time that one batch takes of a store that serves all workers in turn."""
    max_workers: int = 64
    """Never recommend more: an upper end for the search, not a measurement."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """How the same loader did with another number of workers, for example in the last epoch.

    Raises:
        SettingError: A number is negative or not finite.
    """

    workers: int
    service_s: float
    cpu_s: float
    step_time_s: float

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A number of workers, what a step takes with it, and what binds then."""

    workers: int
    step_time_s: float
    limited_by: str
    """compute, workers, cpu, memory or bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeeperQueue:
    """More batches ahead for each worker, and what that would gain."""

    prefetch_factor: int
    gain_pct: float
    """Predicted rise of throughput."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What has to be handed over."""

    tensors: int
    bytes: int


def batch_shape(batch: object, depth: int = 0) -> BatchShape:
    """Count the tensors in a batch and their bytes, without reading their values. Looks into mappings and sequences."""
    size, width = getattr(batch, "nelement", None), getattr(batch, "element_size", None)
    if callable(size) and callable(width):
        return BatchShape(1, int(size()) * int(width()))
    if depth > 4 or isinstance(batch, (str, bytes)):
        return BatchShape(0, 0)
    members: Iterable[object] = ()
    if isinstance(batch, Mapping):
        members = batch.values()
    elif isinstance(batch, (list, tuple)):
        members = batch
    parts = [batch_shape(member, depth + 1) for member in members]
    return BatchShape(sum(part.tensors for part in parts), sum(part.bytes for part in parts))


def predict_step_time_s(costs: LoaderCosts, limits: Limits, workers: int) -> float:
    """Predict the mean step time (s) with another number of workers.

    Args:
        costs: Measured with any number of workers.
        limits: What the workers may use. Memory does not change the prediction.
        workers: 0 or more.

    Raises:
        SettingError: ``workers`` is negative.
    """
    if workers < 0:
        raise SettingError(f"workers is {workers!r}; give 0 or more")
    return next(islice(_step_times_s(costs, limits), workers, None))


def best_workers(costs: LoaderCosts, limits: Limits) -> Forecast:
    """Return the smallest number of workers within 2 % of the best prediction, inside the memory caps.

    Says what is best for the loader as a machine; `advise` also asks whether it may and should be changed.
    """
    cap, by = worker_cap(costs, limits)
    times: list[float] = []
    for step_s in islice(_step_times_s(costs, limits, 1 + HEADROOM), cap + 1):
        times.append(step_s)
        workers = len(times) - 1
        if workers and step_s <= max(costs.ready_step_s, _floor_s(costs, limits, workers, 1 + HEADROOM)):
            break
    best = min(times)
    chosen = len(list(takewhile(lambda s: s > best * (1 + NEAR_BEST), times)))
    return Forecast(
        workers=chosen,
        step_time_s=predict_step_time_s(costs, limits, chosen),
        limited_by=_binding(costs, limits, chosen, by if chosen == cap else ""),
    )


def deeper_queue(costs: LoaderCosts, limits: Limits, workers: int) -> DeeperQueue | None:
    """Find out whether letting each worker run further ahead would help: where batches take unevenly long.

    A slow batch stops the loop once all that was prepared behind it is used up, so what helps is depth, not speed.

    Args:
        costs: As measured.
        limits: For the present prefetch factor and the room in /dev/shm.
        workers: 1 or more.

    Returns:
        The smallest depth within 2 % of the best; None when less than 3 % is to be gained or nothing more fits.
    """
    if workers < 1 or not sum(costs.profile):
        return None
    each_s = costs.service_s + costs.neighbour_wait_s + costs.shared_memory_s + costs.turnaround_s
    floor_s = _floor_s(costs, limits, workers)
    depths = [d for d in PREFETCH_FACTORS if d > limits.prefetch_factor and _fits(limits, workers, d)]
    times = {d: max(floor_s, _ordered_queue_s(costs, each_s, workers, d)) for d in depths}
    if not times:
        return None
    now_s = max(floor_s, _ordered_queue_s(costs, each_s, workers, max(1, limits.prefetch_factor)))
    best_s = min(times.values())
    chosen = next(d for d in depths if times[d] <= best_s * (1 + NEAR_BEST))
    won = now_s / times[chosen] - 1 if times[chosen] else 0.0
    return DeeperQueue(prefetch_factor=chosen, gain_pct=100.0 * won) if won >= NOISE else None


def _fits(limits: Limits, workers: int, depth: int) -> bool:
    if limits.shm_free_bytes is None or not limits.batch_bytes:
        return True
    more = workers * (depth - limits.prefetch_factor) * limits.batch_bytes
    return more <= MEMORY_SHARE * limits.shm_free_bytes


def worker_cap(costs: LoaderCosts, limits: Limits) -> tuple[int, str]:
    """Return the most workers that fit, and what allows no more: ``memory`` or ``workers`` (the search's own end).

    Batches in flight lie in /dev/shm: each worker holds up to ``prefetch_factor`` of them.
    """
    rooms = [(limits.max_workers, "workers")]
    if limits.free_bytes is not None:
        each = limits.worker_bytes or DEFAULT_WORKER_BYTES
        rooms.append((costs.current + int(MEMORY_SHARE * limits.free_bytes / each), "memory"))
    if limits.shm_free_bytes is not None and limits.batch_bytes:
        each = max(1, limits.prefetch_factor) * limits.batch_bytes
        rooms.append((costs.current + int(MEMORY_SHARE * limits.shm_free_bytes / each), "memory"))
    return min(rooms)


def advise(costs: LoaderCosts, limits: Limits, *, previous: OperatingPoint | None = None) -> WorkerAdvice:
    """Recommend a number of workers for the next epoch or run.

    Args:
        costs: Measured with the present number.
        limits: What the workers may use.
        previous: The same loader with another number of workers: shows whether more load made batches slower.

    Returns:
        The advice. ``recommended`` equals ``current`` when less than 3 % is to be gained, when the dataset is iterable
        or the loader stateful, and when the model cannot explain the present step time.
    """
    costs, limits = _learn_from(previous, costs, limits)
    now_s = predict_step_time_s(costs, limits, costs.current)
    best = best_workers(costs, limits)
    gain = now_s / best.step_time_s - 1 if best.step_time_s else 0.0
    observed_s = costs.step_time_s or now_s
    confidence = _confidence(costs, limits, now_s, observed_s)
    off = now_s / observed_s - 1 if observed_s else 0.0
    limited_by = best.limited_by
    recommended, predicted_s = best.workers, best.step_time_s
    if abs(off) > UNEXPLAINED:
        limited_by = "unknown"
        why = (
            f"a step takes {_ms(observed_s)} where the measured parts explain {_ms(now_s)}: "
            "something else binds, so no other number of workers is recommended"
        )
    elif gain < NOISE:
        limited_by = _binding(costs, limits, costs.current, "")
        why = _why_stay(costs, limits, limited_by)
    elif costs.iterable or costs.stateful:
        kind = (
            "an iterable dataset repeats or drops samples with another number of workers unless it splits them itself"
            if costs.iterable
            else "the saved state of this loader is only valid for its number of workers"
        )
        why = (
            f"{best.workers} workers would take {_ms(best.step_time_s)} a step instead of {_ms(observed_s)}, "
            f"but {kind}: change it by hand if that is safe"
        )
    else:
        return WorkerAdvice(
            current=costs.current,
            recommended=recommended,
            predicted_step_time_s=predicted_s,
            predicted_gain_pct=100.0 * max(0.0, observed_s / predicted_s - 1),
            limited_by=limited_by,
            reason=_why_change(costs, limits, best, observed_s),
            confidence=confidence,
            **_prefetch(deeper_queue(costs, limits, recommended)),
        )
    return WorkerAdvice(
        current=costs.current,
        recommended=costs.current,
        predicted_step_time_s=now_s,
        predicted_gain_pct=0.0,
        limited_by=limited_by,
        reason=why,
        confidence=confidence,
        **_prefetch(None if limited_by == "unknown" else deeper_queue(costs, limits, costs.current)),
    )


def _prefetch(deeper: DeeperQueue | None) -> dict[str, Any]:
    return {} if deeper is None else {"prefetch_factor": deeper.prefetch_factor, "prefetch_gain_pct": deeper.gain_pct}


def costs_from(
    batches: Sequence[WorkerBatch],
    steps: Sequence[StepRecord],
    *,
    current: int,
    loader: LoaderInfo | None = None,
    host: Sequence[HostSample] = (),
    batch: BatchShape | None = None,
    device_s: float | None = None,
) -> LoaderCosts | None:
    """Condense records of one operating point into costs.

    Throughput follows from means, not medians: a batch that takes ten times as long delays all that follow. So means
    are taken of all that adds up, without the slowest hundredth (a hiccup of the machine is no property of the loader)
    and without the first batch of each worker (imports, opened files, fresh memory). The hand-over is a median: it is
    the same work each time, and what lies above it is waiting.

    Args:
        batches: Made with ``current`` workers.
        steps: Taken with ``current`` workers. First steps of epochs are left out.
        current: Workers at that time.
        loader: Whether the number may be changed, and whether batches come in order.
        host: Samples from the same time: CPU time of the loop, load of neighbours.
        batch: What a batch consists of, for defaults where its way from a worker was never measured.
        device_s: Device time of a step. A loop that only launches kernels looks faster than its device while it waits
            for data: then this binds.

    Returns:
        None when there are fewer than 8 batches (beyond each worker's first) or 5 steps.

    Raises:
        SettingError: ``current`` or ``device_s`` is negative.
    """
    if device_s is not None and not (math.isfinite(device_s) and device_s >= 0):
        raise SettingError(f"device_s is {device_s!r}; give 0 or more seconds")
    made = _settled(batches, current)
    steady = [step for step in steps if not step.epoch_start]
    if len(made) < MIN_BATCHES or len(steady) < MIN_STEPS:
        return None
    cpu_s = _mean([max(b.cpu_s, b.process_cpu_s or 0.0) for b in made])
    step_time_s = _mean([_step_s(step) for step in steady])
    busy_share = _mean([b.wall_s for b in made]) / (max(1, current) * step_time_s) if step_time_s else 1.0
    handover_s, default_s = _handover(steady, current, busy_share, batch)
    during = [sample for sample in host if steady[0].time_s <= sample.time_s] or host
    main_cpus = _average(sample.main_cpus for sample in during)
    loop_cpu_s = (main_cpus or 0.0) * step_time_s - (cpu_s if current == 0 else 0.0)
    return LoaderCosts(
        current=current,
        work_s=max(device_s or 0.0, _mean([max(0.0, _step_s(step) - step.data_wait_s) for step in steady])),
        service_s=_mean([b.service_s for b in made]),
        cpu_s=cpu_s,
        handover_s=handover_s,
        default_handover_s=default_s,
        shared_memory_s=SHARED_MEMORY_PER_BYTE_S * batch.bytes if batch and current == 0 else 0.0,
        loop_cpu_s=max(0.0, loop_cpu_s),
        neighbour_wait_s=_neighbour_wait_s(made, cpu_s, during, current),
        step_time_s=step_time_s,
        profile=() if loader and loader.in_order is False else tuple(b.service_s for b in made[-PROFILE_BATCHES:]),
        batches=len(made),
        iterable=bool(loader and loader.iterable),
        stateful=bool(loader and loader.stateful),
    )


def limits_from(
    host: Sequence[HostSample],
    *,
    budget: Budget | None = None,
    memory: Sequence[WorkerMemory] = (),
    loader: LoaderInfo | None = None,
    batch_bytes: int | None = None,
) -> Limits:
    """Condense what is known about the machine into limits.

    Args:
        host: Samples from the time in which the costs were measured.
        budget: What the job may use; without it ``usable_cpus`` of the samples is taken for one rank.
        memory: Of the loader's workers.
        loader: For its prefetch factor.
        batch_bytes: Tensor bytes of one batch.
    """
    others, job = _average(s.others_cpus for s in host), _average(s.job_cpus for s in host)
    usable = _average(s.usable_cpus for s in host)
    cpus = None
    if budget is not None:
        cpus = available_cpus(
            affinity_cpus=budget.affinity_cpus or budget.host_cpus,
            quota_cpus=budget.quota_cpus,
            others_cpus=others or 0.0,
            job_cpus=job or 0.0,
            ranks=budget.ranks_on_node,
            bound_per_rank=budget.bound_per_rank,
        )
    elif usable is not None:
        cpus = available_cpus(affinity_cpus=usable, others_cpus=others or 0.0, job_cpus=job or 0.0)
    last = host[-1] if host else None
    return Limits(
        available_cpus=cpus,
        neighbour_cpus=others or 0.0,
        worker_bytes=_worker_bytes(memory),
        free_bytes=None if last is None else _free_bytes(last),
        batch_bytes=batch_bytes,
        shm_free_bytes=None if last is None else last.shm_free_bytes,
        prefetch_factor=(loader.prefetch_factor if loader else None) or 2,
    )


def available_cpus(
    *,
    affinity_cpus: float,
    quota_cpus: float | None = None,
    others_cpus: float = 0.0,
    job_cpus: float = 0.0,
    ranks: int = 1,
    bound_per_rank: bool = False,
) -> float:
    """Return the CPUs that training process and workers of this rank may keep busy together.

    A neighbour takes from the CPUs in the affinity mask, not from a quota: with 4 of 64 CPUs' worth of quota it does
    not matter that ten are busy. Other ranks of the same job look like neighbours; as they do what this one does, their
    share is not subtracted but divided by. However busy the neighbours, the scheduler is fair: half of the CPUs can be
    had by asking for them, and so can what the job was seen to get.

    Args:
        affinity_cpus: CPUs in the affinity mask.
        quota_cpus: Of the cgroup, shared by all ranks.
        others_cpus: CPUs of the mask that processes outside this rank keep busy.
        job_cpus: CPUs that this rank's own processes keep busy.
        ranks: Training processes on this node.
        bound_per_rank: The mask is this rank's own.

    Raises:
        SettingError: A number is negative, or there is no rank.
    """
    given = (affinity_cpus, quota_cpus or 0.0, others_cpus, job_cpus, ranks - 1)
    if any(not math.isfinite(number) or number < 0 for number in given):
        raise SettingError(f"CPUs must be 0 or more and ranks 1 or more, not {given}")
    sharing = 1 if bound_per_rank else ranks
    strangers = max(0.0, others_cpus - (sharing - 1) * job_cpus)
    share = max(affinity_cpus - strangers, affinity_cpus / 2) / sharing
    if quota_cpus is not None:
        share = min(share, quota_cpus / ranks)
    return max(share, job_cpus)


# -- terms of the model ------------------------------------------------------------------------------------------------


def _step_times_s(costs: LoaderCosts, limits: Limits, slower: float = 1.0) -> Iterator[float]:
    """Step times for 0, 1, 2, … workers. Never rising from 1 on: workers that are not needed sleep.

    Args:
        costs: As measured.
        limits: What the workers may use.
        slower: Multiplies the time that a worker takes.
    """
    service_s = costs.service_s + costs.neighbour_wait_s
    yield max(costs.work_s + service_s, _floor_s(costs, limits, 0))
    each_s = slower * (service_s + costs.shared_memory_s + costs.turnaround_s)
    best = math.inf
    for workers in count(1):
        time_s = max(costs.ready_step_s, each_s / workers)
        if sum(costs.profile):
            time_s = max(time_s, _ordered_queue_s(costs, each_s, workers, max(1, limits.prefetch_factor)))
        # A slow batch may by chance fall better with fewer workers; that is no reason to predict a slowdown.
        best = min(best, max(time_s, _floor_s(costs, limits, workers, slower)))
        yield best


def _ordered_queue_s(costs: LoaderCosts, each_s: float, workers: int, prefetch: int) -> float:
    """Play the loader through: batches come in order, each worker is at most ``prefetch`` of them ahead."""
    scale = each_s * len(costs.profile) / sum(costs.profile)
    times = [scale * time_s for time_s in costs.profile] * -(-PROFILE_BATCHES // len(costs.profile))
    n, ahead, ready_s = len(times), workers * prefetch, costs.ready_step_s
    finished = [0.0] * workers
    taken = [0.0] * ahead
    now_s = half_s = 0.0
    for i in range(2 * n):
        if i == n:
            half_s = now_s
        worker, slot = i % workers, i % ahead
        finished[worker] = max(finished[worker], taken[slot]) + times[i % n]
        now_s = taken[slot] = max(now_s + ready_s, finished[worker])
    return (now_s - half_s) / n


def _floor_s(costs: LoaderCosts, limits: Limits, workers: int, slower: float = 1.0) -> float:
    """Shortest step that CPUs and a shared store allow."""
    return max(_cpu_floor_s(costs, limits, workers, slower), limits.shared_s)


def _cpu_floor_s(costs: LoaderCosts, limits: Limits, workers: int, slower: float = 1.0) -> float:
    """Shortest step that the CPUs allow: the work of loop and workers, spread over all that may be used.

    Workers that take longer than measured compute longer, too: a reserve must not call for more of them than there are
    CPUs. Three busy workers on two CPUs are 5 % slower than two (benchmarks/workers: cpu-saturated).
    """
    if not limits.available_cpus:
        return 0.0
    handed_over_s = costs.shared_memory_s if workers else 0.0
    loop_cpu_s = costs.loop_cpu_s * _crowding(costs, limits, workers)
    return (slower * (costs.cpu_s + handed_over_s) + loop_cpu_s) / limits.available_cpus


def _crowding(costs: LoaderCosts, limits: Limits, workers: int) -> float:
    """Factor on the loop's CPU time where its own threads and new workers are more than the CPUs; 1 for one thread.

    Threads that share an operation wait for the slowest of them, and torch's wait by spinning. When ``n`` threads and
    workers want ``B`` CPUs, each has one for ``B / n`` of the time: of two threads that must both run, one spins
    meanwhile, and the operation costs ``n / B`` times the CPU time. Measured with 2 threads, 2 workers and 2 CPUs:
    50 ms a step became 102 (docs/explain/workers-model.md). What was measured with workers holds it already.
    """
    cpus = limits.available_cpus
    if costs.current or not (workers and cpus and costs.work_s and costs.service_s):
        return 1.0
    threads = min(costs.loop_cpu_s / costs.work_s, max(2.0, cpus))
    if threads <= 1.0:
        return 1.0
    busy = min(workers * min(1.0, costs.cpu_s / costs.service_s), cpus)
    alone_s = max(costs.ready_step_s, costs.service_s / workers)
    if (costs.cpu_s + costs.loop_cpu_s) / cpus < alone_s:
        busy = min(busy, costs.cpu_s / alone_s)
    return float(max(1.0, (threads + busy) / cpus) ** min(1.0, threads - 1.0))


def _binding(costs: LoaderCosts, limits: Limits, workers: int, cap: str) -> str:
    """Name the largest term at a number of workers, ``cap`` where more of them would help but may not be had."""
    step_s = predict_step_time_s(costs, limits, workers) * (1 - NEAR_BEST)
    if limits.shared_s > 0 and limits.shared_s >= step_s:
        return "bandwidth"
    if 0 < step_s <= _cpu_floor_s(costs, limits, workers):
        return "cpu"
    free_s = costs.work_s if workers == 0 else costs.ready_step_s
    if 2 * free_s >= step_s if workers == 0 else free_s * (1 + NOISE) >= step_s:
        return "compute"
    return cap or "workers"


def _learn_from(previous: OperatingPoint | None, costs: LoaderCosts, limits: Limits) -> tuple[LoaderCosts, Limits]:
    """Compare two operating points: service time that grew with load, but not by computing, queued for a shared store.

    When it did, the store was busy all the time with the more numerous workers, and one batch took their service time
    divided by their number of it.
    """
    if previous is None or previous.workers == costs.current:
        return costs, limits
    here = (max(1, costs.current), costs.service_s, costs.cpu_s)
    there = (max(1, previous.workers), previous.service_s, previous.cpu_s)
    (_, fast_s, fast_cpu_s), (many, slow_s, slow_cpu_s) = sorted((here, there))
    grown_s = slow_s - fast_s
    if grown_s <= SERVICE_GROWTH * fast_s or grown_s <= 2 * max(0.0, slow_cpu_s - fast_cpu_s):
        return costs, limits
    return replace(costs, service_s=fast_s), replace(limits, shared_s=max(limits.shared_s, slow_s / many))


def _confidence(costs: LoaderCosts, limits: Limits, now_s: float, observed_s: float) -> float:
    """Start from 0.9 and take off for each thing that was guessed, and for what the model does not explain."""
    confidence = 0.9
    if costs.handover_s is None:
        confidence *= 0.9
    if costs.batches < 4 * MIN_BATCHES:
        confidence *= 0.8
    if limits.available_cpus is None:
        confidence *= 0.7
    elif limits.neighbour_cpus:
        confidence *= 1 - 0.6 * limits.neighbour_cpus / (limits.neighbour_cpus + limits.available_cpus)
    if observed_s:
        confidence *= max(0.2, 1 - abs(now_s / observed_s - 1))
    return round(confidence, 2)


# -- words -------------------------------------------------------------------------------------------------------------


def _why_change(costs: LoaderCosts, limits: Limits, best: Forecast, observed_s: float) -> str:
    saves = f"{_ms(best.step_time_s)} a step instead of {_ms(observed_s)}"
    if best.workers == 0:
        handover = _ms(costs.ready_step_s - costs.work_s)
        return f"{saves}: making a batch takes {_ms(costs.service_s)}, taking one over from a worker {handover}"
    return f"{saves}: {_why(costs, limits, best.workers, best.limited_by)}"


def _why_stay(costs: LoaderCosts, limits: Limits, limited_by: str) -> str:
    return f"no other number of workers is predicted to be {NOISE:.0%} faster: " + _why(
        costs, limits, costs.current, limited_by
    )


def _why(costs: LoaderCosts, limits: Limits, workers: int, limited_by: str) -> str:
    batch, step = _ms(costs.service_s), _ms(costs.ready_step_s)
    if limited_by == "cpu":
        threads = costs.loop_cpu_s / costs.work_s if costs.work_s else 0.0
        fewer = (
            f"; the loop itself computes with {threads:.1f} threads, which wait for each other while workers compute: "
            "try torch.set_num_threads(1)"
        )
        return (
            f"loop and workers need {_ms(costs.cpu_s + costs.loop_cpu_s)} of CPU time a step and may use "
            f"{limits.available_cpus or 0:.1f} CPUs, so more workers will not help; "
            f"full speed needs {costs.cpus_for_full_speed or 0:.1f} CPUs{fewer if threads > SEVERAL_THREADS else ''}"
        )
    if limited_by == "bandwidth":
        return f"the workers share a store that takes {_ms(limits.shared_s)} for a batch, so more of them will not help"
    if limited_by == "memory":
        each = (limits.worker_bytes or DEFAULT_WORKER_BYTES) / (1 << 20)
        return (
            f"a worker takes {batch} for a batch and the loop {step} for a step, "
            f"but no more workers of {each:.0f} MiB fit"
        )
    if workers == 0:
        return f"a step takes {_ms(costs.work_s)} and making its batch in the loop only {batch}"
    return f"a worker takes {batch} for a batch and the loop {step} for a step once the batch is there"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 10 else f"{seconds:.3g} s"


# -- statistics --------------------------------------------------------------------------------------------------------


def _settled(batches: Sequence[WorkerBatch], current: int) -> list[WorkerBatch]:
    """Batches of this many workers in the order they were finished, without the first of each worker."""
    if current < 0:
        raise SettingError(f"current is {current!r}; give 0 or more workers")
    seen: set[int] = set()
    settled = []
    for batch in sorted(batches, key=lambda b: b.time_s):
        if (batch.worker < 0) != (current == 0):
            continue
        if batch.worker in seen:
            settled.append(batch)
        seen.add(batch.worker)
    return settled


def _handover(
    steps: Sequence[StepRecord], current: int, busy_share: float, batch: BatchShape | None
) -> tuple[float | None, float]:
    """Return the measured hand-over and the default to use without it.

    A worker counts a batch as put when it begins to send it, and a busy worker sends slowly: its next batch holds the
    interpreter. That wait costs latency, no throughput. So only a queue that holds a batch per worker, filled by
    workers that have time to spare, shows what the loop thread itself must spend.
    """
    full = [s.data_wait_s for s in steps if s.head_ready and (s.ready or 0) >= max(2, current)]
    if len(full) >= MIN_STEPS and busy_share <= BUSY:
        return statistics.median(full), HANDOVER_S
    default_s = HANDOVER_S
    if batch is not None:
        default_s += HANDOVER_PER_TENSOR_S * max(0, batch.tensors - 1) + HANDOVER_PER_BYTE_S * batch.bytes
    ready = [s.data_wait_s for s in steps if s.head_ready]
    return None, min([default_s, statistics.median(ready)] if len(ready) >= MIN_STEPS else [default_s])


def _neighbour_wait_s(batches: Sequence[WorkerBatch], cpu_s: float, host: Sequence[HostSample], current: int) -> float:
    """Share of the wait for a CPU that other jobs cause: their part of the load that competes with a worker.

    A neighbour on every CPU takes half of each, so that a worker waits as long as it computes. More is our own doing.
    """
    others, job = _average(s.others_cpus for s in host), _average(s.job_cpus for s in host)
    usable = _average(s.usable_cpus for s in host)
    waited = [batch.run_queue_s for batch in batches if batch.run_queue_s is not None]
    if not others or not waited:
        return 0.0
    own = (job or 0.0) * current / (current + 1)
    most_s = cpu_s * min(1.0, others / usable) if usable else cpu_s
    return min(most_s, _mean(waited) * others / (others + own))


def _worker_bytes(memory: Sequence[WorkerMemory]) -> int | None:
    """Most memory of one worker that it shares with nobody; all its memory where only that was measured."""
    unique = [m.uss_bytes // m.workers for m in memory if m.uss_bytes is not None and m.workers]
    return max(unique or [m.rss_bytes // m.workers for m in memory if m.workers], default=None)


def _free_bytes(sample: HostSample) -> int | None:
    rooms = [] if sample.memory_available_bytes is None else [sample.memory_available_bytes]
    if sample.memory_limit_bytes is not None and sample.memory_limit_used_bytes is not None:
        rooms.append(max(0, sample.memory_limit_bytes - sample.memory_limit_used_bytes))
    return min(rooms, default=None)


def _step_s(step: StepRecord) -> float:
    return step.step_time_s - (step.checkpoint_s or 0.0)


def _mean(values: Sequence[float]) -> float:
    """Mean without the slowest hundredth, at least one of 20 or more."""
    kept = sorted(values)
    if len(kept) >= 20:
        kept = kept[: -max(1, len(kept) // 100)]
    return math.fsum(kept) / len(kept)


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
