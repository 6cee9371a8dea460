"""The reports of a run as files beside its recording."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..recording import write_atomically
from ..records.interfaces import GuardedCall, unguarded
from ..records.redaction import redact
from . import markdown
from .extras import MAKERS, write_extras
from .json import job_document, to_json
from .model import History, Report
from .speedscope import to_speedscope
from .steps_csv import write_steps_csv

STEPS = "steps.csv"

DRAWN = (*MAKERS, STEPS)
"""What takes long to make."""


def report_files(folder: Path, rank: int) -> dict[str, Path]:
    """Return where a rank's reports are, by the name that they have on a tracker."""
    suffix = f"-rank{rank}" if rank else ""
    kinds = (("report", "html"), ("report", "md"), ("phases", "png"), ("diagnosis", "json"), ("steps", "csv"))
    return {f"{stem}.{kind}": folder / f"{stem}{suffix}.{kind}" for stem, kind in kinds}


def write_summaries(folder: Path, rank: int, report: Report) -> dict[str, Path]:
    """Write the short reports of a rank, which need no more than the report itself. Secrets stay out, as of recordings.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        report: Of the recording, or of the run that has just made it.

    Returns:
        What was written, by the name that it has on a tracker.

    Raises:
        OSError: A file cannot be written.
    """
    files = report_files(folder, rank)
    write_atomically(files["report.md"], redact(markdown.to_markdown(report)))
    write_atomically(files["diagnosis.json"], json.dumps(_redacted(to_json(report)), indent=2))
    written = {name: files[name] for name in ("report.md", "diagnosis.json")}
    profile = to_speedscope(report.looks)
    if profile is not None:
        path = folder / f"speedscope{f'-rank{rank}' if rank else ''}.json"
        write_atomically(path, json.dumps(_redacted(profile)))
        written["speedscope.json"] = path
    if report.job is not None:
        path = folder / "ranks.json"
        write_atomically(path, json.dumps(_redacted(job_document(report)), indent=2))
        written["ranks.json"] = path
    return written


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(key): _redacted(item) for key, item in value.items()}
    return [_redacted(item) for item in value] if isinstance(value, list) else value


def write_drawn(
    folder: Path,
    rank: int,
    history: History,
    guard: GuardedCall,
    report: Report | None = None,
    *,
    names: Collection[str] = DRAWN,
) -> None:
    """Write what takes long: the table of steps, and for rank 0 page and picture, where their packages are installed.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        history: The recording read back.
        guard: Called as ``guard(name, call, *args)`` once for each file; keeps the failure of one from the others.
        report: What to show of it, when it is not its own report: that of its job.
        names: Of the files that are asked for.
    """
    files = report_files(folder, rank)
    if STEPS in names:
        guard(STEPS, write_steps_csv, folder, rank, files[STEPS])
    if rank == 0:  # the others' pictures are drawn when somebody asks for them
        write_extras(history, {name: files[name] for name in names}, guard, report)


def complete_reports(folder: Path, rank: int, history: History, report: Report) -> dict[str, Path]:
    """Write those reports of a rank that are missing: its program was killed, or it did not wait for them.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        history: The recording read back.
        report: Made of it.

    Returns:
        What `report_files` does.

    Raises:
        RecordingError: The recording cannot be read.
        OSError: A file cannot be written.
    """
    files = report_files(folder, rank)
    if not (files["report.md"].is_file() and files["diagnosis.json"].is_file()):
        write_summaries(folder, rank, report)
    missing = [name for name in (DRAWN if rank == 0 else (STEPS,)) if not files[name].is_file()]
    write_drawn(folder, rank, history, unguarded, report, names=missing)
    return files
