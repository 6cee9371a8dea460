"""Slow steps as traces of a run, on a real server and in a real database."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from stallmeter import Monitor
from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.errors import SettingError, TrackerError
from stallmeter.records.interfaces import Page

from ...report.recordings import START_S, step
from ...servers import MlflowServer

mlflow = pytest.importorskip("mlflow")


def takes_traces() -> bool:
    """Whether this MLflow can be given spans that are over."""
    try:
        from mlflow.tracing.client import TracingClient
    except ImportError:
        return False
    return hasattr(TracingClient, "log_spans")


needs_traces = pytest.mark.skipif(not takes_traces(), reason="this MLflow cannot take traces of steps")


def final_page(folder: Path) -> Page:
    (folder / "report.md").write_text("x")
    slow = [
        step(40, total_s=0.5, data_wait_s=0.46, time_s=START_S + 9),
        step(7, total_s=0.4, data_wait_s=0.35, h2d_s=0.01, time_s=START_S + 3),
        step(11),
    ]
    return Page(tags={}, headline="h", note="n", files={"report.md": folder / "report.md"}, final=True, slow_steps=slow)


def traces(uri: str, experiment_id: str, run_id: str) -> list[Any]:
    found = mlflow.MlflowClient(uri).search_traces(locations=[experiment_id], run_id=run_id)
    return sorted(found, key=lambda trace: -trace.info.execution_duration)


def check(uri: str, experiment_id: str, run_id: str) -> None:
    first, second = traces(uri, experiment_id, run_id)
    assert first.info.execution_duration == 500
    assert first.info.request_time == round((START_S + 8.5) * 1000)
    root, *parts = sorted(first.data.spans, key=lambda span: span.parent_id is not None)
    assert (root.name, root.end_time_ns - root.start_time_ns) == ("step 40 (slowest step)", 500_000_000)
    assert root.get_attribute("step") == 40
    assert {span.parent_id for span in parts} == {root.span_id}
    lengths = {span.name: span.end_time_ns - span.start_time_ns for span in parts}
    assert lengths == {"data_wait": 460_000_000, "forward": 20_000_000, "backward": 20_000_000}
    assert [s.name for s in second.data.spans if s.parent_id is None] == ["step 7 (slow step 2)"]
    assert "h2d" in {span.name for span in second.data.spans}


@needs_traces
@pytest.mark.server
def test_slow_steps_become_traces_of_the_run(server: MlflowServer, tmp_path: Path) -> None:
    """As many as asked for, with the measured lengths, on the server and not under the process's tracking URI."""
    before = mlflow.get_tracking_uri()
    client = mlflow.MlflowClient(server.uri)
    experiment_id = client.create_experiment("traces")
    run_id = client.create_run(experiment_id).info.run_id
    for _ in range(2):  # the second sending leaves one copy
        MlflowTracker(server.uri, run_id, traces=2, upload_s=60).show(final_page(tmp_path))
        check(server.uri, experiment_id, run_id)
    assert mlflow.get_tracking_uri() == before


@needs_traces
def test_in_a_database(sqlite_uri: str, tmp_path: Path) -> None:
    """Without a server it is the same; and by default there is none."""
    client = mlflow.MlflowClient(sqlite_uri)
    experiment_id = client.get_experiment_by_name("tests").experiment_id
    run_ids = [client.create_run(experiment_id).info.run_id for _ in range(2)]
    MlflowTracker(sqlite_uri, run_ids[0], traces=2, upload_s=60).show(final_page(tmp_path))
    MlflowTracker(sqlite_uri, run_ids[1], upload_s=60).show(final_page(tmp_path))
    check(sqlite_uri, experiment_id, run_ids[0])
    assert traces(sqlite_uri, experiment_id, run_ids[1]) == []


@needs_traces
def test_of_a_monitored_loop(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that really were slow are the ones shown."""
    monkeypatch.chdir(tmp_path)
    tracker = MlflowTracker.create_run(sqlite_uri, "tests", traces=3)
    with Monitor(
        directory=tmp_path, trackers=tracker, hardware=False, workers=False, console=False, close_budget_s=120
    ) as monitor:
        for i, _ in enumerate(monitor.watch([[0]] * 40)):
            time.sleep(0.05 if i in (20, 25, 30) else 0.001)
    assert monitor.undelivered == ()
    experiment_id = mlflow.MlflowClient(sqlite_uri).get_experiment_by_name("tests").experiment_id
    found = traces(sqlite_uri, experiment_id, tracker.run_id)
    steps = {s.get_attribute("step") for trace in found for s in trace.data.spans if s.parent_id is None}
    assert steps == {20, 25, 30}
    assert all("compute" in {span.name for span in trace.data.spans} for trace in found)


@pytest.mark.parametrize("traces", [-1, 11, "3", 1.0])
def test_a_wrong_number_is_named(traces: Any) -> None:
    with pytest.raises(SettingError, match="from 0 to 10"):
        MlflowTracker("http://127.0.0.1:1", "x", traces=traces)


@needs_traces
def test_traces_that_are_refused_do_not_cost_the_page(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning; tags, note and files are there."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
    from mlflow.tracing.client import TracingClient

    def refuse(*_: object) -> None:
        raise MlflowException("no traces here", INVALID_PARAMETER_VALUE)

    monkeypatch.setattr(TracingClient, "start_trace", refuse)
    client = mlflow.MlflowClient(sqlite_uri)
    run_id = client.create_run(client.get_experiment_by_name("tests").experiment_id).info.run_id
    MlflowTracker(sqlite_uri, run_id, traces=2, upload_s=60).show(final_page(tmp_path))
    assert [a.path for a in client.list_artifacts(run_id, "stallmeter")] == ["stallmeter/report.md"]
    assert sum("no traces here" in message for message in caplog.messages) == 1


def test_an_old_mlflow_is_named_at_once(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if takes_traces():
        from mlflow.tracing.client import TracingClient

        monkeypatch.delattr(TracingClient, "log_spans")
    with pytest.raises(TrackerError, match="upgrade mlflow"):
        MlflowTracker(sqlite_uri, "x", traces=1)
    MlflowTracker(sqlite_uri, "x")
