"""The model behind the recommended ``num_workers``: measured costs of one batch in, a predicted step time out.

A loop takes ``t`` seconds for a step, and ``w`` workers take ``s`` seconds for a batch. The loop can be bound by
itself, by the number of workers, by the CPUs or by something that all workers share::

    w = 0    t + s
    w > 0    max(t + h,  s / w,  (c + l) / B,  b) + start(w)

``h`` is the hand-over of a batch that lies ready (unpickling in the loop thread). ``c`` is the CPU time a worker
needs for a batch, ``l`` what the training process needs for a step, and ``B`` the CPUs that this rank may keep busy.
``b`` is the time a batch takes of a shared store, ``start`` what starting workers in each epoch adds to a step. A loop
that computes with several threads on the CPUs is held up by workers that take one from them (`team`). Where
batches take unevenly long, ``max`` is too hopeful: torch's loader hands batches over in order and lets each worker run
only ``prefetch_factor`` batches ahead, so one late batch stops all. The first two terms are therefore played through
with the measured times (`_ordered_queue_s`).

Everything here is a pure function of plain numbers: seconds, bytes and CPUs. `docs/explain/workers-model.md` has the
measurements behind it, `benchmarks/workers` compares it with exhaustive sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count, islice

from ..errors import SettingError
from .beside import lost_beside_s
from .team import threads_beside_s

HANDOVER_S = 0.0012
"""Hand-over of one small tensor where it was never measured (benchmarks/workers: 1.0-1.3 ms)."""

TURNAROUND_S = 0.0005
"""What a worker does between two fetches, median (benchmarks/workers: 0.2-0.8 ms)."""

DEFAULT_WORKER_BYTES = 150 << 20
"""Memory of one more worker where none was measured: 8-168 MiB of a forked one (benchmarks/workers), 200 of another."""

MEMORY_SHARE = 0.8
"""Share of the free memory that new workers may take: the rest is for the file cache and for growth."""

NOISE = 0.03
"""Predicted gains below this are not worth a change: repeated measurements differ by as much."""

NEAR_BEST = 0.02
"""The smallest number of workers this close to the best prediction is taken: each worker costs memory and start-up."""

FIRST_REACH = 4
"""So many workers are compared with none, with one and with two."""

HEADROOM = 0.1
"""Workers are counted as if they took this much longer: being one short costs time, one too many costs memory."""

PREFETCH_FACTORS = (4, 8, 16)
"""Depths that are tried: each holds twice the memory of the one before it."""

PROFILE_BATCHES = 128
"""Service times that are played through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCosts:
    """What one batch costs, measured while the run runs. `costs_from` makes it from records.

    Raises:
        SettingError: A number is negative or not finite.
    """

    current: int
    """Workers while this was measured."""
    work_s: float
    """t: a step without data wait, validation and checkpoint, by host or device, whichever takes longer. Mean."""
    service_s: float
    """s: wall time in which a worker (or the loop thread) makes a batch, without waiting for a CPU. Mean."""
    cpu_s: float
    """c: CPU time of that, decoder threads and sending the batch included. Mean."""
    sent_cpu_s: float = 0.0
    """Part of ``cpu_s`` in which workers send a batch: nobody does without them."""
    quick_work_s: float = 0.0
    """What a step takes, beside ``work_s``, where nobody was in its way: from the quickest steps. 0 where not known."""
    quiet_work_s: float | None = None
    """``work_s`` without workers on the same CPUs; None where nothing says that it is less."""
    crowded_work_s: float | None = None
    """``work_s`` while a worker is at work all the time; None where single steps do not show it. See `beside`."""
    blocked_s: float = 0.0
    """Part of ``work_s`` in which the loop's thread does not run: it waits for a device, a disk or a pause."""
    blocked_first: bool = False
    """Whether that lies before what the loop computes in a step. Taken to lie after it where that is not known."""
    indices_s: float = 0.0
    """Part of ``work_s`` in which the loop's own thread chooses the items of a batch: no worker takes it over."""
    handover_s: float | None = None
    """h: wait for a batch that lies ready. Median; None when the queue was never full enough to see it."""
    default_handover_s: float = HANDOVER_S
    """Used for h when it was not measured."""
    shared_memory_s: float = 0.0
    """What putting a batch into shared memory would add to s; 0 when workers did that while s was measured."""
    shared_already_s: float = 0.0
    """Part of s in which a worker puts a batch into shared memory: without workers that is not done."""
    loop_cpu_s: float = 0.0
    """l: CPU time of the training process per step, without making batches in it. Mean."""
    neighbour_wait_s: float = 0.0
    """Wait for a CPU per batch for which other jobs are to blame: it is there with any number of workers."""
    own_wait_s: float = 0.0
    """Wait for a CPU per batch, which is no part of s, that the job's own processes make each other. Mean."""
    turnaround_s: float = TURNAROUND_S
    """Time of a worker between two batches."""
    start_once_s: float = 0.0
    """Start of an epoch with any number of workers, spread over its steps; 0 where workers live on between epochs."""
    start_each_s: float = 0.0
    """What each worker adds to that."""
    start_none_s: float = 0.0
    """The same without workers: what an iterable dataset does before its first item, as it fills a buffer."""
    step_time_s: float | None = None
    """The step as it is now, the start of workers in it, validation and checkpoint left out. Mean."""
    profile: tuple[float, ...] = ()
    """Single service times in the order in which they were measured; only their proportions count."""
    longest_s: tuple[float, ...] = ()
    """The longest of all service times, however rare: they must be bridged by what is prepared ahead."""
    batches: int = 0
    """Batches behind these numbers."""
    iterable: bool = False
    """The dataset is iterable: another number of workers may repeat or drop samples."""
    stateful: bool = False
    """The loader's saved state depends on its number of workers."""
    shards_itself: bool = False
    """The iterable dataset is known to split itself among its workers."""
    torch_threads: int | None = None
    """Threads that torch's operations may have in the training process; None where not known."""
    library_threads: bool = False
    """Several threads of a library that is not torch make a batch in the loop: in a worker they are as many."""
    team: float | None = None
    """Threads that compute the loop's operations at a time, its own among them; None where not known. Beside workers
    each of them has a CPU for a part of the time alone, so that ``loop_cpu_s`` does not tell."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def ready_step_s(self) -> float:
        """A step whose batch lies ready: t + h."""
        return self.work_s + (self.default_handover_s if self.handover_s is None else self.handover_s)

    @property
    def alone_s(self) -> float:
        """A step's own work without workers on the same CPUs."""
        return self.work_s if self.quiet_work_s is None else min(self.work_s, self.quiet_work_s)

    @property
    def runs_s(self) -> float:
        """Part of a step's own work in which the loop's thread runs."""
        return max(0.0, self.work_s - self.blocked_s)

    @property
    def worker_s(self) -> float:
        """Time in a worker, whose operations have one thread: where the loop's have several, all that these compute."""
        return self.service_s if self.current else max(self.service_s, self.cpu_s)

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
    unique_bytes: int | None = None
    """The same where it was measured as such, and not guessed from memory that is shared in part."""
    free_bytes: int | None = None
    """Memory left for more workers of this rank."""
    batch_bytes: int | None = None
    """Tensor bytes of one batch."""
    shm_free_bytes: int | None = None
    """Free space for this rank in /dev/shm, through which batches are handed over."""
    prefetch_factor: int = 2
    """Batches that each worker may be ahead."""
    shared_s: float = 0.0
    """b: time that one batch takes of a store that serves all workers in turn."""
    adds_s: float = 0.0
    """What each further worker at work adds to a batch of the others. ``service_s`` is then that of a worker alone."""
    adds_cpu_s: float = 0.0  # but cpu_s stays that of the present number
    shared_by: str = "bandwidth"
    """What that store is called in ``limited_by``: bandwidth or lock; or repeats, where it is work of each for all."""
    max_workers: int = 64
    """Never recommend more: an upper end for the search, not a measurement."""
    shards: int | None = None
    """Parts into which the dataset can be split: more workers than that have nothing to do."""

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
    """compute, workers, cpu, memory, bandwidth or lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchAdvice:
    """More batches ahead for each worker, and what that would gain."""

    prefetch_factor: int
    gain_pct: float
    """Predicted rise of throughput."""


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


def predict_step_times_s(costs: LoaderCosts, limits: Limits, most: int) -> list[float]:
    """Predict the mean step times (s) with 0, 1, 2, … workers, at once; see `predict_step_time_s`."""
    return list(islice(_step_times_s(costs, limits), most + 1))


def best_workers(costs: LoaderCosts, limits: Limits) -> Forecast:
    """Return the smallest number of workers within 2 % of the best prediction of twice as many, inside the memory caps.

    Says what is best for the loader as a machine; `advise` also asks whether it may and should be changed.
    """
    cap, by = worker_cap(costs, limits)
    times: list[float] = []
    chosen = 0
    for step_s in islice(_step_times_s(costs, limits, 1 + HEADROOM), cap + 1):
        times.append(step_s)
        workers = len(times) - 1
        free_s = max(costs.ready_step_s, _floor_s(costs, limits, workers, 1 + HEADROOM)) + start_s(costs, workers)
        chosen = _nearest(times)
        if (workers and step_s <= free_s) or workers >= _reach(chosen):  # what follows would change nothing
            break
    return Forecast(
        workers=chosen,
        step_time_s=predict_step_time_s(costs, limits, chosen),
        limited_by=binding(costs, limits, chosen, by if chosen == cap else ""),
    )


def _reach(workers: int) -> int:
    return max(FIRST_REACH, 2 * workers)


def _nearest(times: Sequence[float]) -> int:
    """Return the number of workers from which on twice as many are no more than 2 % faster, from their step times.

    Far more workers win a little more in the model, whose queue they fill before the first step; none of that was seen.
    """
    chosen = 0
    while True:
        ahead = times[chosen : _reach(chosen) + 1]
        limit_s = min(ahead) * (1 + NEAR_BEST)
        if times[chosen] <= limit_s:
            return chosen
        chosen += next(more for more, step_s in enumerate(ahead) if step_s <= limit_s)


def advise_prefetch(costs: LoaderCosts, limits: Limits, workers: int) -> PrefetchAdvice | None:
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
    each_s = costs.worker_s + costs.neighbour_wait_s + costs.shared_memory_s + costs.turnaround_s
    floor_s = _floor_s(costs, limits, workers)
    depths = [d for d in PREFETCH_FACTORS if d > limits.prefetch_factor and _fits(limits, workers, d)]
    times = {d: max(floor_s, _ordered_queue_s(costs, each_s, workers, d)) for d in depths}
    if not times:
        return None
    now_s = max(floor_s, _ordered_queue_s(costs, each_s, workers, max(1, limits.prefetch_factor)))
    best_s = min(times.values())
    chosen = next(d for d in depths if times[d] <= best_s * (1 + NEAR_BEST))
    won = now_s / times[chosen] - 1 if times[chosen] else 0.0
    return PrefetchAdvice(prefetch_factor=chosen, gain_pct=100.0 * won) if won >= NOISE else None


def start_s(costs: LoaderCosts, workers: int) -> float:
    """Return the part of a step that goes into starting so many workers in each epoch."""
    return costs.start_once_s + workers * costs.start_each_s if workers else costs.start_none_s


def worker_cap(costs: LoaderCosts, limits: Limits) -> tuple[int, str]:
    """Return the most workers that fit, and what allows no more: ``memory`` or ``workers`` (the search's own end).

    Batches in flight lie in /dev/shm: each worker holds up to ``prefetch_factor`` of them.
    """
    return min([(limits.max_workers, "workers"), *_rooms(costs, limits)])


def most_workers(costs: LoaderCosts, limits: Limits) -> int | None:
    """Return the most workers that fit into memory, /dev/shm and the dataset's shards; None where none is known."""
    return min((most for most, _ in _rooms(costs, limits)), default=None)


def _rooms(costs: LoaderCosts, limits: Limits) -> list[tuple[int, str]]:
    rooms = []
    if limits.shards is not None:
        rooms.append((limits.shards, "workers"))
    if limits.free_bytes is not None:
        each = limits.worker_bytes or DEFAULT_WORKER_BYTES
        rooms.append((costs.current + int(MEMORY_SHARE * limits.free_bytes / each), "memory"))
    if limits.shm_free_bytes is not None and limits.batch_bytes:
        each = max(1, limits.prefetch_factor) * limits.batch_bytes
        rooms.append((costs.current + int(MEMORY_SHARE * limits.shm_free_bytes / each), "memory"))
    return rooms


def binding(costs: LoaderCosts, limits: Limits, workers: int, cap: str) -> str:
    """Name the largest term at a number of workers, ``cap`` where more of them would help but may not be had."""
    step_s = predict_step_time_s(costs, limits, workers) * (1 - NEAR_BEST)
    if limits.shared_s > 0 and limits.shared_s >= step_s:
        return limits.shared_by
    if 0 < step_s <= _cpu_floor_s(costs, limits, workers):
        return "cpu"
    free_s = costs.work_s if workers == 0 else costs.ready_step_s + start_s(costs, workers)
    if 2 * free_s >= step_s if workers == 0 else free_s * (1 + NOISE) >= step_s:
        return "compute"
    return cap or "workers"


def _check(instance: object) -> None:
    for item in fields(instance):  # type: ignore[arg-type]
        value = getattr(instance, item.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and not (math.isfinite(number) and number >= 0):
                raise SettingError(f"{item.name} is {number!r}; give a finite number of 0 or more")


def _fits(limits: Limits, workers: int, depth: int) -> bool:
    if limits.shm_free_bytes is None or not limits.batch_bytes:
        return True
    more = workers * (depth - limits.prefetch_factor) * limits.batch_bytes
    return more <= MEMORY_SHARE * limits.shm_free_bytes


def _step_times_s(costs: LoaderCosts, limits: Limits, slower: float = 1.0) -> Iterator[float]:
    """Step times for 0, 1, 2, … workers. From 1 on they rise only by the start: workers that are not needed sleep.

    Args:
        costs: As measured.
        limits: What the workers may use.
        slower: Multiplies the time that a worker takes.
    """
    made_s = max(0.0, costs.service_s - costs.shared_already_s)
    yield max(costs.alone_s + made_s + costs.neighbour_wait_s, _floor_s(costs, limits, 0)) + start_s(costs, 0)
    best = math.inf
    for number in count(1):
        workers = max(1, min(number, limits.shards or number))
        crowded_s = slower * _batch_s(costs, limits, workers)
        time_s = max(costs.ready_step_s + lost_beside_s(costs, limits, workers), crowded_s / workers)
        if sum(costs.profile):
            time_s = max(time_s, _ordered_queue_s(costs, crowded_s, workers, max(1, limits.prefetch_factor)))
        time_s = max(time_s, threads_beside_s(costs, limits, workers, slower))
        # A slow batch may by chance fall better with fewer workers; that is no reason to predict a slowdown.
        time_s = max(time_s, _floor_s(costs, limits, workers, slower))
        best = time_s if limits.adds_cpu_s else min(best, time_s)
        yield best + start_s(costs, workers)


def _batch_s(costs: LoaderCosts, limits: Limits, workers: int) -> float:
    """Return the time from one batch of a worker to its next, with so many of them at work.

    What others of the host make a worker wait is there once, however many there are. A store that all share answers
    each of them later by what the others ask of it: as long as that was seen to be.
    """
    own_s = costs.worker_s + costs.shared_memory_s + costs.turnaround_s
    return own_s * _crowded(costs, limits, workers) + costs.neighbour_wait_s + (workers - 1) * limits.adds_s


def _crowded(costs: LoaderCosts, limits: Limits, workers: int) -> float:
    """Return by what factor a batch takes longer with so many workers, because they meet at the CPUs.

    Workers that partly wait for storage and partly compute need not be more than the CPUs to want more of them than
    there are at one moment. A closed network of one delay and one station that serves as many at a time as there are
    CPUs has a known throughput (product form: Baskett, Chandy, Muntz, Palacios, 1975). What the crowd of the present
    number adds by this law is in the measured time of a batch, but for what was seen as a wait for a CPU, which is not.
    """
    computes_s, cpus = min(costs.cpu_s, costs.worker_s), limits.available_cpus
    if not cpus or computes_s <= 0:
        return 1.0
    waits_s = max(0.0, costs.worker_s - computes_s)
    present = max(1, costs.current)
    longer = 1.0
    for _ in range(_ROUNDS):
        # The longer a step takes, the less of a CPU the loop keeps busy.
        step_s = max(costs.ready_step_s, longer * costs.worker_s / workers, (computes_s + costs.loop_cpu_s) / cpus)
        left = max(cpus / 4.0, cpus - costs.loop_cpu_s / step_s)
        before_s = max(costs.worker_s, _cycle_s(computes_s, waits_s, present, left) - costs.own_wait_s)
        longer = max(1.0, _cycle_s(computes_s, waits_s, workers, left) / before_s)
    return longer


_ROUNDS = 4
"""After so many the answer stands to a percent."""


def _cycle_s(computes_s: float, waits_s: float, workers: int, cpus: float) -> float:
    """Return the mean time in which each of the workers makes one batch."""
    # weights[j]: how likely j of them want a CPU, up to a common factor.
    weights = [1.0]
    for j in range(1, workers + 1):
        at_once = min(float(j), cpus)
        # From j - 1 to j: one more at the CPUs, one less of those that wait.
        away = (workers - j + 1) / waits_s if waits_s > 0 else math.inf
        if math.isinf(away):
            return computes_s * max(1.0, workers / cpus)
        weights.append(weights[-1] * away * computes_s / at_once)
    served = math.fsum(w * min(float(j), cpus) for j, w in enumerate(weights)) / math.fsum(weights) / computes_s
    return workers / served


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

    Workers that take longer than measured compute longer, too: a reserve must not call for more than there are CPUs.
    """
    if not limits.available_cpus:
        return 0.0
    handed_over_s = costs.shared_memory_s if workers else 0.0
    # Threads that have nothing to do spin for a while: no more of it than the loop's own work has room for is work.
    work_s, sent_s = (costs.work_s, 0.0) if workers else (costs.alone_s, min(costs.cpu_s, costs.sent_cpu_s))
    loop_cpu_s = min(costs.loop_cpu_s, limits.available_cpus * work_s)
    made_s = costs.cpu_s - sent_s + (max(1, workers) - max(1, costs.current)) * limits.adds_cpu_s
    return (slower * (max(0.0, made_s) + handed_over_s) + loop_cpu_s) / limits.available_cpus
