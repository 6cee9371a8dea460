"""The report: everything worth showing of one run, computed once from a window, alive or replayed from a recording."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ..errors import RecordingError, StallmeterError
from ..recording import Header, Reader, ranks
from ..recording.pending import process_lives
from ..records import (
    BUCKETS,
    CodeLook,
    Event,
    GpuSample,
    HostSample,
    LedgerRecord,
    LoaderInfo,
    StepRecord,
    WorkerBatch,
    WorkerTrial,
)
from ..records.diagnosis import Verdict
from ..records.stats import Stats, median
from ..records.steps import AT_EXIT, END
from ..window import Window
from ..workers.patch import patch
from . import wording
from .device import DeviceView, device_view
from .job.model import JobReport
from .timeline import Timeline

T = TypeVar("T")


WRONG_VALUES = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What values of a wrong type lead to: a recording is a file, and files get edited."""

HOST_SIGNALS = tuple(f.name for f in fields(HostSample) if f.name not in ("time_s", "network"))
"""Numbers of a host sample that the report summarises."""

_NO_LEVELS = ("time_s", "index", "uuid", "name", "throttle_reasons")

GPU_SIGNALS = tuple(f.name for f in fields(GpuSample) if f.name not in _NO_LEVELS)
"""Numbers of a GPU sample that the report summarises."""


def judged(verdict: Verdict, step_time_s: Stats | None) -> Verdict | None:
    """Return a verdict; None when no step was measured that it could be about."""
    return None if verdict.primary is None and step_time_s is None else verdict


@dataclass(frozen=True, slots=True)
class Share:
    """One bucket of the ledger, or a named part of one."""

    name: str
    seconds: float
    share_pct: float | None
    """Of the wall time; None while there is none."""
    parts: tuple[Share, ...] = ()
    """The callbacks, loggers or parts inside it, the largest first."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of these."""
        return tuple(part.name for part in self.parts)


@dataclass(frozen=True, slots=True)
class Level:
    """Where a sampled signal stood over the run, in the signal's unit."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """One network interface over the run."""

    name: str
    received_bytes_per_s: Level
    sent_bytes_per_s: Level
    speed_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU over the run."""

    index: int
    name: str | None
    uuid: str | None
    levels: Mapping[str, Level | None]
    """By name of the signal in `GpuSample`; None when it was never measured."""
    throttled: Mapping[str, float] | None = None
    """Percent of the samples in which each reason held the clocks down; None when that was not measured."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What was sampled besides the loop."""

    host: Mapping[str, Level | None]
    """By name of the signal in `HostSample`; None when it was never measured."""
    network: tuple[NetworkInterface, ...]
    gpus: tuple[Gpu, ...]
    workers_rss_bytes: Level | None
    """Resident memory of all workers together."""
    workers_uss_bytes: Level | None
    """Memory that only the workers hold, all together."""


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Median cost of one batch where it was made: in a worker, or in the loop thread without workers."""

    batches: int
    """How many were measured and kept."""
    service_s: float
    """Without `run_queue_s`."""
    cpu_s: float
    blocked_s: float | None
    run_queue_s: float | None
    collate_s: float | None
    read_bytes: float | None


@dataclass(frozen=True, slots=True)
class Overhead:
    """What stallmeter itself cost."""

    own_s: float
    """Its hooks on the training thread, seconds of the run."""
    thread_cpu_s: float | None
    """CPU seconds of its own threads, beside the training."""
    per_step_us: float | None
    """Both together, microseconds a step."""
    share_pct: float | None
    """Both together, of the wall time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that the text, Markdown and JSON forms show. None is: not measured."""

    header: Header | None
    """None for a run that writes no recording."""
    path: Path | None
    """Folder of the recording."""
    ranks: tuple[int, ...]
    """Ranks that this folder holds."""
    settled: bool
    """True when the run ended and the verdict saw all that was recorded."""
    skipped_lines: int
    """Damaged lines of the recording that were passed over."""
    wall_s: float | None
    steps: int
    epochs: int
    samples: int | None
    recorded_steps: int
    """Steps recorded with full detail."""
    lost_steps: int
    """Steps that came faster than they could be recorded."""
    coverage_pct: float | None
    ledger: tuple[Share, ...]
    """All buckets in the order of `BUCKETS`."""
    step_time_s: Stats | None
    data_wait_s: Stats | None
    data_wait_share_pct: float | None
    """Of the training time, which is the wall time without the start; None where the loop asks no loader."""
    samples_per_s: float | None
    steps_per_s: float | None
    loader: LoaderInfo | None
    batch_cost: BatchCost | None
    hardware: Hardware
    device: DeviceView | None
    """None when nothing of the device was measured but its sensors."""
    overhead: Overhead | None
    events: tuple[Event, ...]
    slow_steps: tuple[StepRecord, ...]
    """The slowest steady steps, the slowest first."""
    trials: tuple[WorkerTrial, ...]
    patch: str | None
    """The change of the user's code that helps, ready to paste; None where there is none."""
    """Numbers of workers that were tried in the run, in order."""
    verdict: Verdict
    """Of this rank; of the whole job where ``job`` is there."""
    looks: tuple[CodeLook, ...] = ()
    """What looks into the program's code saw."""
    running: bool | None = None
    """Of a recording without an end: whether its process still runs; None where that cannot be told from here."""
    job: JobReport | None = None
    """All ranks; None for a run of one, and for a report of one rank alone."""

    @property
    def whose(self) -> str:
        """Whose ledger, steps and hardware these are, beginning with a comma; empty where there is one rank only."""
        return "" if self.job is None or self.header is None else f", rank {self.header.rank}"

    @property
    def before(self) -> str:
        """For how long the program had run when the recording began, in words; empty where that was short."""
        return "" if self.header is None else wording.before(self.header.before_s, self.wall_s)

    @property
    def cost(self) -> str:
        """What stallmeter itself cost, in words; empty where that is not known."""
        found, added_s = self.overhead, sum(look.added_s or 0.0 for look in self.looks)
        if found is None:
            return ""
        return wording.cost(found.own_s, found.thread_cpu_s, self.steps, found.share_pct, added_s)

    @property
    def known_verdict(self) -> Verdict | None:
        """The verdict; None when no step was measured that it could be about."""
        return judged(self.verdict, self.step_time_s)

    @property
    def gpu_seen(self) -> bool:
        """Whether anything of a GPU was measured."""
        return bool(self.hardware.gpus) or self.device is not None

    @property
    def ended(self) -> str | None:
        """Why the run ended; None when the recording does not tell."""
        return next((event.detail for event in reversed(self.events) if event.name == END), None)

    @property
    def how_it_ended(self) -> str:
        """One sentence, without its full stop."""
        if self.ended is None:
            if self.job is not None and self.job.broken and not self.running:
                return "The job was cut short: the first line says by what"
            return wording.without_end(self.running)
        if self.ended == AT_EXIT:
            return "The run ended with its program"
        return "The run ended" if self.ended in ("", END) else f"The run ended by {self.ended}"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A recording read back."""

    folder: Path
    header: Header
    window: Window = field(repr=False)
    timeline: Timeline = field(repr=False)
    verdict: Verdict | None
    """The last one recorded."""
    settled: bool
    """True when the run ended and no ledger was recorded after that verdict."""
    skipped_lines: int
    skipped_parts: tuple[str, ...] = ()
    """Names of files that have no header and were passed over."""

    def report(self, verdict: Verdict | None = None) -> Report:
        """Return the report with this verdict, or with the recorded one when None.

        Raises:
            RecordingError: The recording holds values of a wrong type.
        """
        running = None if self._has_end else process_lives(self.header)
        return self.guarded(
            lambda window: summarize(
                window,
                verdict or self.verdict,
                header=self.header,
                path=self.folder,
                ranks=ranks(self.folder),
                settled=self.settled,
                skipped_lines=self.skipped_lines,
                running=running,
            )
        )

    @property
    def _has_end(self) -> bool:
        return any(event.name == END for event in self.window.events)

    def guarded(self, read: Callable[[Window], T]) -> T:
        """Call what uses the history, and say that the recording is damaged where its values make no sense.

        Raises:
            RecordingError: The recording holds values of a wrong type.
        """
        try:
            return read(self.window)
        except StallmeterError:  # said on purpose, though some are a ValueError
            raise
        except WRONG_VALUES as exc:
            raise damaged(self.folder, exc) from exc


def read_history(folder: Path, rank: int = 0) -> History:
    """Read one rank's recording, finished or not; a torn last line is ignored.

    Args:
        folder: The recording's folder.
        rank: Whose files.

    Raises:
        RecordingError: No such rank, no recording, nothing measured yet, or the files are damaged.
        OSError: The files cannot be read.
    """
    known = ranks(folder)
    if rank not in known:
        there = f"it holds rank {', '.join(map(str, known))}" if known else "it holds no rank at all"
        raise RecordingError(f"{str(folder)!r} holds no recording of rank {rank}: {there}")
    reader, window, timeline = Reader(folder, rank), Window(), Timeline()
    verdict: Verdict | None = None
    evaluated: LedgerRecord | None = None
    try:
        header = reader.header()
        window.facts.update(header.settings)
        for record, _ in reader:
            if isinstance(record, Verdict):
                verdict, evaluated = record, window.ledger.record
            else:
                window.append(record)
                timeline.append(record)
        for name in reader.skipped_parts:
            detail = "it has no header, as a crash or a full disk leaves it; the other parts are here"
            window.append(Event(time_s=header.started_s, name=f"{name} was passed over", detail=detail))
    except WRONG_VALUES as exc:
        raise damaged(folder, exc) from exc
    if window.ledger.record is None:
        raise RecordingError(
            f"the recording {str(folder)!r} is empty: nothing was measured yet, or the run ended before its first step"
        )
    return History(
        folder=folder,
        header=header,
        window=window,
        timeline=timeline,
        verdict=verdict,
        settled=evaluated is window.ledger.record and any(event.name == END for event in window.events),
        skipped_lines=reader.skipped,
        skipped_parts=tuple(reader.skipped_parts),
    )


def summarize(
    window: Window,
    verdict: Verdict | None,
    *,
    header: Header | None = None,
    path: Path | None = None,
    ranks: tuple[int, ...] = (),
    settled: bool = False,
    skipped_lines: int = 0,
    running: bool | None = None,
    job: JobReport | None = None,
) -> Report:
    """Return the report of a window as it stands: the one way there, for a live run and for a replayed recording.

    Args:
        window: The history.
        verdict: What the rules said about it; None when they were not asked.
        header: The recording's header.
        path: The recording's folder.
        ranks: Ranks that the folder holds.
        settled: Whether the run ended and the verdict saw all of the window.
        skipped_lines: Damaged lines of the recording.
        running: Whether the process of a run without an end still runs.
        job: The other ranks, where the verdict is the job's.
    """
    ledger = window.ledger.record
    return Report(
        header=header,
        path=path,
        ranks=ranks,
        settled=settled,
        skipped_lines=skipped_lines,
        wall_s=window.ledger.wall_s,
        steps=0 if ledger is None else ledger.steps,
        epochs=0 if ledger is None else ledger.epochs,
        samples=None if ledger is None else ledger.samples,
        recorded_steps=0 if ledger is None else ledger.recorded_steps,
        lost_steps=0 if ledger is None else ledger.lost_steps,
        coverage_pct=window.ledger.coverage_pct,
        ledger=() if ledger is None else _shares(ledger, window),
        step_time_s=window.steps.step_time_s,
        data_wait_s=None if window.loader.asks_none else window.steps.data_wait_s,
        data_wait_share_pct=None if window.loader.asks_none else window.ledger.host_wait_share_pct,
        samples_per_s=window.ledger.samples_per_s,
        steps_per_s=window.ledger.steps_per_s,
        loader=window.loader.info,
        batch_cost=_batch_cost(window.present().workers.batches.items),
        hardware=_hardware(window),
        device=device_view(window),
        overhead=None if ledger is None else _overhead(ledger),
        events=tuple(window.events),
        slow_steps=tuple(window.steps.slowest),
        trials=tuple(window.loader.trials),
        patch=None if verdict is None else patch(verdict, window.present().loader.info, window.loader.trials),
        verdict=verdict or Verdict(primary=None),
        looks=window.code.looks,
        running=running,
        job=job,
    )


BEFORE_MODEL = "before the model, by looks"
"""Part of the steps' computing in which a loop that asks no loader makes its batches, or awaits them."""


def damaged(folder: Path, exc: Exception) -> RecordingError:
    """Return what to raise where a value in a recording has a wrong type."""
    return RecordingError(f"the recording {str(folder)!r} is damaged: a value in it has a wrong type ({exc})")


def _shares(ledger: LedgerRecord, window: Window) -> tuple[Share, ...]:
    def share(name: str, seconds: float, parts: tuple[Share, ...] = ()) -> Share:
        return Share(name, seconds, 100.0 * seconds / ledger.wall_s if ledger.wall_s > 0 else None, parts)

    def named(parts: Mapping[str, float]) -> tuple[Share, ...]:
        return tuple(share(n, s) for n, s in sorted(parts.items(), key=lambda item: -item[1]))

    loader = {f"its own loader's {part}": s for part, s in ledger.validation_parts.items()}
    before = window.code.before_model if window.loader.asks_none else None
    inside = {
        "callbacks": named(ledger.callbacks),
        "logging": named(ledger.logging),
        "validation": named(loader),
        # No wait is timed there: without this the table would say that all is computing.
        "compute": named({} if before is None or not before.seconds else {BEFORE_MODEL: before.seconds}),
    }
    unknown = tuple(b for b in ledger.buckets if b not in BUCKETS)
    return tuple(share(b, ledger.buckets.get(b, 0.0), inside.get(b, ())) for b in (*BUCKETS, *unknown))


def _overhead(ledger: LedgerRecord) -> Overhead:
    total = ledger.own_s + (ledger.thread_cpu_s or 0.0)
    return Overhead(
        own_s=ledger.own_s,
        thread_cpu_s=ledger.thread_cpu_s,
        per_step_us=1e6 * total / ledger.steps if ledger.steps else None,
        share_pct=100.0 * total / ledger.wall_s if ledger.wall_s > 0 else None,
    )


def _batch_cost(batches: list[WorkerBatch]) -> BatchCost | None:
    if not batches:
        return None
    return BatchCost(
        batches=len(batches),
        service_s=statistics.median(b.service_s for b in batches),
        cpu_s=statistics.median(b.computed_s for b in batches),
        blocked_s=median(b.blocked_s for b in batches),
        run_queue_s=median(b.run_queue_s for b in batches),
        collate_s=median(b.collate_s for b in batches),
        read_bytes=median(b.read_bytes for b in batches),
    )


def _level(items: Iterable[Any], name: str) -> Level | None:
    values = [v for item in items if (v := getattr(item, name)) is not None]
    return Level(statistics.median(values), min(values), max(values)) if values else None


def _hardware(window: Window) -> Hardware:
    memory = window.workers.memory.items
    return Hardware(
        host={name: _level(window.host.samples.items, name) for name in HOST_SIGNALS},
        network=_network(window.host.samples.items),
        gpus=tuple(_gpu(index, window.gpu.samples[index].items) for index in sorted(window.gpu.samples)),
        workers_rss_bytes=_level(memory, "rss_bytes"),
        workers_uss_bytes=_level(memory, "uss_bytes"),
    )


def _network(host: Iterable[HostSample]) -> tuple[NetworkInterface, ...]:
    by_name: dict[str, list[Any]] = {}
    for sample in host:
        for interface in sample.network:
            by_name.setdefault(interface.name, []).append(interface)
    found = []
    for name, items in sorted(by_name.items()):
        received, sent = _level(items, "received_bytes_per_s"), _level(items, "sent_bytes_per_s")
        if received is not None and sent is not None:
            found.append(NetworkInterface(name, received, sent, items[-1].speed_bytes_per_s))
    return tuple(found)


def _gpu(index: int, items: list[GpuSample]) -> Gpu:
    last = items[-1]
    levels = {name: _level(items, name) for name in GPU_SIGNALS}
    return Gpu(index, last.name, last.uuid, levels, _throttled(items))


def _throttled(items: Iterable[GpuSample]) -> Mapping[str, float] | None:
    known = [s.throttle_reasons for s in items if s.throttle_reasons is not None]
    names = sorted({str(reason) for reasons in known for reason in reasons})
    return {name: 100.0 * sum(name in reasons for reasons in known) / len(known) for name in names} if known else None
