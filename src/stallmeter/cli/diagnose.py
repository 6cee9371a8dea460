"""``stallmeter diagnose``: ask today's rules about an old recording."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from .arguments import SHEET_FORMATS
from .rules import rule_named
from .show import read, show, show_json, show_overview


def add(commands: Any) -> None:
    """Add the command."""
    again = commands.add_parser(
        "diagnose",
        help="ask today's rules about an old recording",
        description="Ask today's rules about a recording, and show what they say against the recorded verdict.",
    )
    again.add_argument("path", nargs="?", default="stallmeter", type=Path, help="a recording, or a folder: its newest")
    again.add_argument("--format", choices=SHEET_FORMATS, default="text")
    again.add_argument("--rank", type=int, help="which rank of a distributed run (default: the lowest)")
    again.add_argument("--rule", action="append", default=[], metavar="ID", help="ask only this rule; repeatable")
    again.set_defaults(call=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..report.reevaluation import reevaluate, reevaluation_overview, reevaluation_to_json
    from ..rules.evaluation import diagnose

    rules = [rule_named(rule) for rule in dict.fromkeys(arguments.rule)]
    history = read(arguments.path, arguments.rank)
    verdict = history.guarded(lambda window: diagnose(window, rules) if rules else diagnose(window))
    if rules:
        # What cures the run is known to all rules together only.
        verdict = dataclasses.replace(verdict, num_workers=None)
    changes = reevaluate(history.verdict, verdict, history.header.version, [rule.id for rule in rules])
    report = dataclasses.replace(history.report(verdict), settled=False)
    if arguments.format == "json":
        from ..report.json import to_json

        show_json({**history.guarded(lambda _: to_json(report)), **reevaluation_to_json(changes)})
        return 0
    history.guarded(lambda _: show(history, arguments.format, None, report))
    print()
    show_overview(reevaluation_overview(changes), arguments.format)
    return 0
