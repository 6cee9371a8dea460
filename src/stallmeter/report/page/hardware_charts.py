"""The charts of the machine: CPU, memory, disks, network, shortages and each GPU over the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...records import GpuSample, HostSample
from ...records.stats import mean, percent, scaled
from .. import wording
from ..model import History
from .plot import Chart, Key, TimeAxis, layout, line, rounded, safe, y_axis

POINTS = 150
"""Most points of a curve."""

GPUS_SHOWN = 8

NEAR_LIMIT = 0.25
"""A limit is drawn when more than this part of it was used; drawn always, it would press the curve to the floor."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve of a panel."""

    name: str
    tone: str
    of: Callable[[Any], float | None]
    dash: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of the machine."""

    id: str
    title: str
    unit: str
    """Of the values as drawn."""
    curves: tuple[Curve, ...]
    limit: Curve | None = None
    most: float | None = None
    """End of the y axis; by default that of the values."""


CPU = Panel(
    id="cpu",
    title="CPU",
    unit="CPUs",
    curves=(
        Curve("other processes", "third", lambda s: s.others_cpus),
        Curve("training process alone", "second", lambda s: s.main_cpus if (s.job_processes or 1) > 1 else None),
        Curve("this job", "step", lambda s: s.job_cpus),
        Curve("the job may use", "limit", lambda s: s.usable_cpus, dash=True),
    ),
)
MEMORY = Panel(
    id="memory",
    title="Memory",
    unit="GB",
    curves=(
        Curve("all under the limit", "third", lambda s: scaled(s.memory_limit_used_bytes, 1e9)),
        Curve("workers of this job", "second", lambda s: scaled(s.children_rss_bytes or None, 1e9)),
        Curve("this job", "step", lambda s: scaled(s.job_rss_bytes, 1e9)),
    ),
    limit=Curve("limit", "limit", lambda s: scaled(s.memory_limit_bytes, 1e9), dash=True),
)
DISK = Panel(
    id="disk",
    title="Disk",
    unit="MB/s",
    curves=(
        Curve("read", "step", lambda s: scaled(s.disk_read_bytes_per_s, 1e6)),
        Curve("written", "second", lambda s: scaled(s.disk_write_bytes_per_s, 1e6)),
    ),
)
NETWORK = Panel(
    id="network",
    title="Network",
    unit="MB/s",
    curves=(
        Curve("received", "step", lambda s: _sum_mb(n.received_bytes_per_s for n in s.network)),
        Curve("sent", "second", lambda s: _sum_mb(n.sent_bytes_per_s for n in s.network)),
    ),
)
SHORTAGE = Panel(
    id="shortage",
    title="Waiting for the machine",
    unit="% of time",
    curves=(
        Curve("some task waits for a CPU", "queued", lambda s: s.pressure_cpu_pct),
        Curve("some task waits for storage", "blocked", lambda s: s.pressure_io_pct),
        Curve("I/O wait", "third", lambda s: s.cpu_iowait_pct),
        Curve("CPU quota used up", "step", lambda s: s.cpu_throttled_pct),
    ),
)


def hardware(history: History, axis: TimeAxis) -> Iterator[Chart]:
    """Yield a chart for each part of the machine of which anything was measured."""
    host = history.window.host.samples.items
    for panel in (CPU, MEMORY, DISK, NETWORK, SHORTAGE):
        yield from _chart(panel, host, history, axis)
    for index in sorted(history.window.gpu.samples)[:GPUS_SHOWN]:
        samples = history.window.gpu.samples[index].items
        yield from _chart(_gpu(index, samples), samples, history, axis)


def _gpu(index: int, samples: Sequence[GpuSample]) -> Panel:
    name = samples[-1].name
    return Panel(
        id=f"gpu-{index}",
        title=f"GPU {index}" + (f", {wording.one_line(name, wording.NAME_LIMIT)}" if name else ""),
        unit="%",
        most=105.0,
        curves=(
            Curve("busy", "step", lambda s: s.utilization_pct),
            Curve("memory", "second", lambda s: percent(s.memory_used_bytes, s.memory_total_bytes)),
            Curve("power, of its limit", "third", lambda s: percent(s.power_w, s.power_limit_w)),
            Curve("SMs active", "cpu", lambda s: s.sm_active_pct),
            Curve("Tensor Cores active", "queued", lambda s: s.tensor_active_pct),
        ),
    )


def _chart(
    panel: Panel, samples: Sequence[HostSample | GpuSample], history: History, axis: TimeAxis
) -> Iterator[Chart]:
    groups = list(_groups(samples))
    if len(groups) < 2:
        return
    origin_s = history.header.started_s
    xs = [axis((mean(s.time_s for s in group) or origin_s) - origin_s) for group in groups]
    drawn = [(curve, ys) for curve in panel.curves if (ys := _means(curve, groups))]
    if not drawn:
        return
    highest = max(y for _, ys in drawn for y in ys if y is not None)
    if panel.limit is not None and (ys := _means(panel.limit, groups)):
        limit = min(y for y in ys if y is not None)
        if highest > NEAR_LIMIT * limit:
            drawn.append((panel.limit, ys))
            highest = max(highest, limit)
    data = [line(safe(curve.name), curve.tone, xs, ys, panel.unit, dash=curve.dash) for curve, ys in drawn]
    top = panel.most or highest * 1.12 or 1.0
    said = "; ".join(_said(curve, ys, panel.unit) for curve, ys in drawn)
    yield Chart(
        id=panel.id,
        title=panel.title,
        summary=f"{panel.title} over the run. {said}.",
        height_px=210,
        legend=tuple(Key(curve.name, curve.tone, "dash" if curve.dash else "line") for curve, _ in drawn),
        data=data,
        layout=layout(
            hovermode="x unified",
            xaxis=axis.axis(0.0, max((history.window.ledger.wall_s or 0.0), samples[-1].time_s - origin_s))
            | {"unifiedhovertitle": {"text": f"%{{x:.4~g}} {axis.unit}"}},
            yaxis=y_axis(panel.unit, range=[0, top]),
        ),
    )


def _said(curve: Curve, ys: Sequence[float | None], unit: str) -> str:
    known = [y for y in ys if y is not None]
    middle, highest = sum(known) / len(known), max(known)
    return f"{curve.name}: mean {wording.significant(middle)}, at most {wording.significant(highest)} {unit}"


def _means(curve: Curve, groups: Sequence[Sequence[Any]]) -> list[float | None] | None:
    """Return the mean of each group; None when nothing was measured at all."""
    found: list[float | None] = []
    for group in groups:
        value = mean(v for s in group if (v := curve.of(s)) is not None and math.isfinite(v))
        found.append(None if value is None else rounded(value))
    return found if any(v is not None for v in found) else None


def _groups(samples: Sequence[Any]) -> Iterator[Sequence[Any]]:
    count = min(POINTS, len(samples))
    for i in range(count):
        yield samples[i * len(samples) // count : (i + 1) * len(samples) // count]


def _sum_mb(values: Iterator[float]) -> float | None:
    known = list(values)
    return sum(known) / 1e6 if known else None
