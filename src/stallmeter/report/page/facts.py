"""What the HTML report says in words and tables, put together from the report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...records import Event
from ...records.stats import Stats
from ...records.steps import END
from ...workers import with_threads
from .. import wording
from ..job import forms
from ..model import Report, Share
from ..table import Table
from .palette import tone

NAMED_PCT = 1.0
"""A callback or logger is named from this share of the wall time on."""

EVENTS_SHOWN = 50
FACTS_SHOWN = 60


@dataclass(frozen=True, slots=True)
class VerdictBox:
    """The first thing to read."""

    severity: str
    """Name of a style: critical, warning, info or plain."""
    badge: str
    title: str
    summary: str = ""
    other: str = ""
    """What it is if it is not this, where that is not sure."""
    lost: str = ""
    share: str = ""
    fix: tuple[wording.FixLine, ...] = ()
    """The cheapest advice: do, expect, limit."""


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One of the few numbers at the top."""

    name: str
    value: str
    unit: str
    more: str


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One bucket, or a named part of one."""

    name: str
    time: str
    share: str
    tone: str
    weight: str
    """Seconds, as a length of the bar."""
    part: bool = False


def origin(report: Report) -> str:
    """Return which run this is, in one line."""
    header = report.header
    if header is None:
        return ""
    begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(header.started_s))
    alone = f"rank {header.rank} of {header.world_size}" if header.world_size > 1 else ""
    rank = alone if report.job is None else f"{header.world_size} ranks, rank {header.rank} in detail"
    parts = (f"run {header.run_id}", header.framework, rank, f"on {header.host}" if header.host else "", begun)
    return " · ".join(wording.one_line(part, wording.NAME_LIMIT) for part in parts if part)


def verdict_box(report: Report) -> VerdictBox:
    """Return verdict, fix and predicted gain."""
    primary = report.verdict.primary
    if primary is None:
        said = wording.headline(report.known_verdict, report.trials)
        return VerdictBox("plain" if report.known_verdict is None else "info", "verdict", said)
    lost = primary.time_lost_s > 0
    return VerdictBox(
        severity=primary.severity.value,
        badge=primary.severity.value,
        title=wording.placed(primary),
        summary=primary.summary,
        other=wording.alternative(report.verdict) or "",
        lost=wording.seconds(primary.time_lost_s) if lost else "",
        share=wording.percent(primary.share_pct) if lost else "",
        fix=tuple(wording.fix_lines(replace(primary, advice=primary.advice[:1]))),
    )


def key_figures(report: Report) -> tuple[KeyFigure, ...]:
    """Return step time, throughput, data wait and the number of workers."""
    step, wait = report.step_time_s, report.data_wait_s
    typical, long = (wait.median, wait.p95) if wait else (None, None)
    samples, steps = report.samples_per_s, report.steps_per_s
    per_step = f"{wording.significant(steps)} steps/s"
    return (
        KeyFigure("Step time, median", *_split(wording.seconds(step.median if step else None)), _tail(step)),
        KeyFigure("Throughput", wording.significant(samples), "samples/s", per_step)
        if samples is not None
        else KeyFigure("Throughput", wording.significant(steps), "steps/s", "batch sizes are not known"),
        KeyFigure(
            "Data wait, of the training time",
            *_split(wording.percent(report.data_wait_share_pct)),
            f"{wording.seconds(typical)} a step, p95 {wording.seconds(long)}" if wait else "not timed",
        ),
        _workers(report),
    )


def _split(value: str) -> tuple[str, str]:
    number, _, unit = value.partition(" ")
    return (number, unit) if " " not in unit else (value, "")


def _tail(stats: Stats | None) -> str:
    if stats is None:
        return "no steady step was measured"
    return f"p95 {wording.seconds(stats.p95)}, slowest {wording.seconds(stats.max)}"


def _workers(report: Report) -> KeyFigure:
    advice, loader = report.verdict.num_workers, report.loader
    if advice is None:
        known = loader is not None and loader.num_workers is not None
        more = "no advice: too little was measured" if known else "the loader was not seen"
        return KeyFigure("num_workers", str(loader.num_workers) if loader and known else wording.ABSENT, "", more)
    if advice.recommended == advice.current:
        return KeyFigure("num_workers", str(advice.current), "", "keep it")
    won = wording.promised(report.verdict) or "gain not predicted"
    return KeyFigure(
        "num_workers, now → advised",
        f"{advice.current} → {advice.recommended}",
        "",
        f"{won}{with_threads(advice.torch_threads)}",
    )


def ledger_rows(report: Report) -> list[LedgerRow]:
    """Return the buckets that hold time, the largest first, with their larger parts by name."""
    rows = []
    for share in sorted((s for s in report.ledger if s.seconds > 0), key=lambda s: -s.seconds):
        rows.append(_row(share, wording.label(share.name, share.part_names)))
        named = [p for p in share.parts if (p.share_pct or 0.0) >= NAMED_PCT]
        rows += [_row(p, wording.part_label(p.name), of=share.name) for p in named[:8]]
    return rows


def _row(share: Share, name: str, of: str = "") -> LedgerRow:
    return LedgerRow(
        name=name,
        time=wording.seconds(share.seconds),
        share=wording.percent(share.share_pct),
        tone=tone(of or share.name),
        weight=f"{share.seconds:.6f}",
        part=bool(of),
    )


def missing(report: Report) -> list[tuple[str, str]]:
    """Return what was not measured: rules that could not judge and why, and loaders that could not be probed."""
    found = [(a.rule, ", ".join(a.missing) or "more steps") for a in report.verdict.abstained]
    loader = report.loader
    if loader is not None and loader.why_not:
        found.append(("inside the workers", loader.why_not))
    if not report.hardware.gpus:
        found.append(("GPU", "no GPU was sampled"))
    return found


def events(report: Report) -> tuple[Event, ...]:
    """Return what happened besides the end."""
    return tuple(e for e in report.events if e.name != END)[-EVENTS_SHOWN:]


def run_facts(report: Report) -> list[tuple[str, str]]:
    """Return the static facts of the run."""
    return list(_facts(report))[:FACTS_SHOWN]


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    header, loader = report.header, report.loader
    yield "end", f"{report.how_it_ended}."
    recorded = "" if report.recorded_steps == report.steps else f", {report.recorded_steps:,} of them in full"
    yield "steps", f"{report.steps:,}{recorded}, in {report.epochs:,} epoch{'s' * (report.epochs != 1)}"
    if report.before:
        yield "before", report.before
    if report.samples is not None:
        yield "samples", f"{report.samples:,}"
    if report.lost_steps:
        yield "steps without detail", f"{report.lost_steps:,}: they came faster than they could be recorded"
    if report.skipped_lines:
        yield "damaged lines", f"{report.skipped_lines:,}, passed over"
    if loader is not None:
        yield "loader", loader.kind
        for name in ("num_workers", "batch_size", "prefetch_factor", "pin_memory", "persistent_workers"):
            if (value := getattr(loader, name)) is not None:
                yield f"loader, {name}", str(value)
        if loader.start_method is not None:
            yield "loader, workers start by", loader.start_method
    if header is not None:
        yield "stallmeter", header.version
        yield "process", f"{header.pid} on {header.host}, rank {header.rank} of {header.world_size}"
        yield from _settings(header.settings)
    if len(report.ranks) > 1:
        yield "ranks in this recording", ", ".join(map(str, report.ranks))
    if report.path is not None:
        yield "recording", str(report.path)


def _settings(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _settings({f"{name}, {key}": item for key, item in value.items()})
        elif value is not None:
            yield name, value if isinstance(value, str) else json.dumps(value, default=str)


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the page shows of a job's ranks."""

    broken: tuple[str, ...]
    """What ended or holds up the job; told above the verdict."""
    headline: str
    remarks: tuple[str, ...]
    heat: forms.Heat | None
    tables: tuple[Table, ...]


def job(report: Report) -> Ranks | None:
    """Return the ranks of the job; None where the report is of one rank."""
    if report.job is None:
        return None
    tables = (forms.rank_table(report.job), forms.step_table(report.job))
    return Ranks(
        report.job.broken,
        forms.headline(report.job),
        tuple(forms.remarks(report.job)),
        forms.heat_of(report.job),
        tuple(table for table in tables if table is not None),
    )
