"""The charts of the loader's workers: what each of them did, batch by batch, beside the loop."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...records import StepRecord, WorkerBatch
from ...records.stats import median
from .. import wording
from ..model import History
from ..timeline import Excerpt
from .plot import Chart, Key, TimeAxis, colour, layout, rounded, x_axis

STEPS_SHOWN = 32
"""Most steps in the picture; more cannot be told apart."""

WORKERS_SHOWN = 16
"""Most workers in the picture."""

ROW_PX = 30

LOOP_ROW = "loop"

MIXED = (("cpu", "computing (CPU)"), ("blocked", "blocked (storage, network, lock)"), ("queued", "waiting for a CPU"))
UNSPLIT = (("cpu", "computing (CPU)"), ("blocked", "not computing"))
"""Where the kernel does not tell how long a thread queued for a CPU."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker over the run: medians of its batches."""

    name: str
    batches: int
    """How many were kept."""
    wall_s: float
    cpu_s: float
    blocked_s: float | None
    queued_s: float | None


def worker_rows(batches: Iterable[WorkerBatch]) -> list[WorkerRow]:
    """Return one row per worker, in the order of their numbers."""
    by_worker: dict[int, list[WorkerBatch]] = {}
    for batch in batches:
        by_worker.setdefault(batch.worker, []).append(batch)
    return [
        WorkerRow(
            name="the loop itself" if worker < 0 else row_name(worker),
            batches=len(made),
            wall_s=statistics.median(b.wall_s for b in made),
            cpu_s=statistics.median(b.cpu_s for b in made),
            blocked_s=median(b.blocked_s for b in made),
            queued_s=median(b.run_queue_s for b in made),
        )
        for worker, made in sorted(by_worker.items())
    ]


def row_name(worker: int) -> str:
    """Return what to call a worker; the loop's own thread makes batches where there are none."""
    return "loading" if worker < 0 else f"worker {worker}"


def worker_timeline(history: History, axis: TimeAxis) -> Chart | None:
    """Return some consecutive steps and the batches made meanwhile; None when no batch was measured then."""
    excerpt = history.timeline.excerpt(STEPS_SHOWN)
    if excerpt is None or not excerpt.batches:
        return None
    workers = sorted({b.worker for b in excerpt.batches})
    shown = workers[:WORKERS_SHOWN]
    batches = [b for b in excerpt.batches if b.worker in shown]
    kinds = MIXED if any(b.run_queue_s is not None for b in batches) else UNSPLIT
    data = [*_loop(excerpt), *_workers(batches, kinds, excerpt.start_s)]
    names = [LOOP_ROW, *map(row_name, shown)]
    origin_s = excerpt.start_s - history.header.started_s
    end_s = excerpt.end_s - excerpt.start_s
    left_out = f" {len(workers) - len(shown)} more workers are not drawn." if len(workers) > len(shown) else ""
    gaps = " Gaps in the loop's lane are steps that were not recorded one by one." if excerpt.thinned else ""
    return Chart(
        id="lanes",
        title="Workers and loop, batch by batch",
        summary=f"{len(excerpt.steps)} consecutive steps, {axis(origin_s)} {axis.unit} into the run, "
        f"and the {len(batches)} batches that {len(shown)} {'lane' if len(shown) == 1 else 'lanes'} made meanwhile.",
        note=f"{len(excerpt.steps)} steps, {wording.seconds(origin_s)} into the run. How long a batch computed, was "
        f"blocked and waited for a CPU is measured; in which order is not.{left_out}{gaps}",
        height_px=64 + ROW_PX * len(names),
        legend=(
            Key("loop: data wait", "data_wait"),
            Key("loop: the rest of the step", "step"),
            *(Key(words, kind) for kind, words in kinds if _any(batches, kind)),
        ),
        data=data,
        layout=layout(
            barmode="overlay",
            bargap=0.3,
            margin={"l": 76, "r": 12, "t": 6, "b": 44},
            hovermode="closest",
            xaxis=x_axis("time, s") | {"range": [0.0, rounded(end_s, 6)]},
            yaxis={
                "type": "category",
                "categoryorder": "array",
                "categoryarray": names[::-1],
                "range": [-0.5, len(names) - 0.5],
                "fixedrange": True,
                "showgrid": False,
                "ticks": "",
            },
        ),
    )


def _loop(excerpt: Excerpt) -> list[dict[str, Any]]:
    def begun(step: StepRecord) -> float:
        return step.time_s - step.total_s - excerpt.start_s

    steps = excerpt.steps
    waits = [s.data_wait_s for s in steps]
    rests = [max(0.0, s.total_s - s.data_wait_s) for s in steps]
    numbers = [f"step {s.index:,}" for s in steps]
    return [
        _bars("data_wait", "data wait", [LOOP_ROW] * len(steps), list(map(begun, steps)), waits, numbers),
        _bars(
            "step",
            "the rest of the step",
            [LOOP_ROW] * len(steps),
            [begun(s) + s.data_wait_s for s in steps],
            rests,
            numbers,
        ),
    ]


def _workers(
    batches: Sequence[WorkerBatch], kinds: Sequence[tuple[str, str]], origin_s: float
) -> Iterable[dict[str, Any]]:
    for kind, words in kinds:
        if not _any(batches, kind):
            continue
        bases, lengths = [], []
        for batch in batches:
            before, length = _piece(batch, kind)
            bases.append(batch.time_s - batch.wall_s - origin_s + before)
            lengths.append(length)
        tips = [f"batch of {wording.seconds(b.wall_s)}" for b in batches]
        yield _bars(kind, words, [row_name(b.worker) for b in batches], bases, lengths, tips)


def _piece(batch: WorkerBatch, kind: str) -> tuple[float, float]:
    """Return where a part of a batch is drawn, from the batch's beginning, and how long it is."""
    queued = min(batch.run_queue_s or 0.0, batch.wall_s)
    cpu = min(batch.cpu_s, batch.wall_s - queued)
    if kind == "queued":
        return 0.0, queued
    return (queued, cpu) if kind == "cpu" else (queued + cpu, max(0.0, batch.wall_s - queued - cpu))


def _any(batches: Iterable[WorkerBatch], kind: str) -> bool:
    return any(_piece(b, kind)[1] > 0 for b in batches)


def _bars(
    tone: str, words: str, rows_of: list[str], bases: list[float], lengths: list[float], tips: list[str]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": words,
        "y": rows_of,
        "base": [rounded(b, 6) for b in bases],
        "x": list(map(rounded, lengths)),
        "text": [f"{tip}: {words} {wording.seconds(length)}" for tip, length in zip(tips, lengths, strict=True)],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour(tone), "line": {"width": 0.5, "color": colour("card")}},
    }
