"""The report for a terminal, drawn with rich: 80 columns suffice, and colour only underlines what the words say."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TextIO

from ..errors import MissingPackageError
from ..records import NO_LOADER, SAMPLING
from ..records.diagnosis import Diagnosis, Evidence, Severity
from ..records.stats import Stats
from ..records.steps import END
from . import wording
from .abstained import unjudged
from .device import device_lines
from .job import forms
from .job.model import JobReport
from .model import Gpu, Level, Report, Share
from .overview import Overview
from .table import Table as Rows

try:
    from rich.console import Console, Group, RenderableType
    from rich.constrain import Constrain
    from rich.live import Live
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text
except ImportError as exc:
    raise MissingPackageError("rich", "report", "The text report (not --format markdown or json)") from exc

WIDTH = 80
"""Columns where no terminal says."""

WIDEST = 100
"""Most columns used: longer lines are hard to read."""

BAR_COLUMNS = 24
SHOWN_PCT = 0.1
"""Buckets below this share of the wall time are summed up in one row."""

NAMED_PCT = 1.0
"""A callback or logger is named from this share of the wall time on."""

NAMED_RULES = 2
"""Rules without a judgement that are named of each kind; Markdown names more, and JSON all."""

MOST_NAMED = 16
"""Other ranks that are listed by number."""

# Names of the terminal's own palette, which its owner made readable on its background; no fixed colours.
_STYLE = {Severity.CRITICAL: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold green"}
_BUCKET_STYLE = {"data_wait": "red", "worker_startup": "red", "other": "magenta"}
_EIGHTHS = " ▏▎▍▌▋▊▉"


def to_text(report: Report, *, width: int = WIDTH, color: bool = False, blocks: bool = True) -> str:
    """Return the report as text without trailing spaces.

    Args:
        report: What to show.
        width: Columns.
        color: Whether to write ANSI colours.
        blocks: Whether bars are drawn with block characters; with number signs otherwise.
    """
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=color, no_color=not color, color_system="standard" if color else None
    )
    _draw(report, console, blocks=blocks)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def print_text(report: Report, file: TextIO) -> None:
    """Write the report to a terminal in its colours and width, or to a file or pipe without colour.

    Args:
        report: What to show.
        file: Where to; NO_COLOR, TERM and COLUMNS of the environment are heeded.
    """
    console = Console(file=file, highlight=False)
    blocks = console.encoding.lower().startswith("utf")
    if console.is_terminal:
        console.width = min(console.width, WIDEST)
        _draw(report, console, blocks=blocks)
    else:
        file.write(to_text(report, blocks=blocks))


def print_overview(overview: Overview, file: TextIO) -> None:
    """Write headline, tables and remarks to a terminal, or to a file or pipe without colour."""
    console = Console(file=file, highlight=False)
    console.width = min(console.width, WIDEST) if console.is_terminal else WIDEST
    with console.capture() as capture:
        for block in _overview(overview):
            console.print(block, markup=False, highlight=False, emoji=False)
    file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


class Screen:
    """A report that is drawn anew in a terminal, on a screen of its own; at the end it stands on the usual one.

    Args:
        file: The terminal.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        console = Console(file=file, highlight=False)
        self._blocks = console.encoding.lower().startswith("utf")
        self._live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, report: Report | None, status: str) -> None:
        """Draw it anew, cut off where the terminal ends."""
        head = Text(f"{status} · Ctrl-C to leave", style="dim")
        blocks = ("nothing was measured yet",) if report is None else _blocks(report, blocks=self._blocks)
        self._live.update(Constrain(Group(head, "", *blocks), WIDEST), refresh=True)

    def end(self, report: Report | None, status: str) -> None:
        """Leave the screen, and write the whole report."""
        self._live.stop()
        if report is not None:
            print_text(report, self._file)
        self._file.write(f"{status}\n")


def _job(job: JobReport) -> Iterator[RenderableType]:
    yield ""
    yield _plain(forms.headline(job), style="bold")
    yield from (_plain(remark) for remark in forms.remarks(job, forms.SHORT))
    for table in (forms.rank_table(job, forms.SHORT), forms.step_table(job, forms.SHORT)):
        if table is not None:
            yield ""
            yield _grid(table)


def _overview(overview: Overview) -> Iterator[RenderableType]:
    yield _plain(overview.headline, style="bold")
    for table in overview.tables:
        yield ""
        yield _grid(table)
    if overview.remarks:
        yield ""
        yield from (_plain(f"{remark}.") for remark in overview.remarks)


def _grid(table: Rows) -> Table:
    grid = Table.grid(padding=(0, 2))
    for column in range(len(table.head)):
        grid.add_column(justify="right" if table.is_number(column) else "left", overflow="fold")
    grid.add_row(*(_plain(cell, style="dim" if i else "bold") for i, cell in enumerate(table.head)))
    for row in table.rows:
        grid.add_row(*(_plain(cell) for cell in row))
    return grid


def _draw(report: Report, console: Console, *, blocks: bool) -> None:
    for block in _blocks(report, blocks=blocks):
        console.print(block, markup=False, highlight=False, emoji=False)


def _blocks(report: Report, *, blocks: bool) -> Iterator[RenderableType]:
    yield Text(_title(report), style="dim")
    yield ""
    if report.job is not None and report.job.broken:
        yield from (_plain(line, style=_STYLE[Severity.CRITICAL]) for line in report.job.broken)
        yield ""
    yield _verdict(report)
    if report.job is not None:
        yield from _job(report.job)
    if report.ledger:
        yield ""
        yield _ledger(report, blocks=blocks)
    yield ""
    yield _series(report)
    yield ""
    yield _facts(report)


def _plain(text: object, limit: int = wording.TEXT_LIMIT, style: str = "") -> Text:
    return Text(wording.one_line(text, limit), style=style)


def _title(report: Report) -> str:
    header = report.header
    parts = ["stallmeter"]
    if header is not None:
        parts[0] += f" {wording.one_line(header.version, 30)}" if header.version else ""
        parts += [wording.one_line(header.framework, 40)] if header.framework else []
        rank = f"rank {header.rank} of {header.world_size}" if report.job is None else f"{header.world_size} ranks"
        parts += [rank] if header.world_size > 1 else []
        parts += _when(header.started_s)
    parts += [f"{report.steps:,} step{'s' * (report.steps != 1)} in {wording.seconds(report.wall_s)}"]
    return " · ".join(parts)


def _when(unix_s: float) -> list[str]:
    try:
        return [time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))]
    except (TypeError, ValueError, OverflowError, OSError):
        return []  # no time that this machine's calendar knows


def _verdict(report: Report) -> RenderableType:
    primary = report.verdict.primary
    if primary is None:
        return Text(wording.headline(report.known_verdict, report.trials), style="bold")
    table = Table.grid(padding=(0, 2), expand=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    style = _STYLE[primary.severity]
    table.add_row(Text(primary.severity.value.upper(), style=style), _plain(wording.placed(primary), 400, "bold"))
    table.add_row(Text(""), _plain(primary.summary))
    second = wording.alternative(report.verdict)
    if second:
        table.add_row(Text("else", style="dim"), _plain(second))
    for key, value in _judgement(primary):
        table.add_row(Text(key, style="dim"), value)
    shown = (primary, report.verdict.runner_up if second else None)
    others = [d for d in report.verdict.diagnoses if d not in shown]
    for i, other in enumerate(others):
        table.add_row(Text("" if i else "also", style="dim"), _plain(_brief(other), 160))
    return table


def _judgement(primary: Diagnosis) -> Iterator[tuple[str, Text]]:
    if primary.time_lost_s > 0:
        yield "lost", Text(f"{wording.seconds(primary.time_lost_s)}, {wording.percent(primary.share_pct)} of the run")
    for line in wording.fix_lines(primary):
        yield line.label, _fix(line)
    for i, evidence in enumerate(primary.evidence):
        yield ("" if i else "because"), _plain(_evidence(evidence), style="dim")
    said = f"{primary.rule}, {wording.sure(primary)}; more: stallmeter explain {primary.rule}"
    yield "rule", _plain(said, style="dim")


def _fix(line: wording.FixLine) -> Text:
    text = Text(str(line))
    if line.predicted:
        text.highlight_words([line.gain], style="bold green")
    return text


def _evidence(evidence: Evidence) -> str:
    unit, threshold = evidence.unit, evidence.threshold
    limit = "" if threshold is None else f" (threshold {wording.quantity(threshold, unit)})"
    return f"{evidence.name}: {wording.quantity(evidence.value, unit)}{limit}"


def _brief(diagnosis: Diagnosis) -> str:
    lost = f", {wording.seconds(diagnosis.time_lost_s)} lost" if diagnosis.time_lost_s > 0 else ""
    return f"{wording.titled(diagnosis)} ({diagnosis.rule}{lost})"


def _ledger(report: Report, *, blocks: bool) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold", max_width=34)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row(Text(f"Where the time went{report.whose}", style="bold"), "", "", "")
    small = 0.0
    shown = sorted((s for s in report.ledger if s.seconds > 0), key=lambda s: -s.seconds)
    most = shown[0].seconds if shown else 1.0
    for share in shown:
        if (share.share_pct or 0.0) < SHOWN_PCT:
            small += share.seconds
            continue
        bar = Text(_bar(share.seconds / most, blocks=blocks), style=_BUCKET_STYLE.get(share.name, "cyan"))
        table.add_row(Text(wording.label(share.name, share.part_names)), *_amount(share), bar)
        for part in share.parts:
            if (part.share_pct or 0.0) > NAMED_PCT:
                name = _plain(f"  {wording.part_label(part.name)}", wording.NAME_LIMIT, "dim")
                table.add_row(Padding(name, (0, 0, 0, 2)), *_amount(part, "dim"), "")
    if small:
        share_pct = 100 * small / report.wall_s if report.wall_s else None
        table.add_row(Text("the rest", style="dim"), *_amount(Share("", small, share_pct), "dim"), "")
    total = Text(f"{wording.percent(report.coverage_pct)} in a named bucket", style="dim")
    table.add_row(Text("wall time"), Text(wording.seconds(report.wall_s)), Text(""), total)
    return table


def _amount(share: Share, style: str = "") -> tuple[Text, Text]:
    return Text(wording.seconds(share.seconds), style=style), Text(wording.percent(share.share_pct), style=style)


def _bar(part: float, *, blocks: bool) -> str:
    if not math.isfinite(part):
        return ""
    if not blocks:
        return "#" * round(part * BAR_COLUMNS)
    eighths = round(part * BAR_COLUMNS * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _series(report: Report) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    heads = (Text(head, style="dim") for head in ("median", "mean", "p95", "max"))
    table.add_row(Text(f"Steps{report.whose}", style="bold"), *heads)
    for name, stats in (("step time", report.step_time_s), ("data wait", report.data_wait_s)):
        table.add_row(Text(name), *(Text(value) for value in _stats(stats)))
    return table


def _stats(stats: Stats | None) -> tuple[str, ...]:
    values = (None,) * 4 if stats is None else (stats.median, stats.mean, stats.p95, stats.max)
    return tuple(wording.seconds(v) for v in values)


def _facts(report: Report) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in _lines(report):
        table.add_row(Text(key, style="dim"), _plain(value, 1000))
    return table


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    if report.steps_per_s:
        samples = f"{wording.significant(report.samples_per_s)} samples/s, " if report.samples_per_s else ""
        yield "throughput", f"{samples}{wording.significant(report.steps_per_s)} steps/s"
    if report.before:
        yield "before", report.before
    yield from _workers(report)
    yield from _hardware(report)
    yield from device_lines(report.device)
    yield from _doubts(report)
    if report.cost:
        yield "overhead", report.cost
    if report.path is not None:
        yield "recording", str(report.path)


def _workers(report: Report) -> Iterator[tuple[str, str]]:
    loader, workers, cost = report.loader, report.verdict.num_workers, report.batch_cost
    if workers is not None:
        same = workers.recommended == workers.current
        won = wording.promised(report.verdict) or "gain not predicted"
        change = "keep it" if same else f"use {workers.recommended}, {won}"
        yield "num_workers", f"{workers.current} now; {change}: {workers.reason}"
    elif loader is not None:
        yield "num_workers", wording.significant(loader.num_workers)
    if workers is not None and workers.prefetch_factor is not None:
        won = wording.predicted(workers.prefetch_gain_pct) or "gain not predicted"
        yield "prefetch_factor", f"{workers.prefetch_factor} bridges uneven batches, {won}; it costs memory"
    for tried in report.trials:
        yield "tried", wording.trial(tried)
    for line in (report.patch or "").splitlines():
        yield "paste", line
    if loader is not None:
        facts = [loader.kind]
        facts += [f"batch {loader.batch_size}"] if loader.batch_size is not None else []
        facts += [f"prefetch {loader.prefetch_factor}"] if loader.prefetch_factor is not None else []
        facts += [f"pin_memory {str(loader.pin_memory).lower()}"] if loader.pin_memory is not None else []
        why_not = loader.why_not if loader.kind == NO_LOADER else f"workers not probed: {loader.why_not}"
        facts += [str(why_not)] if not loader.probed and loader.why_not else []
        yield "loader", ", ".join(facts)
    if cost is not None:
        parts = (("CPU", cost.cpu_s), ("blocked", cost.blocked_s))
        inside = ", ".join(f"{name} {wording.seconds(value)}" for name, value in parts if value is not None)
        queued = (
            "" if cost.run_queue_s is None else f"; queued for a CPU beside that {wording.seconds(cost.run_queue_s)}"
        )
        yield "one batch", f"{wording.seconds(cost.service_s)} to make, median: {inside}{queued}"


def _hardware(report: Report) -> Iterator[tuple[str, str]]:
    host = report.hardware.host
    usable = host.get("usable_cpus")
    yield from _joined(
        "CPUs",
        (
            _of("job keeps {} busy", host.get("job_cpus"), _cpus),
            f"may use {_cpus(usable.median)}" if usable else None,
            _of("other ranks {}", host.get("ranks_cpus"), _cpus),
            _of("others {}", host.get("others_cpus"), _cpus),
            _of("I/O wait {}", host.get("cpu_iowait_pct"), wording.percent),
        ),
    )
    limit = host.get("memory_limit_bytes")
    yield from _joined(
        "memory",
        (
            _of("job {}", host.get("job_rss_bytes"), wording.size),
            f"of {wording.size(limit.median)}" if limit else None,
            _of("all workers {}", report.hardware.workers_rss_bytes, wording.size),
        ),
    )
    for gpu in report.hardware.gpus:
        yield from _joined(f"GPU {gpu.index}", _gpu(gpu))


_REASONS = {
    "sw_thermal": "heat",
    "hw_thermal": "heat (hardware)",
    "hw_slowdown": "hardware slowdown",
    "power_brake": "power brake",
    "power_cap": "power limit",
}
"""Reasons that tell something about the machine, in words."""


def _gpu(gpu: Gpu) -> Iterator[str | None]:
    levels = gpu.levels
    total = levels.get("memory_total_bytes")
    yield gpu.name
    yield _of("busy {}", levels.get("utilization_pct"), wording.percent)
    yield _of("memory {}", levels.get("memory_used_bytes"), wording.size)
    yield f"of {wording.size(total.median)}" if total else None
    yield _of("{} W", levels.get("power_w"))
    yield _of("{} °C", levels.get("temperature_c"))
    yield _of("SMs active {}", levels.get("sm_active_pct"), wording.percent)
    yield _of("Tensor Cores active {}", levels.get("tensor_active_pct"), wording.percent)
    yield _of("memory bandwidth {}", levels.get("dram_active_pct"), wording.percent)
    slowed = sorted((gpu.throttled or {}).items(), key=lambda item: -item[1])
    held = [f"{_REASONS[name]} {wording.percent(share)}" for name, share in slowed if name in _REASONS]
    yield f"clocks held down by {' and '.join(held)}" if held else None


def _of(words: str, level: Level | None, show: Callable[[float], str] = wording.significant) -> str | None:
    if level is None:
        return None
    peak = f" (max {show(level.max)})" if show(level.max) != show(level.median) else ""
    return words.format(show(level.median)) + peak


def _cpus(value: float) -> str:
    return f"{value:.1f}"


def _joined(key: str, parts: Iterable[str | None]) -> Iterator[tuple[str, str]]:
    said = [part for part in parts if part]
    if said:
        yield key, ", ".join(said)


def _doubts(report: Report) -> Iterator[tuple[str, str]]:
    abstained = report.verdict.abstained
    if abstained:
        said = unjudged(abstained, gpu_seen=report.gpu_seen, loader=report.loader, most=NAMED_RULES)
        yield "not judged", "; ".join(said)
    if report.steps and report.recorded_steps < report.steps:
        yield "detail", f"{report.recorded_steps:,} of {report.steps:,} steps in full; the times above count all"
    for event in report.events:
        if event.name != END and not event.name.startswith(SAMPLING):
            yield "event", f"{event.name}: {event.detail}" if event.detail else event.name
    if report.path is not None and report.ended != END:
        yield "end", report.how_it_ended
    if report.skipped_lines:
        yield "damaged", f"{report.skipped_lines} lines of the recording were passed over"
    others = [rank for rank in report.ranks if report.header is None or rank != report.header.rank]
    if others:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        yield "other ranks", f"{', '.join(map(str, others[:MOST_NAMED]))}{more} (see them with --rank)"
