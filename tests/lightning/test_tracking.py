"""A training against a real MLflow server: what the run holds afterwards, and what happens when nobody answers."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest

from stallmeter.delivery.points import points_of
from stallmeter.delivery.trackers.lightning_logger import LightningLoggerTracker
from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.recording import Reader
from stallmeter.recording.cursor import cursors
from stallmeter.records import StepRecord, WindowRecord
from stallmeter.rules.input_bound import InputBound

from ..servers import FaultServer, MlflowServer
from .conftest import Bench, both_namespaces


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)


def train(bench: Bench, logger: Any, **options: Any) -> Any:
    """Two epochs of twelve steps of 0.5 s; half of each is data wait."""
    sm = bench.monitor(**{"hardware": True, **options})
    trainer = bench.trainer(sm, logger=logger, max_epochs=2, log_every_n_steps=1)
    trainer.fit(bench.model(training_step=0.25), bench.loader(48, cost_s=0.0625))
    return sm


@pytest.mark.server
@pytest.mark.usefixtures("drawings")
def test_the_run_holds_what_the_recording_holds(bench: Bench, server: MlflowServer) -> None:
    logger = bench.pl.loggers.MLFlowLogger(experiment_name="real", tracking_uri=server.uri)
    client = mlflow.MlflowClient(server.uri)
    client.set_tag(logger.run_id, "mlflow.note.content", "My own words.")
    sm = train(bench, logger, rules=(InputBound(),))  # others look at what else runs on this machine
    assert sm.monitor.finish()
    assert sm.monitor.undelivered == ()
    run = client.get_run(logger.run_id)
    windows = [x for x, _ in Reader(sm.monitor.folder) if isinstance(x, WindowRecord)]
    assert windows
    for key in (
        "step_time_ms",
        "data_wait_ms",
        "data_wait_p95_ms",
        "data_wait_max_ms",
        "data_wait_pct",
        "samples_per_s",
    ):
        history = client.get_metric_history(logger.run_id, f"stallmeter/{key}")
        expected = [(w.tracker_step, round(w.time_s * 1000), w.metrics[key]) for w in windows if key in w.metrics]
        found = [(m.step, m.timestamp, m.value) for m in history]
        assert [f[0] for f in found] == [e[0] for e in expected]
        assert [f[1] for f in found] == pytest.approx([e[1] for e in expected], abs=1)
        assert [f[2] for f in found] == pytest.approx([e[2] for e in expected], rel=1e-3)
    steps = [x for x, _ in Reader(sm.monitor.folder) if isinstance(x, StepRecord)]
    first = client.get_metric_history(logger.run_id, "stallmeter/first_steps/data_wait_ms")
    assert sorted(m.step for m in first) == [s.tracker_step for s in steps]
    assert any(key.startswith("system/stallmeter/") for key in run.data.metrics)
    assert not any(key.startswith("stallmeter/") and "//" in key for key in run.data.metrics)
    assert run.data.tags["stallmeter.primary"] == sm.monitor.verdict.primary.rule == "input-bound"
    assert float(run.data.tags["stallmeter.data_wait_pct"]) == pytest.approx(50, abs=1)
    note = run.data.tags["mlflow.note.content"]
    assert "My own words." in note
    assert "waits for data" in note
    artifacts = {a.path for a in client.list_artifacts(logger.run_id, "stallmeter")}
    names = ("report.html", "report.md", "phases.png", "diagnosis.json", "steps.csv")
    assert artifacts == {f"stallmeter/{name}" for name in names}
    assert run.info.status == "FINISHED"


def test_the_active_run_is_found_and_left_open(
    unified: Bench, new_database: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unified.folder)
    mlflow.set_tracking_uri(new_database(unified.folder / "mlflow.db"))
    try:
        with mlflow.start_run() as run:
            train(unified, logger=False)
            assert mlflow.active_run().info.run_id == run.info.run_id
            assert mlflow.MlflowClient().get_run(run.info.run_id).info.status == "RUNNING"
        assert "stallmeter/data_wait_pct" in mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    finally:
        mlflow.set_tracking_uri(None)


@both_namespaces
def test_any_other_logger_gets_the_window_metrics(bench: Bench) -> None:
    logger = bench.pl.loggers.CSVLogger(bench.folder / "csv")
    train(bench, logger)
    with (bench.folder / "csv").joinpath(*_relative(logger)).open() as file:
        rows = list(csv.DictReader(file))
    assert any(row.get("stallmeter/data_wait_pct") for row in rows)
    assert any(row.get("loss") for row in rows)


def test_a_logger_that_fails_for_a_moment_loses_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    logger = bench.pl.loggers.CSVLogger(bench.folder / "csv")
    tracker = LightningLoggerTracker(logger)
    log_metrics, failures = logger.log_metrics, iter([True] * 3)

    def flaky(metrics: Any, step: int | None = None) -> None:
        if any("stallmeter" in key for key in metrics):
            if next(failures, False):
                raise OSError(5, "Input/output error")
        elif step == 4:
            deadline = time.monotonic() + 60
            while not tracker.waiting and time.monotonic() < deadline:
                time.sleep(0.02)
        log_metrics(metrics, step)

    logger.log_metrics = flaky
    sm = train(bench, logger, trackers=tracker)
    assert next(failures, None) is None
    assert sm.monitor.finish()
    assert sm.monitor.undelivered == ()
    (cursor,) = cursors(sm.monitor.folder).values()
    expected = [p for x, _ in Reader(sm.monitor.folder) for p in points_of(x)]
    assert (cursor.points, cursor.complete) == (len(expected), True)
    with (bench.folder / "csv").joinpath(*_relative(logger)).open() as file:
        cells = [value for row in csv.DictReader(file) for key, value in row.items() if key.startswith("stallmeter/")]
    assert sum(bool(cell) for cell in cells) == len(expected)
    assert caplog.text.count("tracker logger-CSVLogger failed and is tried again") == 1


def test_a_logger_that_takes_nothing_is_named_with_what_it_lacks(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    logger = bench.pl.loggers.CSVLogger(bench.folder / "csv")
    log_metrics = logger.log_metrics

    def refuse(metrics: Any, step: int | None = None) -> None:
        if any("stallmeter" in key for key in metrics):
            raise OSError(5, "Input/output error")
        log_metrics(metrics, step)

    logger.log_metrics = refuse
    sm = train(bench, logger)
    assert not sm.monitor.finish()
    (left,) = sm.monitor.undelivered
    expected = sum(len(points_of(x)) for x, _ in Reader(sm.monitor.folder))
    assert (left.tracker, left.points) == ("logger-CSVLogger", expected)
    assert f"{expected} points did not reach CSVLogger" in caplog.text
    (cursor,) = cursors(sm.monitor.folder).values()
    assert (cursor.points, cursor.complete) == (0, False)


def _relative(logger: Any) -> tuple[str, ...]:
    return ("lightning_logs", f"version_{logger.version}", "metrics.csv")


@pytest.mark.parametrize("silent", [False, True], ids=["500", "hangs"])
def test_a_tracker_that_does_not_answer_costs_the_training_nothing(unified: Bench, silent: bool) -> None:
    with FaultServer(500, silent=silent) as faulty:
        tracker = MlflowTracker(f"http://{faulty.address}", "0" * 32)
        sm = train(unified, logger=False, trackers=tracker, close_budget_s=2)
    assert [s.total_s for s in _steps(sm)] == pytest.approx([0.5] * 24)
    assert not sm.monitor.finish()
    (left,) = sm.monitor.undelivered
    assert left.points > 0
    assert sm.monitor.window.ledger.record.buckets["callbacks"] == pytest.approx(0, abs=1e-9)


def _steps(sm: Any) -> list[StepRecord]:
    return [x for x, _ in Reader(sm.monitor.folder) if isinstance(x, StepRecord)]
