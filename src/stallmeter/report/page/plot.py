"""What every chart of the HTML report is made of: figures of Plotly as plain data, colours by name, units on each axis.

A figure names its colours ``var(--name)``; the page puts in the tone that suits a light or a dark screen.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import wording

_STEPS_OF_A_DECADE = ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend."""

    name: str
    tone: str
    """Name of a colour."""
    mark: str = "area"
    """How it is drawn: area, line, dash or dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture of the HTML report."""

    id: str
    title: str
    summary: str
    """What it shows, for those who cannot see it."""
    note: str = ""
    """How to read it."""
    height_px: int = 260
    legend: tuple[Key, ...] = ()
    data: Sequence[Mapping[str, Any]] = field(repr=False)
    layout: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Time since the run began, in one unit for all charts of a report."""

    unit: str
    seconds_per_unit: float

    def __call__(self, seconds: float) -> float:
        """Return seconds in the axis' unit."""
        return rounded(seconds / self.seconds_per_unit, 6)

    def axis(self, start_s: float, end_s: float) -> dict[str, Any]:
        """Return the x axis from one moment to another."""
        return x_axis(f"time into the run, {self.unit}") | {"range": [self(start_s), self(end_s)]}


def time_axis(wall_s: float) -> TimeAxis:
    """Return the axis in which a run of that length is read best."""
    if wall_s < 180:
        return TimeAxis("s", 1.0)
    return TimeAxis("min", 60.0) if wall_s < 3 * 3600 else TimeAxis("h", 3600.0)


def rounded(value: float, digits: int = 4) -> float:
    """Return a number with so many significant digits: what a chart can show, and short in the file."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else 0.0


def safe(text: object, limit: int = wording.NAME_LIMIT) -> str:
    """Make foreign text harmless in a figure, whose texts may hold HTML."""
    return html.escape(wording.one_line(text, limit), quote=False)


def colour(tone: str) -> str:
    """Return the name under which the page knows a colour."""
    return f"var(--{tone})"


def layout(**changes: Any) -> dict[str, Any]:
    """Return the common layout with changes."""
    common: dict[str, Any] = {
        "margin": {"l": 58, "r": 12, "t": 10, "b": 44},
        "showlegend": False,
        "font": {"size": 12, "color": colour("ink-soft")},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {
            "bgcolor": colour("card"),
            "bordercolor": colour("line"),
            "font": {"size": 12, "color": colour("ink")},
            "namelength": -1,
        },
        "bargap": 0,
    }
    return common | changes


def x_axis(title: str) -> dict[str, Any]:
    """Return a linear x axis; the title carries the unit."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 12}},
        "showgrid": False,
        "zeroline": False,
        "linecolor": colour("line"),
        "showline": True,
        "ticks": "outside",
        "tickcolor": colour("line"),
        "ticklen": 4,
        "nticks": 8,
        "fixedrange": False,
    }


def y_axis(title: str, **changes: Any) -> dict[str, Any]:
    """Return a linear y axis from 0; the title carries the unit."""
    common: dict[str, Any] = {
        "title": {"text": title, "standoff": 10, "font": {"size": 12}},
        "automargin": True,
        "gridcolor": colour("line"),
        "zeroline": False,
        "rangemode": "tozero",
        "nticks": 5,
        "fixedrange": True,
    }
    return common | changes


def log_of_seconds(least: float, most: float) -> dict[str, Any]:
    """Return what makes an axis logarithmic, with ticks such as 5 ms.

    Args:
        least: Smallest value on it, seconds, above 0.
        most: Largest one.
    """
    lower, upper = math.log10(least), math.log10(max(most, least * 1.02))
    room = max(0.02, 0.04 * (upper - lower))
    lower, upper = lower - room, upper + room
    ticks: list[float] = []
    for steps in _STEPS_OF_A_DECADE:
        ticks = [
            s * 10.0**d
            for d in range(math.floor(lower), math.ceil(upper) + 1)
            for s in steps
            if lower <= math.log10(s * 10.0**d) <= upper
        ]
        if len(ticks) <= 7:
            break
    if len(ticks) < 2:
        ticks = [rounded(10 ** (lower + (upper - lower) * i / 4), 2) for i in range(5)]
    ticks = ticks[:: math.ceil(len(ticks) / 7)] if ticks else []
    return {
        "type": "log",
        "range": [lower, upper],
        "tickvals": ticks,
        "ticktext": [wording.seconds(t) for t in ticks],
        "rangemode": "normal",
    }


def line(
    name: str, tone: str, xs: Sequence[float], ys: Sequence[float | None], unit: str, *, dash: bool = False
) -> dict[str, Any]:
    """Return a curve; gaps stay gaps."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(xs),
        "y": list(ys),
        "line": {"color": colour(tone), "width": 1.8, "dash": "dash" if dash else "solid"},
        "hovertemplate": f"%{{y:.3~r}} {unit}",
    }
