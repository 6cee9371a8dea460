"""The result in words: text and Markdown from the same lines, and plain objects for JSON. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..report import wording
from ..report.markdown import escape
from ..report.overview import table_to_markdown
from ..report.table import Table
from ..version import VERSION
from ..workers import savings
from .result import BatchSizeRow, ProbeResult, Rate, WorkersRow, gain_pct

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys do not raise it."""

WIDTH = 80


def to_text(result: ProbeResult) -> str:
    """Return the result for a terminal, 80 columns wide, without a newline at the end."""
    parts = [_title(result), textwrap.fill(headline(result), WIDTH)]
    parts += [_text_table(table) for table in _tables(result)]
    facts = (
        textwrap.fill(value, WIDTH, initial_indent=f"{name:<13}", subsequent_indent=" " * 13)
        for name, value in _facts(result)
    )
    return "\n\n".join([*parts, "\n".join(facts)]).rstrip()


def to_markdown(result: ProbeResult) -> str:
    """Return the result as Markdown."""
    parts = [f"**{escape(headline(result))}**"]
    parts += [table_to_markdown(table) for table in _tables(result)]
    parts.append("\n".join(f"- {escape(name)}: {escape(value)}" for name, value in _facts(result)))
    parts.append(escape(_title(result)))
    return "\n\n".join(part for part in parts if part) + "\n"


def to_json(result: ProbeResult) -> dict[str, object]:
    """Return plain objects for ``json.dumps``. What was not measured is None."""
    document = dataclasses.asdict(result)
    for name in ("free_data", "free_compute", "together", "present"):
        document[name] = _rate(getattr(result, name))
    for rows, of in (("workers", result.workers), ("batch_sizes", result.batch_sizes)):
        for plain, row in zip(document[rows], of, strict=True):
            for name in ("measured", "free_data"):
                if name in plain:
                    plain[name] = _rate(getattr(row, name))
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        **document,
        "headspace_pct": result.headspace_pct,
        "reached_pct": result.reached_pct,
        "lower_ceiling": result.lower_ceiling,
        "recommended_num_workers": result.recommended_num_workers,
        "measured_gain_pct": result.measured_gain_pct,
    }
    return _finite(document)  # type: ignore[no-any-return]


def render(result: ProbeResult, form: str) -> str:
    """Return the result as ``text``, ``markdown`` or ``json``, with a newline at the end."""
    if form == "json":
        return json.dumps(to_json(result), indent=2, allow_nan=False) + "\n"
    return to_markdown(result) if form == "markdown" else f"{to_text(result)}\n"


def headline(result: ProbeResult) -> str:
    """Return where the run stands, in one line."""
    together, free = result.together, result.unhindered
    if together is None or free is None:
        return "The probe measured too little to say where the run stands."
    headspace = result.headspace_pct or 0.0
    pace = f"The run reaches {throughput(together)} of the {throughput(free)} that free data would give"
    if headspace < 100 * 0.03:
        return f"{pace}: data cost nothing that could be won."
    best = _best(result)
    return f"{pace}: {gained(headspace)} at most.{f' {best}' if best else ''}"


def throughput(rate: Rate | None) -> str:
    """Return items per second, or batches per second where items are not counted."""
    if rate is None:
        return wording.ABSENT
    if rate.samples_per_s is not None:
        return f"{wording.significant(rate.samples_per_s)} samples/s"
    return f"{wording.significant(rate.steps_per_s)} batches/s"


def gained(pct: float | None) -> str:
    """Return a rise of throughput."""
    return wording.ABSENT if pct is None else f"{pct:+,.0f} %"


def _best(result: ProbeResult) -> str:
    number, measured = result.recommended_num_workers, result.measured_gain_pct
    if number is None:
        return ""
    if number == result.num_workers:
        return f"num_workers={number} is the best that was found: keep it."
    if measured is not None:
        return f"num_workers={number} gave {gained(measured)}."
    if result.advice and (saved := savings(result.advice)):
        return f"num_workers={number} is predicted to do the same: {saved}."
    predicted = result.advice.predicted_gain_pct if result.advice else None
    return f"num_workers={number} is predicted to give {gained(predicted)}."


def _title(result: ProbeResult) -> str:
    parts = [f"stallmeter {VERSION}", "headspace probe", result.framework, result.device]
    parts += [f"batch {result.batch_size}"] if result.batch_size is not None else []
    parts += [f"num_workers {result.num_workers}"] if result.num_workers is not None else []
    return " · ".join([*parts, wording.seconds(result.wall_s)])


def _tables(result: ProbeResult) -> Iterator[Table]:
    ceilings = [("free data (no loader)", result.free_data), ("free compute (loader alone)", result.free_compute)]
    if result.recording is None:
        ceilings += [("together, as it is", result.together)]
    else:
        ceilings += [("recorded run", result.together), ("recorded run, free data", result.unhindered)]
        ceilings += [("the same, measured here", result.present)] if result.present else []
    yield Table(
        ("Ceilings", "samples/s", "a step", "steps"),
        tuple(
            (name, _samples(rate), _time(rate), str(rate.steps) if rate else wording.ABSENT) for name, rate in ceilings
        ),
    )
    if result.workers:
        yield Table(
            ("num_workers", "predicted", "measured", "error", "samples/s", "gain"),
            tuple(_workers_row(row, result) for row in result.workers),
        )
    if result.batch_sizes:
        memory = any(row.peak_memory_bytes is not None for row in result.batch_sizes)
        head = ("batch size", "free data", "predicted", "measured", "error", "samples/s", "gain")
        yield Table(
            (*head, "memory") if memory else head,
            tuple(_size_row(row, result, memory=memory) for row in result.batch_sizes),
        )


def _workers_row(row: WorkersRow, result: ProbeResult) -> tuple[str, ...]:
    marks = " now" if row.num_workers == result.num_workers else ""
    marks += " best" if row.num_workers == result.recommended_num_workers else ""
    name, predicted_s = f"{row.num_workers}{marks}", row.predicted_step_time_s
    if row.measured is None:
        return (name, wording.seconds(predicted_s), row.why_not or wording.ABSENT)
    return (
        name,
        wording.seconds(predicted_s),
        _time(row.measured),
        _error(predicted_s, row.measured),
        _samples(row.measured),
        _gain(result.base, row.measured),
    )


def _size_row(row: BatchSizeRow, result: ProbeResult, *, memory: bool) -> tuple[str, ...]:
    name = f"{row.batch_size}{' now' if row.batch_size == result.batch_size else ''}"
    if row.measured is None:
        return (name, _time(row.free_data), wording.seconds(row.predicted_step_time_s), row.why_not or wording.ABSENT)
    cells = (
        name,
        _time(row.free_data),
        wording.seconds(row.predicted_step_time_s),
        _time(row.measured),
        _error(row.predicted_step_time_s, row.measured),
        _samples(row.measured),
        _gain(result.base, row.measured),
    )
    return (*cells, wording.size(row.peak_memory_bytes)) if memory else cells


def _facts(result: ProbeResult) -> Iterator[tuple[str, str]]:
    ceiling = {
        "data": "the loader alone is slower than the training: more workers or cheaper batches help",
        "compute": "the loader alone is faster than the training: workers beside it can hide the loader",
        "both": "loader and training are equally fast",
    }.get(result.lower_ceiling or "")
    if ceiling:
        yield "ceiling", f"{ceiling}; the run reaches {wording.percent(result.reached_pct)} of the lower one"
    yield from _workers_facts(result)
    if result.recording:
        yield "recording", wording.one_line(result.recording)
    if result.pause_s:
        more = (
            f"a recorded step takes {wording.seconds(result.pause_s)} besides data and training (callbacks, loggers …)"
        )
        yield "pause", f"{more}; each step with the loader pauses as long here"
    if result.restored:
        yield "restored", ", ".join(wording.one_line(name, wording.NAME_LIMIT) for name in result.restored)
    for note in result.notes:
        yield "note", wording.one_line(note)


def _workers_facts(result: ProbeResult) -> Iterator[tuple[str, str]]:
    advice, number, measured = result.advice, result.recommended_num_workers, result.measured_gain_pct
    if number is not None and measured is not None:
        change = f"keep {number}" if number == result.num_workers else f"use {number}, {gained(measured)} measured"
        why = "no other number that was measured is more than 3 % faster"
        if result.nothing_to_win:
            why = "the recorded run waits too little for data for another number to help"
        yield "num_workers", f"{change}: {why}"
    if advice is None:
        return
    won = wording.predicted(advice.predicted_gain_pct or None)
    change = "keep it" if advice.recommended == advice.current else f"use {advice.recommended}"
    said = f"{change}{f', {won}' if won else ''}: {wording.one_line(advice.reason)}"
    if measured is None:
        yield "num_workers", f"the model says {said}"
    else:
        yield "model", said if advice.recommended == number else f"{said}. The measurement differs, and counts"


def _time(rate: Rate | None) -> str:
    return wording.seconds(rate.step_time_s) if rate else wording.ABSENT


def _samples(rate: Rate | None) -> str:
    return wording.significant(rate.samples_per_s) if rate else wording.ABSENT


def _error(predicted_s: float | None, measured: Rate) -> str:
    return wording.ABSENT if predicted_s is None else f"{100 * (predicted_s / measured.step_time_s - 1):+.0f} %"


def _gain(before: Rate | None, after: Rate) -> str:
    return wording.ABSENT if before is None else gained(gain_pct(before, after))


def _text_table(table: Table) -> str:
    whole = [row for row in (table.head, *table.rows) if len(row) == len(table.head)]
    widths = [max(len(row[i]) for row in whole) for i in range(len(table.head))]
    widths[0] = max(len(row[0]) for row in (table.head, *table.rows))
    lines = []
    for row in (table.head, *table.rows):
        # A reason stands where the numbers would, and may run to the end of the line.
        cells = [
            f"{row[0]:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=False)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _rate(rate: Rate | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    return {**dataclasses.asdict(rate), "samples_per_s": rate.samples_per_s, "steps_per_s": rate.steps_per_s}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value
