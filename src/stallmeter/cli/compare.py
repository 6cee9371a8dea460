"""Compare two runs that are named by their recordings or by their run ids in MLflow."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..delivery.trackers.mlflow import read_document
from ..errors import SettingError
from ..recording import find_recording, ranks
from ..report.compare.comparison import Comparison, Metric, Side, compare_sides, side_of_document, side_of_history
from ..report.model import read_history
from ..rules.evaluation import diagnose

ARTIFACT = "stallmeter/diagnosis.json"
_RUN_ID = re.compile(r"[0-9a-f]{32}")


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
    sides = [_side(name, tracking_uri) for name in (before, after)]
    return compare_sides(*sides, metric=metric, max_regression_pct=max_regression_pct)


def _side(name: str, tracking_uri: str | None) -> Side:
    path = Path(name)
    if not path.exists() and _RUN_ID.fullmatch(name):
        return _side_of_run(name, tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"))
    folder = find_recording(path)
    history = read_history(folder, min(ranks(folder), default=0))
    verdict = history.verdict if history.settled and history.verdict else history.guarded(diagnose)
    return side_of_history(history, history.report(verdict))


def _side_of_run(run_id: str, tracking_uri: str | None) -> Side:
    if not tracking_uri:
        raise SettingError(
            f"{run_id!r} looks like a run of MLflow; say where it is with --tracking-uri URI or MLFLOW_TRACKING_URI"
        )
    return side_of_document(read_document(tracking_uri, run_id, ARTIFACT), f"run {run_id}")
