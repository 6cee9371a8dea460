"""``stallmeter compare``: two runs that are named by their recordings or by their run ids in MLflow."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SettingError
from .arguments import SHEET_FORMATS, percentage
from .show import read, show_json, show_overview

if TYPE_CHECKING:
    from ..report.compare.comparison import Comparison, Metric, Side

REGRESSION = 1
ARTIFACT = "stallmeter/diagnosis.json"
_RUN_ID = re.compile(r"[0-9a-f]{32}")


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="compare two runs; exit status 1 on a regression",
        description="Compare two runs: step time, throughput, ledger, verdict. Each is a recording, a folder (its "
        "newest recording) or the id of an MLflow run. Exit status: 0, 1 for a regression beyond the limit and beyond "
        "the noise, 2 for a mistake.",
    )
    parser.add_argument("before", metavar="A", help="the run to compare with")
    parser.add_argument("after", metavar="B", help="the run in question")
    parser.add_argument(
        "--max-regression-pct", type=percentage, metavar="P", help="a regression is more than P percent worse"
    )
    parser.add_argument("--metric", choices=("step_time", "throughput"), default="step_time", help="what decides")
    parser.add_argument("--tracking-uri", metavar="URI", help="of MLflow; MLFLOW_TRACKING_URI by default")
    parser.add_argument("--format", choices=SHEET_FORMATS, default="text")
    parser.set_defaults(call=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..report.compare.forms import comparison_overview, comparison_to_json

    found = compare(
        arguments.before,
        arguments.after,
        metric=arguments.metric,
        max_regression_pct=arguments.max_regression_pct,
        tracking_uri=arguments.tracking_uri,
    )
    if arguments.format == "json":
        show_json(comparison_to_json(found))
    else:
        show_overview(comparison_overview(found), arguments.format)
    return REGRESSION if found.regressed else 0


def compare(
    before: str,
    after: str,
    *,
    metric: Metric = "step_time",
    max_regression_pct: float | None = None,
    tracking_uri: str | None = None,
) -> Comparison:
    """Compare two runs.

    Args:
        before: A recording, a folder (its newest recording) or the id of an MLflow run.
        after: The same for the run in question.
        metric: What decides about a regression.
        max_regression_pct: From how many percent worse on it is one.
        tracking_uri: Where the MLflow runs are; ``MLFLOW_TRACKING_URI`` by default.

    Raises:
        SettingError: A run id is given and nothing says where the run is.
        RecordingError: There is no such recording, it is damaged, or what decides was not measured.
        MissingPackageError: A run id is given and MLflow is not installed.
        TrackerUnavailableError: MLflow does not answer.
        TrackerError: There is no such run, or it holds no report of stallmeter.
    """
    from ..report.compare.comparison import compare_sides

    sides = [_side(name, tracking_uri) for name in (before, after)]
    return compare_sides(*sides, metric=metric, max_regression_pct=max_regression_pct)


def _side(name: str, tracking_uri: str | None) -> Side:
    from ..report.compare.comparison import side_of_history
    from ..report.job.folder import report_of_job
    from ..rules.evaluation import diagnose

    path = Path(name)
    if not path.exists() and _RUN_ID.fullmatch(name):
        return _side_of_run(name, tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"))
    history = read(path, None)
    verdict = history.verdict if history.settled and history.verdict else history.guarded(diagnose)
    return side_of_history(history, report_of_job(history, verdict) or history.report(verdict))


def _side_of_run(run_id: str, tracking_uri: str | None) -> Side:
    from ..delivery.trackers.mlflow import read_document
    from ..report.compare.comparison import side_of_document

    if not tracking_uri:
        raise SettingError(
            f"{run_id!r} looks like a run of MLflow; say where it is with --tracking-uri URI or MLFLOW_TRACKING_URI"
        )
    return side_of_document(read_document(tracking_uri, run_id, ARTIFACT), f"run {run_id}")
