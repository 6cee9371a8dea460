"""The reports that need optional packages: written where those are installed, and never at the cost of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import MissingPackageError
from ..recording import write_atomically
from ..records.interfaces import GuardedCall
from .model import History, Report

_log = logging.getLogger("stallmeter")


def _page(history: History, report: Report | None) -> str:
    from .page.html import to_html

    return to_html(history, report)


def _picture(history: History, _: Report | None) -> bytes | None:
    from .page.chart_png import phase_chart

    return phase_chart(history)


PICTURE = "phases.png"
"""Shown by trackers beside the run. To make it takes as long as all the rest: where none takes it, it is left out."""

MAKERS: Mapping[str, Callable[[History, Report | None], str | bytes | None]] = {
    "report.html": _page,
    PICTURE: _picture,
}
"""File name to what makes it."""


def write_extras(history: History, files: Mapping[str, Path], guard: GuardedCall, report: Report | None = None) -> None:
    """Write the HTML report and the phase chart.

    Args:
        history: The recording read back.
        files: Where to write, by the name of the file; others than ours are ignored, and what is not asked for is not
            made.
        guard: Calls something that may fail, once for each file.
        report: What to show of it, when it is not its own report.
    """
    asked = [name for name in MAKERS if name in files]
    missing = [name for name in asked if guard(name, _write, history, name, files[name], report) is False]
    if missing:
        _log.info(
            "stallmeter: no %s was written; to have it: pip install 'stallmeter[report]'", " and no ".join(missing)
        )


def _write(history: History, name: str, path: Path, report: Report | None) -> bool:
    """Write one file where there is something to show; return whether its packages are installed."""
    try:
        content = MAKERS[name](history, report)
    except MissingPackageError:
        return False
    if content is not None:
        write_atomically(path, content)
    return True
