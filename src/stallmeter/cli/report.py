"""``stallmeter report``: show a recording."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import SettingError
from .arguments import FORMATS, check_output
from .show import read, show

SUFFIXES = {".html": "html", ".htm": "html", ".json": "json", ".md": "markdown", ".markdown": "markdown"}
"""Formats by how a file's name ends; of other names it is text."""


def add(commands: Any) -> None:
    """Add the command."""
    report = commands.add_parser("report", help="show a recording", description="Show a recording.")
    report.add_argument("path", nargs="?", default="stallmeter", type=Path, help="a recording, or a folder: its newest")
    report.add_argument(
        "--format", choices=FORMATS, help="default: that of the file's name (.md, .json, .html), else text"
    )
    report.add_argument("--rank", type=int, help="one rank of a distributed run alone (default: all of them, the job)")
    report.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to stdout")
    report.add_argument("--follow", action="store_true", help="draw it anew while the run goes on, until it ends")
    report.set_defaults(call=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.follow:
        return _follow(arguments)
    check_output(arguments.output)
    history = read(arguments.path, arguments.rank)
    from ..report.job.folder import report_of_job, report_of_one

    make = report_of_job if arguments.rank is None else report_of_one
    report = history.guarded(lambda _: make(history))
    form = arguments.format or _format_of(arguments.output)
    history.guarded(lambda _: show(history, form, arguments.output, report))
    return 0


def _format_of(output: Path | None) -> str:
    return "text" if output is None else SUFFIXES.get(output.suffix.lower(), "text")


def _follow(arguments: argparse.Namespace) -> int:
    if arguments.format not in (None, "text") or arguments.output is not None:
        raise SettingError("--follow draws text; leave out --format and --output")
    from ..recording import find_recording
    from ..report.follow import Followed, Lines, follow

    followed = Followed(find_recording(arguments.path), arguments.rank)
    if sys.stdout.isatty():
        from ..report.text import Screen

        with Screen(sys.stdout) as screen:
            follow(followed, screen)
    else:
        follow(followed, Lines(lambda line: print(line, flush=True)))
    return 0
