"""``stallmeter merge``: ranks that recorded apart become one recording."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "merge",
        help="join ranks that recorded apart into one recording",
        description="Join the recordings of a job's ranks, which were made on disks of their own, into one: "
        "`stallmeter report` then judges the job. They must be of one job: the same number of ranks and framework, "
        "each rank once, begun within ten minutes. Nothing is overwritten.",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="DIR", help="a recording, or a folder: its newest recording"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="the new recording; by default beside that of the lowest rank, with -merged at its name's end",
    )
    parser.set_defaults(call=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..ranks.joining import join
    from ..rules.job.words import of_ranks

    joined = join(arguments.paths, arguments.output)
    for name in joined.passed_over:
        print(f"stallmeter: {name} has no header and was passed over", file=sys.stderr)
    if joined.missing:
        print(f"stallmeter: still missing: {of_ranks(joined.missing)}", file=sys.stderr)
    if joined.not_ended:
        print(f"stallmeter: no end is recorded of {of_ranks(joined.not_ended)}", file=sys.stderr)
    print(f"{len(joined.ranks)} of {joined.world_size} ranks in {joined.folder}")
    print(f"show them: stallmeter report {shlex.quote(str(joined.folder))}")
    return 0
