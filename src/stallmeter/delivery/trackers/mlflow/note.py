"""Our section of a run's description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from .store import Run

BEGIN, END = "<!-- stallmeter:begin -->", "<!-- stallmeter:end -->"
"""Around our section of the description: invisible on the page, so that the user's own text can be told apart."""

NOTE_TAG = "mlflow.note.content"
NOTE_CHARACTERS = (8000, 5000)
"""Longest description that servers take: today's, and those before MLflow 2.14."""

SECTION_BYTES = 4000

_SECTION = re.compile(f"{re.escape(BEGIN)}(?:(?!{re.escape(BEGIN)}).)*?{re.escape(END)}", re.DOTALL)


def merge_note(old: str, section: str, limit: int = NOTE_CHARACTERS[0]) -> str:
    """Put our section into a run's description and keep everything else.

    Args:
        old: The description as it is.
        section: Markdown; cut to 4,000 bytes and to what the user's text leaves.
        limit: Most characters of the whole.

    Returns:
        The new description; ``old`` when there is no room.
    """
    match = _SECTION.search(old)
    before, after = (old[: match.start()], old[match.end() :]) if match else (old, "")
    if before and not match:
        before = before.rstrip() + "\n\n"
    frame = len(f"{BEGIN}\n\n\n\n{END}")
    text = _cut(section.strip(), SECTION_BYTES, limit - len(before) - len(after) - frame)
    # Blank lines keep the markers from becoming part of a list or table.
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}" if text else old


def linked(run: Run, note: str, files: Mapping[str, Path]) -> str:
    """Add what only MLflow can show: a link to the report in the first line and charts below."""
    first, newline, rest = note.partition("\n")
    if report := next((name for name in ("report.html", "report.md") if name in files), None):
        artifacts = f"#/experiments/{run.experiment_id}/runs/{run.id}/artifacts"
        first += f" [Full report]({artifacts}/stallmeter/{report})"
    charts = "".join(
        f"\n\n![{PurePosixPath(name).stem}](get-artifact?path={quote('stallmeter/' + name)}&run_uuid={run.id})"
        for name in files
        if name.endswith((".png", ".svg"))
    )
    room = SECTION_BYTES - len(charts.encode()) - len(f"{first}{newline}".encode())
    return first + newline + _cut(rest, max(0, room)).rstrip() + charts


def _cut(text: str, most_bytes: int, most_characters: int | None = None) -> str:
    """Keep whole lines from the start of a Markdown text."""
    most_characters = len(text) if most_characters is None else most_characters
    if len(text.encode()) <= most_bytes and len(text) <= most_characters:
        return text
    kept: list[str] = []
    room_bytes, room = most_bytes - 8, most_characters - 8  # for a closing fence and the dots
    for line in text.splitlines():
        room_bytes, room = room_bytes - len(line.encode()) - 1, room - len(line) - 1
        if room_bytes < 0 or room < 0:
            break
        kept.append(line)
    if sum(line.lstrip().startswith("```") for line in kept) % 2:
        kept.append("```")
    return "\n".join([*kept, "…"]) if kept else ""
