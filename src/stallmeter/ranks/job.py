"""A job: all of its ranks, as far as they are known."""

from __future__ import annotations

import math
import signal
import socket
import statistics
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import RecordingError
from ..machine.procfs import process_space
from ..recording import Header, ranks
from ..recording.columns import Columns, read_columns
from ..recording.ends import ProcessEnd, read_ends
from ..recording.tail import read_tail
from ..records import (
    Arrivals,
    DdpTimes,
    EvaluationBatches,
    Event,
    GpuSample,
    HostSample,
    LedgerRecord,
    LoaderInfo,
    StepRecord,
    WorkerBatch,
)
from ..records.diagnosis import Location, Verdict
from ..records.rows import is_kept
from ..records.stats import median
from ..records.steps import END
from .arrivals import Exchanges, late_in_exchanges, steps_apart
from .between import shares_between, tail_s
from .code import between_of, calls_of, places_of
from .data import DataRead, read_in_evaluation, read_in_training
from .ddp import DdpExchange, ddp_exchange
from .merge import Merged, merge
from .steps import COLUMNS, RankSteps, lives_on, rank_steps

MOST_STEPS = 1_500_000
"""Steps of all ranks together that are merged; of more, rows are taken evenly over the run."""

_LOOKED_AT = 2**18
"""Bytes of one file from which the number of steps in all of them is estimated."""

_KINDS = ("ledger", "verdict", "loader", "evaluation")

CPU_WAIT = "training thread waits for a CPU, %"
HOST_FACTS: Mapping[str, Callable[[HostSample], float | None]] = {
    "CPUs kept busy by others": lambda s: s.others_cpus,
    "CPU time stolen by the hypervisor, %": lambda s: s.cpu_steal_pct,
    CPU_WAIT: lambda s: s.loop_cpu_wait_pct,
    "quota periods throttled, %": lambda s: s.cpu_throttled_pct,
}
GPU_FACTS: Mapping[str, Callable[[GpuSample], float | None]] = {
    "SM clock, MHz": lambda s: s.sm_clock_mhz,
    "GPU temperature, °C": lambda s: s.temperature_c,
    "GPU power, W": lambda s: s.power_w,
    "GPU busy, %": lambda s: s.utilization_pct,
    "clocks held down, % of samples": lambda s: (
        None if s.throttle_reasons is None else 100.0 * bool(s.throttle_reasons)
    ),
    "GPU memory of other processes, bytes": lambda s: (
        None if s.memory_used_bytes is None or s.job_memory_bytes is None else s.memory_used_bytes - s.job_memory_bytes
    ),
}

COST = "CPU time of a batch, s"
"""A fact about a rank; it is the same however busy the CPUs are."""

SUPPLY = "loader's time for a batch, s"
"""A fact, too: how far apart batches come from workers that are never idle."""

_LEAST_BATCHES = 8
"""Fewer do not tell how long a batch takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """What is known of one rank."""

    rank: int
    header: Header
    steps: RankSteps
    ledger: LedgerRecord | None = None
    verdict: Verdict | None = None
    """Its own: of this rank alone."""
    loader: LoaderInfo | None = None
    trains_on: DataRead | None = None
    evaluates: DataRead | None = None
    """Which data its loaders go through, where nothing splits them over the ranks."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Medians of what was sampled beside the loop, by words that name value and unit."""
    places: Sequence[Location] = ()
    """Functions in which its steps do their own work, the largest first; none where nobody looked."""
    between: Location | None = None
    """Function that it is in most between two epochs; None where nobody looked."""
    ended: str | None = None
    """Why its run ended; None when it goes on or was killed."""
    arrivals: Sequence[Arrivals] = ()
    ddp: Sequence[DdpTimes] = ()
    running: bool | None = None
    """Whether its process runs; None where nobody has asked, or can."""
    silent_s: float | None = None
    """How long nothing was heard of it; None where it has ended, and for a recording."""
    standing: str | None = None
    """Where its training thread stands since a while, and for how long; None where steps end."""
    gone: ProcessEnd | None = None
    """How its process ended; None where it runs, and where nobody saw it."""

    @property
    def last_s(self) -> float:
        """Unix time, by its own clock, of the newest that is known of it; 0 where nothing is."""
        steps = self.steps.ends_s
        return max(self.ledger.time_s if self.ledger is not None else 0.0, steps[-1] if len(steps) else 0.0)

    @property
    def is_cut_short(self) -> bool:
        """Whether its run did not come to its end: it goes on, was killed, or an exception ended it."""
        return self.ended is None or self.ended.startswith("exception")

    @property
    def training_s(self) -> float:
        """Wall time without the start."""
        if self.ledger is None:
            return 0.0
        return max(0.0, self.ledger.wall_s - self.ledger.buckets.get("start", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All ranks that are known."""

    ranks: tuple[RankView, ...]
    """By number."""
    world_size: int
    merged: Merged | None
    exchanges: Exchanges | None = None
    """What the collectives say that the ledgers cannot; None where nobody recorded them."""
    ddp: DdpExchange | None = None
    """What DDP's own times say; None where nobody recorded them."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of which nothing is known."""
        known = {view.rank for view in self.ranks}
        return tuple(rank for rank in range(self.world_size) if rank not in known)

    @property
    def died(self) -> tuple[RankView, ...]:
        """Ranks whose process is gone without a word, while another went on or fell with them.

        Where all end at the same moment nobody can tell who went first, unless somebody saw how each of them ended: a
        launcher stops the others with another signal than the one that ended the first, or a while later.
        """
        gone = [view for view in self.ranks if view.ended is None and view.ledger is not None and view.running is False]
        if not gone:
            return ()
        first = set(_first_to_go(self.ranks))
        if first:
            return tuple(view for view in gone if view.rank in first)
        newest_s = max(view.last_s for view in self.ranks)
        goes_on = any(view.ended is None and view.running for view in self.ranks)
        fell = any(_fell(view.ended) for view in self.ranks)
        return tuple(view for view in gone if goes_on or fell or newest_s - view.last_s > APART_S)

    @property
    def killed_together(self) -> tuple[RankView, ...]:
        """Ranks that a signal ended, by the time of their ends, where nobody can tell whom the others lost."""
        killed = [view for view in self.ranks if view.ended is None and view.gone is not None and view.gone.signal]
        return () if self.died else tuple(sorted(killed, key=_gone_s))

    @property
    def left_first(self) -> RankView | None:
        """The rank that ended before the others, whose collectives then failed; None where nobody can tell.

        The clock must be one: between hosts it is not.
        """
        ordered = sorted(self.ranks, key=lambda view: view.last_s)
        if len(ordered) < 2 or any(view.ended is None for view in ordered) or self.died:
            return None
        first, others = ordered[0], ordered[1:]
        one_clock = bool(first.header.host) and all(view.header.host == first.header.host for view in others)
        fell = any(_fell(view.ended) for view in others)
        return first if one_clock and fell and others[0].last_s - first.last_s > BEFORE_S else None

    @property
    def training_s(self) -> float:
        """Training time of the longest rank."""
        return max((view.training_s for view in self.ranks), default=0.0)

    @property
    def wall_s(self) -> float:
        """Wall time of the longest rank."""
        return max((view.ledger.wall_s for view in self.ranks if view.ledger), default=0.0)

    def view(self, rank: int) -> RankView | None:
        """Return one rank; None when it is not known."""
        return next((view for view in self.ranks if view.rank == rank), None)


APART_S = 30.0
"""A rank of which nothing is known any more for so long before the newest of the others has not ended with them. A long
recording holds something of each quarter of a minute."""

BEFORE_S = 0.01
"""Who ends by so much before the others has ended first: they learn of it from its process, which goes after that."""

KILLED_APART_S = 1.0
"""Who kills a whole job at once sends all signals within a moment, and the memory of a large process is freed within
this. Whoever was killed so long before the others was killed alone, and its launcher found out (Lightning's looks every
five seconds, and kills too)."""

LOST_S = 120.0
"""A recording of a host that cannot be asked, which has no end and has not grown for so long, grows no more."""

_WITHOUT_OTHERS = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError")
"""What a rank's collectives raise when another is gone. Where a rank fell over its own mistake the launcher ends the
others, and none of these has died."""


_STOPS = (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""What launchers and users stop a whole job with."""


def _first_to_go(views: Sequence[RankView]) -> Iterator[int]:
    """Yield the ranks that ended first, of themselves or killed, where the others ended in another way or later."""
    hows = {view.rank: _how_gone(view) for view in views}
    candidates = [view for view in views if view.ended is None and view.gone and view.gone.signal not in _STOPS]
    if not candidates:
        return
    until_s = min(map(_gone_s, candidates)) + BEFORE_S
    if len(set(hows.values())) < 2:  # a SIGKILL for all is a stop, too
        others = [_gone_s(view) for view in candidates if _gone_s(view) > until_s]
        if not others or min(others) - until_s < KILLED_APART_S:
            return
    for view in candidates:
        if _gone_s(view) <= until_s:
            yield view.rank


def _gone_s(view: RankView) -> float:
    """Return when its process ended; 0 where nobody saw it."""
    return 0.0 if view.gone is None else view.gone.time_s


def _how_gone(view: RankView) -> tuple[str | None, int | None, int | None]:
    return view.ended, *((view.gone.signal, view.gone.status) if view.gone else (None, None))


def _fell(ended: str | None) -> bool:
    """Whether a run ended as one does whose collectives have lost a rank."""
    return ended is not None and ended.endswith(_WITHOUT_OTHERS)


def is_running(header: Header) -> bool | None:
    """Whether the process that made a recording runs; None where that cannot be asked from here."""
    if header.host != socket.gethostname() or header.process_space != process_space():
        return None
    from ..machine import processes  # psutil takes 26 ms to import; this is asked of ranks without an end alone

    return processes.is_running(header.pid, header.started_s)


def assemble(views: Iterable[RankView]) -> Job:
    """Merge what is known of the ranks."""
    ordered = tuple(sorted(views, key=lambda view: view.rank))
    # One that has died early would leave no steps that all have.
    longest = max((len(view.steps) for view in ordered), default=0)
    walking = [_with_between(view) for view in ordered if len(view.steps) * 10 >= longest]
    known = next((view for view in ordered if view.arrivals and len(view.steps)), None)
    every = 1 if known is None else steps_apart(known.arrivals, known.steps)
    merged = merge(walking, every) if longest else None
    return Job(
        ranks=ordered,
        world_size=max((view.header.world_size for view in ordered), default=0),
        merged=merged,
        exchanges=None if merged is None else late_in_exchanges(arrivals_of(ordered), walking),
        ddp=None if merged is None else ddp_exchange({view.rank: view.ddp for view in ordered}, walking),
    )


def _with_between(view: RankView) -> RankSteps:
    steps = view.steps if view.ended is None else replace(view.steps, tail_s=tail_s(view.steps, view.ledger))
    return replace(steps, between=shares_between(steps, view.ledger))


def arrivals_of(views: Sequence[RankView]) -> Mapping[int, Sequence[Arrivals]]:
    """Return what each rank recorded of its collectives."""
    return {view.rank: view.arrivals for view in views if view.arrivals}


def read_job(folder: Path, *, verdicts: Mapping[int, Verdict] | None = None, known: Sequence[int] | None = None) -> Job:
    """Read all ranks of a recording.

    Args:
        folder: The recording's folder.
        verdicts: Of ranks whose own verdict is not to be taken from the recording.
        known: Ranks to read; by default all that have a recording.

    Raises:
        RecordingError: There is no rank with a header.
        OSError: The files cannot be read.
    """
    found = ranks(folder) if known is None else known
    wants = _rows_to_read(folder)
    views, ends = [], read_ends(folder)
    for rank in found:
        try:
            columns = read_columns(
                folder,
                rank,
                COLUMNS,
                wants=wants,
                last=_KINDS,
                some=("host", "gpu", "event", "arrivals", "ddp", "batch", "look"),
            )
        except RecordingError:  # it was just being made, or never got its first line
            continue
        views.append(replace(view_of(columns, (verdicts or {}).get(rank)), gone=ends.get(rank)))
    if not views:
        raise RecordingError(f"{str(folder)!r} holds no rank with a readable recording")
    now_s = time.time()
    return assemble(_asked(folder, view, now_s) if view.is_cut_short else view for view in views)


def _asked(folder: Path, view: RankView, now_s: float) -> RankView:
    """Return a rank that did not end as it should with where it stood, and what became of its process."""
    is_there = False if view.gone is not None else is_running(view.header)
    tail = read_tail(folder, view.rank)  # afterwards: a process that is gone has written all that it will
    ended = view.ended or tail.ended  # of many events only some are read
    running = None if ended is not None else is_there
    if running is None and now_s - view.last_s > LOST_S:
        running = False
    return replace(view, running=running, ended=ended, standing=tail.standing)


def read_newest(folder: Path, rank: int, *, live_on: bool = False) -> tuple[RankView, bool]:
    """Read what a rank's recording ends with, and whether it is complete: bounded, however long it is.

    Args:
        folder: Of the run.
        rank: Whose.
        live_on: Whether workers live on from epoch to epoch on the rank that asks: what is told of a loader at the
            beginning of a long recording is not read, and the ranks of a job have loaders alike.

    Raises:
        RecordingError: There is no recording of this rank.
        OSError: It cannot be read.
    """
    tail = read_tail(folder, rank)
    newest = tail.records[::-1]
    steps = [record for record in tail.records if isinstance(record, StepRecord) and not record.outlier]
    loader = next((record for record in newest if isinstance(record, LoaderInfo)), None)
    lives = live_on if loader is None else lives_on(loader)
    columns = {name: array("d", (_number(getattr(step, name)) for step in steps)) for name in COLUMNS}
    view = RankView(
        rank=rank,
        header=tail.header,
        steps=rank_steps(rank, columns, tail.header.host, live_on=lives),
        ledger=next((record for record in newest if isinstance(record, LedgerRecord)), None),
        verdict=next((record for record in newest if isinstance(record, Verdict)), None),
        trains_on=read_in_training(loader),
        evaluates=read_in_evaluation(next((r for r in newest if isinstance(r, EvaluationBatches)), None)),
        facts=facts_of(tail.records, tail.records),
        ended=tail.ended,
        standing=tail.standing,
        arrivals=[record for record in tail.records if isinstance(record, Arrivals)],
        ddp=[record for record in tail.records if isinstance(record, DdpTimes)],
    )
    return view, tail.settled


def _number(value: float | bool | None) -> float:
    return math.nan if value is None else float(value)


def _rows_to_read(folder: Path) -> Callable[[int], bool]:
    """Choose rows of steps by their index, so that all ranks read the same."""
    files = {path: path.stat().st_size for path in sorted(folder.glob("rank*.jsonl"))}
    every = 1
    if files:
        # Beside the steps there are batches, samples and ledgers: how many differs from job to job.
        largest = max(files, key=files.__getitem__)
        with largest.open("rb") as file:
            head = file.read(_LOOKED_AT)
        steps = sum(files.values()) * head.count(b'\n["step"') / max(1, len(head))
        while steps / every > MOST_STEPS:
            every *= 2
    return lambda index: is_kept(index, every)


def view_of(columns: Columns, verdict: Verdict | None = None) -> RankView:
    """Return what the columns of one rank hold."""
    ledger, recorded, loader, evaluated = (columns.last.get(kind) for kind in _KINDS)
    ends = [e.detail for e in columns.some.get("event", ()) if isinstance(e, Event) and e.name == END]
    rank = columns.header.rank
    return RankView(
        rank=rank,
        header=columns.header,
        steps=rank_steps(rank, columns.steps, columns.header.host, live_on=lives_on(loader)),
        ledger=ledger if isinstance(ledger, LedgerRecord) else None,
        verdict=verdict or (recorded if isinstance(recorded, Verdict) else None),
        loader=loader if isinstance(loader, LoaderInfo) else None,
        trains_on=read_in_training(loader),
        evaluates=read_in_evaluation(evaluated),
        facts=facts_of_a_rank(
            columns.some.get("host", ()),
            columns.some.get("gpu", ()),
            columns.some.get("batch", ()),
            loader,
            columns.some.get("look", ()),
        ),
        places=places_of(columns.some.get("look", ())),
        between=between_of(columns.some.get("look", ())),
        ended=ends[-1] if ends else None,
        arrivals=[a for a in columns.some.get("arrivals", ()) if isinstance(a, Arrivals)],
        ddp=[t for t in columns.some.get("ddp", ()) if isinstance(t, DdpTimes)],
    )


def supply_of(batches: Iterable[object], loader: object) -> dict[str, float]:
    """Return how far apart a loader's batches come while nobody waits for room; nothing where that is not known.

    Without workers a batch is made while the loop waits for it: the ledger tells all of that.

    Args:
        batches: Some of them.
        loader: How it is set up.
    """
    made = [batch for batch in batches if isinstance(batch, WorkerBatch) and batch.worker >= 0]
    if not isinstance(loader, LoaderInfo) or not loader.num_workers or len(made) < _LEAST_BATCHES:
        return {}
    if any(batch.loader != loader.loader for batch in made):
        return {}
    each_s = statistics.fmean(batch.service_s for batch in made) * (loader.batches_per_step or 1.0)
    return {SUPPLY: each_s / loader.num_workers}


def typical(views: Iterable[RankView], fact: str) -> float | None:
    """Return the median of a fact over some ranks; None where none of them has it."""
    return median(view.facts.get(fact) for view in views)


def cost_of(batches: Iterable[object]) -> dict[str, float]:
    """Return what a batch costs in CPU time, mean; nothing where too few are known, or those of several loaders.

    Args:
        batches: Some of them.
    """
    made = [batch for batch in batches if isinstance(batch, WorkerBatch)]
    if len(made) < _LEAST_BATCHES or len({batch.loader for batch in made}) > 1:
        return {}
    return {COST: statistics.fmean(batch.computed_s for batch in made)}


def facts_of_a_rank(
    host: Iterable[object], gpu: Iterable[object], batches: Iterable[object], loader: object, looks: Iterable[object]
) -> dict[str, float]:
    """Return what tells one rank from another: machine, what its loader supplies at which cost, own collectives.

    Args:
        host: Samples, some of them.
        gpu: The same.
        batches: Of its workers, some of them.
        loader: How it is set up.
        looks: Into its code.
    """
    made = list(batches)
    return facts_of(host, gpu) | supply_of(made, loader) | cost_of(made) | calls_of(looks)


def facts_of(host: Iterable[object], gpu: Iterable[object]) -> dict[str, float]:
    """Return medians of what tells one rank's machine from another's."""
    hosts, gpus = [s for s in host if isinstance(s, HostSample)], [s for s in gpu if isinstance(s, GpuSample)]
    found: dict[str, float] = {}
    for name, of in HOST_FACTS.items():
        values = [v for s in hosts if (v := of(s)) is not None]
        found |= {name: statistics.median(values)} if values else {}
    for name, of_gpu in GPU_FACTS.items():
        values = [v for s in gpus if (v := of_gpu(s)) is not None]
        found |= {name: statistics.fmean(values) if "samples" in name else statistics.median(values)} if values else {}
    return found
