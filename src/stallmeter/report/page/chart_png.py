"""Where the time went, as a picture for places that show pictures only, such as a tracker's note.

Drawn with matplotlib's objects alone: no pyplot, no backend switched, no setting changed that the user's own figures
share.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from ...errors import MissingPackageError
from .. import wording
from ..model import History
from ..timeline import Interval
from .charts import REST, SHOWN_PCT, stacked
from .palette import PALETTE, tone
from .plot import TimeAxis, time_axis

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as exc:
    raise MissingPackageError("matplotlib", "report", "The phase chart (phases.png)") from exc

WIDTH_PX, HEIGHT_PX = 1200, 360
DPI = 100

BINS = 100

LABELLED_PCT = 7.0
"""A part of the bar is labelled from this share of the wall time on: its words fit in."""

INK, SOFT, LINE = "#1b2330", "#5a6577", "#e1e5ec"
_DARK_TONES = ("data_wait", "backward", "optimizer", "callbacks", "checkpoint", "compute", "other", "loop")
"""Colours on which white letters are read best."""


def phase_chart(history: History) -> bytes | None:
    """Return a PNG: one bar of the whole run's ledger above the shares over time. None when there is no ledger yet.

    Args:
        history: The recording read back.

    Raises:
        RecordingError: The recording holds values of a wrong type.
    """
    return history.guarded(lambda _: _draw(history))


def _draw(history: History) -> bytes | None:
    intervals = history.timeline.intervals(BINS)
    ledger = history.window.ledger.record
    if not intervals or ledger is None:
        return None
    figure = Figure(figsize=(WIDTH_PX / DPI, HEIGHT_PX / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    bar = figure.add_axes((0.062, 0.765, 0.925, 0.125))
    over_time = figure.add_axes((0.062, 0.235, 0.925, 0.44))
    parts = stacked(intervals)
    wall_s = intervals[-1].end_s
    _bar(bar, [(wording.label(b), tone(b), 100.0 * s / ledger.wall_s) for b, s in ledger.buckets.items() if s > 0])
    _shares(over_time, parts, intervals, time_axis(wall_s))
    figure.text(
        0.062, 0.925, f"Where the time went: {wording.seconds(wall_s)}", color=INK, fontsize=12.5, fontweight="bold"
    )
    handles = over_time.get_legend_handles_labels()
    figure.legend(
        *handles,
        loc="lower center",
        ncols=min(len(parts), 9),
        frameon=False,
        fontsize=10.5,
        labelcolor=SOFT,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.4,
        handletextpad=0.5,
        borderaxespad=0.1,
    )
    file = io.BytesIO()
    figure.savefig(file, format="png", facecolor="white")
    return file.getvalue()


def _bar(axes: Axes, parts: Sequence[tuple[str, str, float]]) -> None:
    left = 0.0
    small = sum(share for _, _, share in parts if share < SHOWN_PCT)
    shown = [part for part in parts if part[2] >= SHOWN_PCT]
    for name, of, share in [*shown, (REST, "other", small)]:
        axes.barh(0, share, left=left, height=1.0, color=PALETTE[of][0], linewidth=0)
        if share >= LABELLED_PCT:
            words = f"{name} {share:.0f} %" if share >= 2 * LABELLED_PCT else f"{share:.0f} %"
            ink = "white" if of in _DARK_TONES else INK
            axes.text(left + share / 2, 0, _plain(words), ha="center", va="center", color=ink, fontsize=11)
        left += share
    axes.set_xlim(0, max(left, 1e-9))
    axes.set_ylim(-0.5, 0.5)
    axes.set_axis_off()


def _shares(
    axes: Axes, parts: Sequence[tuple[str, str, list[float]]], intervals: Sequence[Interval], axis: TimeAxis
) -> None:
    starts = [axis(i.start_s) for i in intervals]
    widths = [axis(i.end_s - i.start_s) for i in intervals]
    floor = [0.0] * len(intervals)
    for name, of, shares in parts:
        axes.bar(
            starts,
            shares,
            width=widths,
            bottom=floor,
            align="edge",
            color=PALETTE[of][0],
            linewidth=0,
            antialiased=False,
            label=_plain(name),
        )
        floor = [below + share for below, share in zip(floor, shares, strict=True)]
    axes.set_facecolor("white")
    axes.set_xlim(0, axis(intervals[-1].end_s))
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100], ["0 %", "50 %", "100 %"])
    axes.set_xlabel(f"time into the run, {axis.unit}", color=SOFT, fontsize=10.5, labelpad=2)
    axes.tick_params(colors=SOFT, labelsize=10.5, length=3, color=LINE)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)


def _plain(text: str) -> str:
    """Keep matplotlib from reading dollar signs of foreign names as mathematics, and leading underscores as hidden."""
    return text.replace("$", r"\$").lstrip("_") or "?"
