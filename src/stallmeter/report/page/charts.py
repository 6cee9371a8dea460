"""The charts of the training loop: where the time went, how long steps took, how both were spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from ...records import StepRecord
from ...records.stats import percentile
from .. import wording
from ..model import History, Report
from ..timeline import Interval, total_of
from .palette import tone
from .plot import Chart, Key, TimeAxis, colour, layout, log_of_seconds, rounded, safe, x_axis, y_axis

BINS = 120
"""Most points of a curve over the run."""

HISTOGRAM_BINS = 48

SHOWN_PCT = 0.5
"""Buckets below this share of the wall time are drawn as one."""

REST = "the rest"

FASTEST_S = 1e-6
"""Least duration that a logarithmic axis shows; shorter ones are drawn there."""


def stacked(intervals: Sequence[Interval]) -> list[tuple[str, str, list[float]]]:
    """Return what to stack: words, name of the colour, and the share of each interval in percent.

    Buckets that are small in the whole run are one entry, at the end.
    """
    total = total_of(intervals)
    wall = sum(total.values()) or 1.0
    shown = [b for b, seconds in total.items() if 100.0 * seconds / wall >= SHOWN_PCT]
    found = [(wording.label(b), tone(b), [_share(i, (b,)) for i in intervals]) for b in shown]
    small = tuple(b for b in total if b not in shown and total[b] > 0)
    if small:
        found.append((REST, "other", [_share(i, small) for i in intervals]))
    return found


def _share(interval: Interval, buckets: tuple[str, ...]) -> float:
    whole = sum(interval.buckets.values())
    return 100.0 * sum(interval.buckets.get(b, 0.0) for b in buckets) / whole if whole > 0 else 0.0


def phases(history: History, axis: TimeAxis) -> Chart | None:
    """Return where the wall time went, over the run; exact, from the ledger."""
    intervals = history.timeline.intervals(BINS)
    if not intervals:
        return None
    parts = stacked(intervals)
    centres = [axis((i.start_s + i.end_s) / 2) for i in intervals]
    widths = [axis(i.end_s - i.start_s) for i in intervals]
    data = [
        {
            "type": "bar",
            "name": safe(name),
            "x": centres,
            "width": widths,
            "y": [rounded(v, 3) if v > 0 else None for v in shares],
            "marker": {"color": colour(of), "line": {"width": 0}},
            "hovertemplate": "%{y:.1f} %",
        }
        for name, of, shares in parts
    ]
    total = total_of(intervals)
    wall = sum(total.values()) or 1.0
    largest = sorted(total.items(), key=lambda item: -item[1])[:3]
    return Chart(
        id="phases",
        title="Over the run",
        summary="Share of the wall time by bucket over the run. Most went to "
        + ", ".join(f"{wording.label(b)} ({wording.percent(100 * s / wall)})" for b, s in largest)
        + ".",
        height_px=280,
        legend=tuple(Key(name, of) for name, of, _ in parts),
        data=data,
        layout=layout(
            barmode="stack",
            hovermode="x unified",
            xaxis=axis.axis(0.0, intervals[-1].end_s) | {"unifiedhovertitle": {"text": f"%{{x:.4~g}} {axis.unit}"}},
            yaxis=y_axis("share of wall time, %", range=[0, 100]),
        ),
    )


def step_times(history: History, axis: TimeAxis) -> Chart | None:
    """Return step time and data wait over the run."""
    origin_s = history.header.started_s
    steps = [s for s in history.window.steps.steady if math.isfinite(s.time_s)]
    if len(steps) < 2:
        return None
    groups = list(_groups(sorted(steps, key=lambda s: s.time_s), BINS))
    xs = [axis(statistics.median(s.time_s for s in group) - origin_s) for group in groups]

    def curve(name: str, of: str, value: Callable[[StepRecord], float], share: float, **style: Any) -> dict[str, Any]:
        ys = [max(FASTEST_S, percentile(sorted(map(value, group)), share)) for group in groups]
        return {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": xs,
            "y": list(map(rounded, ys)),
            "text": [wording.seconds(y) for y in ys],
            "hovertemplate": "%{text}",
            "line": {"color": colour(of), "width": 2} | style,
        }

    data = [
        curve("step time, p95", "tail", _step_time, 0.95, width=1.2, dash="dot"),
        curve("step time, median", "step", _step_time, 0.5),
        curve("data wait, median", "data_wait", _data_wait, 0.5),
    ]
    slow = [s for s in history.window.steps.slowest if s.step_time_s > FASTEST_S]
    data.append(_slowest(slow, axis, origin_s))
    values = [y for trace in data for y in trace["y"]]
    middle = statistics.median(map(_step_time, steps))
    return Chart(
        id="step-times",
        title="Step time and data wait over the run",
        summary=f"Median step time {wording.seconds(middle)}, "
        f"median data wait {wording.seconds(statistics.median(map(_data_wait, steps)))}; "
        f"slowest step {wording.seconds(max((s.step_time_s for s in slow), default=middle))}.",
        note="Logarithmic scale. Steady steps: without the first of each epoch, and without validation.",
        legend=(
            Key("step time, median", "step", "line"),
            Key("step time, p95", "tail", "dash"),
            Key("data wait, median", "data_wait", "line"),
            Key("slowest steps", "tail", "dot"),
        ),
        data=data,
        layout=layout(
            hovermode="x unified",
            xaxis=axis.axis(0.0, _end_s(history, steps)) | {"unifiedhovertitle": {"text": f"%{{x:.4~g}} {axis.unit}"}},
            yaxis=y_axis("duration") | log_of_seconds(max(FASTEST_S, min(values)), max(values)),
        ),
    )


def _slowest(steps: Sequence[StepRecord], axis: TimeAxis, origin_s: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "slowest steps",
        "x": [axis(s.time_s - origin_s) for s in steps],
        "y": [rounded(s.step_time_s) for s in steps],
        "text": [f"step {s.index:,}: {wording.seconds(s.step_time_s)}" for s in steps],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour("tail"), "size": 7, "symbol": "circle-open"},
    }


def distribution(report: Report, steps: Sequence[StepRecord]) -> Chart | None:
    """Return how step time and data wait are spread over the steps."""
    times, waits = ([max(FASTEST_S, v) for s in steps if math.isfinite(v := of(s))] for of in (_step_time, _data_wait))
    if len(times) < 2 or not waits:
        return None
    lower, upper = math.log10(min(times + waits)), math.log10(max(times + waits))
    width = max(0.02, (upper - lower) / HISTOGRAM_BINS)
    edges = [10 ** (lower + width * i) for i in range(math.floor((upper - lower) / width) + 2)]
    data, highest = [], 0.0
    for name, of, values in (("data wait", "data_wait", waits), ("step time", "step", times)):
        counts = [0] * (len(edges) - 1)
        for value in values:
            counts[min(len(counts) - 1, max(0, math.floor((math.log10(value) - lower) / width)))] += 1
        shares = [100.0 * c / len(values) for c in counts]
        highest = max(highest, *shares)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [rounded(e) for e in [edges[0], *edges]],
                "y": [0.0, *(rounded(s, 3) for s in shares), 0.0],
                "text": ["", *(f"{wording.seconds(a)} to {wording.seconds(b)}" for a, b in pairwise(edges)), ""],
                "hovertemplate": "%{y:.1f} % of the steps, %{text}",
                "line": {"color": colour(of), "width": 1.5, "shape": "hv"},
                "fill": "tozeroy",
                "fillcolor": colour(f"{of}-veil"),
            }
        )
    said = [
        f"{name}: median {wording.seconds(s.median)}, p95 {wording.seconds(s.p95)}, max {wording.seconds(s.max)}"
        for name, s in (("Step time", report.step_time_s), ("Data wait", report.data_wait_s))
        if s is not None
    ]
    return Chart(
        id="distribution",
        title="How step time and data wait are spread",
        summary=". ".join(said) + ".",
        note="Logarithmic scale. Where the data wait has two humps, the left one is of batches that were ready."
        if report.loader is not None and report.loader.num_workers
        else "Logarithmic scale.",
        legend=(Key("step time", "step"), Key("data wait", "data_wait")),
        data=data,
        layout=layout(
            hovermode="closest",
            xaxis=x_axis("duration") | log_of_seconds(edges[0], edges[-1]),
            yaxis=y_axis("share of the steps, %", range=[0, highest * 1.08]),
        ),
    )


def _groups(steps: Sequence[StepRecord], most: int) -> Iterator[Sequence[StepRecord]]:
    """Cut into groups of equal numbers of steps, at least eight in each where there are enough."""
    count = max(1, min(most, len(steps) // 8))
    for i in range(count):
        yield steps[i * len(steps) // count : (i + 1) * len(steps) // count]


def _end_s(history: History, steps: Sequence[StepRecord]) -> float:
    latest = max(s.time_s for s in steps) - history.header.started_s
    return max(latest, history.window.ledger.wall_s or 0.0)


def _step_time(step: StepRecord) -> float:
    return step.step_time_s


def _data_wait(step: StepRecord) -> float:
    return step.data_wait_s
