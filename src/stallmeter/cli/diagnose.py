"""``stallmeter diagnose``: ask today's rules about an old recording."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SettingError
from .arguments import SHEET_FORMATS
from .rules import rule_named
from .show import read, show, show_json, show_overview

if TYPE_CHECKING:
    from ..records.diagnosis import Verdict
    from ..report.model import History, Report
    from .rules import AnyRule


def add(commands: Any) -> None:
    """Add the command."""
    again = commands.add_parser(
        "diagnose",
        help="ask today's rules about an old recording",
        description="Ask today's rules about a recording, and show what they say against the recorded verdict. A job "
        "of several ranks is judged as one; with --rank one of them alone.",
    )
    again.add_argument("path", nargs="?", default="stallmeter", type=Path, help="a recording, or a folder: its newest")
    again.add_argument("--format", choices=SHEET_FORMATS, default="text")
    again.add_argument("--rank", type=int, help="one rank of a distributed run alone (default: all of them, the job)")
    again.add_argument("--rule", action="append", default=[], metavar="ID", help="ask only this rule; repeatable")
    again.set_defaults(call=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..report.job.folder import is_job
    from ..report.reevaluation import reevaluate, reevaluation_overview, reevaluation_to_json

    rules = [rule_named(rule) for rule in dict.fromkeys(arguments.rule)]
    history = read(arguments.path, arguments.rank)
    of_job = arguments.rank is None and is_job(history)
    recorded, now, report = (_job if of_job else _one_rank)(history, rules)
    changes = reevaluate(recorded, now, history.header.version, [rule.id for rule in rules])
    report = dataclasses.replace(report, settled=False)
    if arguments.format == "json":
        from ..report.json import to_json

        show_json({**history.guarded(lambda _: to_json(report)), **reevaluation_to_json(changes)})
        return 0
    history.guarded(lambda _: show(history, arguments.format, None, report))
    print()
    show_overview(reevaluation_overview(changes), arguments.format)
    return 0


def _one_rank(history: History, rules: Sequence[AnyRule]) -> tuple[Verdict | None, Verdict, Report]:
    """Return the recorded verdict of one rank, today's, and the report with that."""
    from ..rules.evaluation import diagnose
    from ..rules.job import JOB_RULES

    over_ranks = {rule.id for rule in JOB_RULES}
    own = [rule for rule in rules if rule.id not in over_ranks]
    if len(own) < len(rules):
        raise SettingError(
            f"{', '.join(rule.id for rule in rules if rule.id in over_ranks)} judges the ranks of a job: "
            "ask for it without --rank, of a recording of several ranks"
        )
    asked: Any = own
    verdict = history.guarded(lambda window: diagnose(window, asked) if asked else diagnose(window))
    if rules:
        # What cures the run is known to all rules together only.
        verdict = dataclasses.replace(verdict, num_workers=None)
    return history.verdict, verdict, history.report(verdict)


def _job(history: History, rules: Sequence[AnyRule]) -> tuple[Verdict | None, Verdict, Report]:
    """Return the verdict that a job's recorded ones make, the one that today's make, and the report with that."""
    from ..report.job.folder import job_today, shown
    from ..rules.job.evaluation import judge

    recorded, job = job_today(history)
    judged = judge(job)
    if rules:
        judged = dataclasses.replace(judged, verdict=_only(judged.verdict, {rule.id for rule in rules}))
    known = any(view.verdict is not None for view in recorded.ranks)
    return judge(recorded).verdict if known else None, judged.verdict, shown(history, job, judged)


def _only(verdict: Verdict, rules: set[str]) -> Verdict:
    """Return what some rules say, of what all say: of a job each needs what the others found."""
    found = tuple(d for d in verdict.diagnoses if d.rule in rules)
    return dataclasses.replace(
        verdict,
        primary=found[0] if found else None,
        diagnoses=found,
        abstained=tuple(a for a in verdict.abstained if a.rule in rules),
        num_workers=None,
        runner_up=None,
    )
