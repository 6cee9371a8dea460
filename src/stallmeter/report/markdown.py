"""The report as Markdown, and what a tracker's run page shows of it: note, headline and tags. Standard library only."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterable, Iterator

from ..records.diagnosis import Diagnosis, Verdict
from ..records.stats import Stats
from ..records.steps import END
from . import wording
from .abstained import unjudged
from .device import device_lines
from .job import forms
from .job.model import JobReport
from .model import Report, Share
from .table import Table
from .wording import headline

__all__ = ["NOTE_BYTES", "escape", "headline", "note", "tags", "to_markdown"]

NOTE_BYTES = 4000
"""Most bytes of a note."""

TAGGED_RANKS = 16
"""Most ranks in a tag."""

SHOWN_PCT = 0.5
"""Buckets below this share of the wall time are summed up in one row of a note."""

_SPECIAL = re.compile(r"[\\`*\[\]|~$#!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# Only spans without anything that could end them or start HTML stay code; everything else is escaped.
_CODE = re.compile(r"(?<!`)(`[^`|<>&\\]+`)(?!`)")


def escape(text: object, limit: int = wording.TEXT_LIMIT) -> str:
    """Make foreign text harmless in Markdown, in a table and in the HTML made from it; `code` spans stay.

    Args:
        text: What somebody else wrote.
        limit: Most characters to keep, counted before escaping.
    """
    pieces = _CODE.split(wording.one_line(text, limit))
    return "".join(piece if i % 2 else _escape(piece) for i, piece in enumerate(pieces))


def _escape(text: str) -> str:
    return html.escape(_SPECIAL.sub(r"\\\g<0>", text), quote=False)


def to_markdown(report: Report) -> str:
    """Return the whole report."""
    return "\n\n".join(_sections(report, full=True)) + "\n"


def note(report: Report) -> str:
    """Return the short report for a run's page, at most `NOTE_BYTES` bytes; the headline comes first."""
    kept: list[str] = []
    room = NOTE_BYTES
    for section in _sections(report, full=False):
        room -= len(section.encode()) + 2
        if room < 0:
            break
        kept.append(section)
    return "\n\n".join(kept) + "\n"


def tags(report: Report, version: str = "") -> dict[str, str]:
    """Return what runs can be searched by. A tag whose value was not measured is left out.

    Args:
        report: What is known of the run.
        version: Version of stallmeter; the recording's by default.
    """
    primary, loader, version = report.verdict.primary, report.loader, version or _version(report)
    found: dict[str, str] = {}
    if primary is not None:
        found["stallmeter.primary"] = wording.one_line(primary.rule, wording.NAME_LIMIT)
        if primary.ranks:
            shown = ",".join(map(str, primary.ranks[:TAGGED_RANKS]))
            found["stallmeter.primary_ranks"] = shown + ",…" * (len(primary.ranks) > TAGGED_RANKS)
    if report.data_wait_share_pct is not None:
        found["stallmeter.data_wait_pct"] = f"{report.data_wait_share_pct:.1f}"
    if loader is not None and loader.num_workers is not None:
        found["stallmeter.num_workers"] = str(loader.num_workers)
    found |= _advice_tags(report)
    if version:
        found["stallmeter.version"] = version
    return found


def _advice_tags(report: Report) -> dict[str, str]:
    advice, primary = report.verdict.num_workers, report.verdict.primary
    found: dict[str, str] = {}
    gain_pct = primary.advice[0].predicted_gain_pct if primary is not None and primary.advice else None
    if advice is not None:
        found["stallmeter.num_workers_advised"] = str(advice.recommended)
        if advice.torch_threads is not None:
            found["stallmeter.torch_threads_advised"] = str(advice.torch_threads)
        if gain_pct is None and advice.recommended != advice.current:
            gain_pct = advice.predicted_gain_pct
    if gain_pct is not None:
        found["stallmeter.predicted_speedup"] = f"{1 + gain_pct / 100:.2f}"
    return found


def _version(report: Report) -> str:
    return "" if report.header is None else wording.one_line(report.header.version, 30)


def _sections(report: Report, *, full: bool) -> Iterator[str]:
    verdict = report.verdict
    if report.job is not None and report.job.broken:
        yield "\n".join(f"- **{escape(line)}**" for line in report.job.broken)
    yield f"**{escape(headline(report.known_verdict, report.trials), wording.HEADLINE_LIMIT)}**"
    if verdict.primary is not None:
        yield from _primary(verdict, verdict.primary, full=full)
    if report.job is not None:
        yield from _job(report.job, full=full)
    if report.ledger:
        yield _ledger(report, full=full)
    yield "\n".join(_facts(report))
    shown = (verdict.primary, verdict.runner_up if verdict.is_probable else None)
    others = [d for d in verdict.diagnoses if d not in shown]
    if others:
        yield "**Also found**\n\n" + "\n".join(_brief(d) for d in others[: None if full else 4])
    if not full:
        return
    if verdict.abstained:
        said = unjudged(verdict.abstained, gpu_seen=report.gpu_seen, loader=report.loader)
        names = "\n".join(f"- {escape(one, 2 * wording.TEXT_LIMIT)}" for one in said)
        yield f"**Not judged, because it was not measured**\n\n{names}"
    events = [event for event in report.events if event.name != END]
    if events:
        lines = "\n".join(f"- {escape(e.name, wording.NAME_LIMIT)}: {escape(e.detail)}" for e in events)
        yield f"**Events**\n\n{lines}"
    yield "\n".join(_origin(report))


def _primary(verdict: Verdict, primary: Diagnosis, *, full: bool) -> Iterator[str]:
    yield (
        f"{'Probably: ' if verdict.is_probable else ''}{escape(primary.summary)} "
        f"({primary.severity.value}, rule {escape(primary.rule, wording.NAME_LIMIT)}, {wording.sure(primary)})"
    )
    second = wording.alternative(verdict)
    if second:
        yield f"**Else**: {escape(second)}"
    if primary.advice:
        shown = primary if full else dataclasses.replace(primary, advice=primary.advice[:3])
        lines = wording.fix_lines(shown)
        yield "\n".join(
            f"- **{line.label.capitalize()}**: {escape(str(line), 2 * wording.TEXT_LIMIT)}" for line in lines
        )
    if full and primary.evidence:
        rows = (
            (
                escape(e.name),
                wording.quantity(e.value, escape(e.unit, 20)),
                "" if e.threshold is None else wording.quantity(e.threshold, escape(e.unit, 20)),
                escape(e.source),
            )
            for e in primary.evidence
        )
        yield table(("Evidence", "Value", "Threshold", "Where the threshold comes from"), rows)


def _job(job: JobReport, *, full: bool) -> Iterator[str]:
    most = forms.SHORT if full else forms.BRIEF
    said = "\n".join(f"- {escape(remark)}" for remark in forms.remarks(job, most))
    yield f"**Ranks**: {escape(forms.headline(job))}\n\n{said}"
    yield of_table(forms.rank_table(job, most))
    steps = forms.step_table(job) if full else None
    if steps is not None:
        yield f"**{escape(steps.title)}**\n\n{of_table(steps)}"


def _brief(diagnosis: Diagnosis) -> str:
    lost = f" {wording.seconds(diagnosis.time_lost_s)} lost." if diagnosis.time_lost_s > 0 else ""
    return f"- {escape(wording.titled(diagnosis, 120))} ({escape(diagnosis.rule, wording.NAME_LIMIT)}).{lost}"


def _ledger(report: Report, *, full: bool) -> str:
    shown = sorted((s for s in report.ledger if s.seconds > 0), key=lambda s: -s.seconds)
    rows: list[tuple[str, ...]] = []
    small = 0.0
    for share in shown:
        if not full and (share.share_pct or 0.0) < SHOWN_PCT:
            small += share.seconds
            continue
        rows.append(_row(share, ""))
        rows += [_row(part, "- ") for part in share.parts[: None if full else 3] if (part.share_pct or 0.0) > 1]
    if small:
        rows.append(("the rest", wording.seconds(small), wording.percent(100 * small / (report.wall_s or small))))
    rows.append(("wall time", wording.seconds(report.wall_s), wording.percent(100.0)))
    return table((f"Where the time went{report.whose}", "Time", "Share"), rows, numeric=True)


def _row(share: Share, prefix: str) -> tuple[str, str, str]:
    name = wording.label(share.name, share.part_names) if not prefix else wording.part_label(share.name)
    return prefix + escape(name, wording.NAME_LIMIT), wording.seconds(share.seconds), wording.percent(share.share_pct)


def of_table(shown: Table) -> str:
    """Return a table as Markdown, escaped; what a row lacks is empty."""
    columns = len(shown.head)
    head, *rows = (tuple(map(escape, (*row, *[""] * (columns - len(row))))) for row in (shown.head, *shown.rows))
    return _table(head, rows, [shown.is_number(column) for column in range(columns)])


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, numeric: bool = False) -> str:
    """Return a table as Markdown.

    Args:
        head: Of the columns; escaped, as the rows are.
        rows: With as many cells each.
        numeric: Whether all columns but the first hold numbers, which stand on the right.
    """
    return _table(head, rows, [False, *[numeric] * (len(head) - 1)])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], numbers: list[bool]) -> str:
    rule = ["---:" if is_number else "---" for is_number in numbers]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def _facts(report: Report) -> Iterator[str]:
    yield f"- Steps{report.whose}: {report.steps:,} in {wording.seconds(report.wall_s)}{_throughput(report)}"
    if report.before:
        yield f"- Before that: {report.before}"
    yield f"- Step time: {_stats(report.step_time_s)}"
    yield f"- Data wait: {_stats(report.data_wait_s)}"
    for name, said in device_lines(report.device):
        yield f"- {name.capitalize()}: {escape(said)}"
    workers = report.verdict.num_workers
    if workers is not None:
        change = "keep it" if workers.recommended == workers.current else f"use {workers.recommended}"
        won = wording.promised(report.verdict)
        yield f"- num\\_workers: {workers.current} now, {change}{f', {won}' if won else ''}: {escape(workers.reason)}"
    elif report.loader is not None and report.loader.num_workers is not None:
        yield f"- num\\_workers: {report.loader.num_workers}"
    if workers is not None and workers.prefetch_factor is not None:
        won = wording.predicted(workers.prefetch_gain_pct)
        yield f"- prefetch\\_factor: {workers.prefetch_factor} bridges uneven batches{f', {won}' if won else ''}"
    for tried in report.trials:
        yield f"- Tried: {escape(wording.trial(tried))}"
    for line in (report.patch or "").splitlines():
        yield f"- Paste: `{line}`"
    if report.cost:
        yield f"- Cost of stallmeter: {report.cost}"
    yield f"- In a named bucket: {wording.percent(report.coverage_pct)} of the wall time"


def _throughput(report: Report) -> str:
    parts = [f"{wording.significant(report.steps_per_s)} steps/s"] if report.steps_per_s else []
    if report.samples_per_s:
        parts.append(f"{wording.significant(report.samples_per_s)} samples/s")
    return f", {', '.join(parts)}" if parts else ""


def _stats(stats: Stats | None) -> str:
    if stats is None:
        return wording.ABSENT
    return (
        f"median {wording.seconds(stats.median)}, mean {wording.seconds(stats.mean)}, "
        f"p95 {wording.seconds(stats.p95)}, max {wording.seconds(stats.max)}"
    )


def _origin(report: Report) -> Iterator[str]:
    header = report.header
    if header is not None:
        yield (
            f"Recorded by stallmeter {escape(header.version, 30)} in {escape(header.framework, wording.NAME_LIMIT)}, "
            f"rank {header.rank} of {header.world_size} on {escape(header.host, wording.NAME_LIMIT)}."
        )
    if report.path is not None:
        yield f"{escape(report.how_it_ended)}."
    if report.path is not None:
        yield f"Recording: {escape(report.path)}"
