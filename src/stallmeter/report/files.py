"""The reports of a run as files beside its recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..recording import write_atomically
from . import markdown
from .extras import write_extras
from .json import to_json
from .model import History, Report
from .steps_csv import write_steps_csv


def report_files(folder: Path, rank: int) -> dict[str, Path]:
    """Return where a rank's reports are, by the name that they have on a tracker."""
    suffix = f"-rank{rank}" if rank else ""
    kinds = (("report", "html"), ("report", "md"), ("phases", "png"), ("diagnosis", "json"), ("steps", "csv"))
    return {f"{stem}.{kind}": folder / f"{stem}{suffix}.{kind}" for stem, kind in kinds}


def write_reports(
    folder: Path, rank: int, history: History, report: Report, guard: Callable[..., Any]
) -> dict[str, Path]:
    """Write all reports of a rank; the HTML report and the chart only of rank 0, where their packages are installed.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        history: The recording read back.
        report: Made of it.
        guard: Calls what needs optional packages, once for each file.

    Returns:
        What `report_files` does.

    Raises:
        RecordingError: The recording cannot be read.
        OSError: A file cannot be written.
    """
    files = report_files(folder, rank)
    write_atomically(files["report.md"], markdown.to_markdown(report))
    write_atomically(files["diagnosis.json"], json.dumps(to_json(report), indent=2))
    write_steps_csv(folder, rank, files["steps.csv"])
    if rank == 0:  # the others' pictures are drawn when somebody asks for them
        write_extras(history, files, guard)
    return files
