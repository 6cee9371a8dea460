"""Reads a recording and shows what is asked for, on stdout or in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SettingError

if TYPE_CHECKING:
    from ..records.diagnosis import Verdict
    from ..report.model import History, Report
    from ..report.overview import Overview


def read(path: Path, rank: int | None) -> History:
    """Return a recording's history.

    Args:
        path: The recording, or a folder: its newest.
        rank: Whose part of it; the lowest by default.

    Raises:
        RecordingError: There is none, or it is damaged.
    """
    from ..recording import find_recording, ranks
    from ..report.model import read_history

    folder = find_recording(path)
    return read_history(folder, min(ranks(folder), default=0) if rank is None else rank)


def show(history: History, form: str, output: Path | None, report: Report | None = None) -> None:
    """Show a report, on stdout or in a file.

    Args:
        history: The recording.
        form: One of `FORMATS`.
        output: The file.
        report: What is said about the history; by default its own verdict, or today's where it has none.

    Raises:
        SettingError: HTML was asked for on a terminal.
    """
    report = report or history.report(None if history.settled else _evaluate(history))
    if output is not None:
        from ..recording import write_output

        write_output(output, _render(history, report, form))
    elif form == "html" and sys.stdout.isatty():
        raise SettingError("the HTML report is no text for a terminal; say where to write it: --output report.html")
    elif form == "text":
        from ..report.text import print_text

        print_text(report, sys.stdout)
    else:
        sys.stdout.write(_render(history, report, form))


def _evaluate(history: History) -> Verdict:
    from ..rules.evaluation import diagnose

    return history.guarded(diagnose)


def _render(history: History, report: Report, form: str) -> str:
    if form == "html":
        from ..report.page.html import to_html

        return to_html(history, report)
    if form == "json":
        from ..report.json import to_json

        return json.dumps(to_json(report), indent=2, allow_nan=False) + "\n"
    if form == "markdown":
        from ..report.markdown import to_markdown

        return to_markdown(report)
    from ..report.text import to_text

    return to_text(report)


def show_json(document: dict[str, Any]) -> None:
    """Show a document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def show_overview(overview: Overview, form: str) -> None:
    """Show a table on stdout, as text or Markdown."""
    if form == "markdown":
        from ..report.overview import overview_to_markdown

        sys.stdout.write(overview_to_markdown(overview))
    else:
        from ..report.text import print_overview

        print_overview(overview, sys.stdout)
