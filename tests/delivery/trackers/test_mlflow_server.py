"""The forwarder and the MLflow tracker against a real server: healthy, killed in between, and hung."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stallmeter.delivery.delivery import deliver
from stallmeter.delivery.forwarder import Forwarder
from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.delivery.trackers.mlflow.note import BEGIN, NOTE_TAG
from stallmeter.delivery.trackers.mlflow.store import RefusedError
from stallmeter.errors import TrackerError
from stallmeter.recording import Header, Recorder
from stallmeter.records import StepRecord, WindowRecord
from stallmeter.records.interfaces import Page

from ...servers import FaultProxy, FaultServer, MlflowServer

mlflow = pytest.importorskip("mlflow")
pytestmark = [pytest.mark.server, pytest.mark.long]

T = TypeVar("T")
NOW = 1_700_000_000.0


class Run:
    """A recording that grows, with a forwarder behind it."""

    def __init__(self, folder: Path, tracker: MlflowTracker) -> None:
        self.recorder = Recorder(folder, Header(run_id="test", started_s=NOW))
        self.problems: list[tuple[str, str]] = []
        self.forwarder = Forwarder(folder, 0, [tracker], guard=self._guard, on_problem=self._problem, interval_s=0.05)
        self.windows = 0

    def _guard(self, name: str, fn: Callable[[], T]) -> T | None:
        try:
            return fn()
        except Exception as exc:
            self.problems.append((name, repr(exc)))
            return None

    def _problem(self, name: str, message: str) -> None:
        self.problems.append((name, message))

    def write(self, windows: int) -> None:
        for _ in range(windows):
            number = self.windows
            metrics = {f"m{i}": number + i / 10 for i in range(12)}
            self.recorder.write(
                WindowRecord(
                    time_s=NOW + number,
                    tracker_step=number,
                    duration_s=1.0,
                    metrics=metrics,
                    hardware={"job_cpus": 1.0},
                )
            )
            self.windows += 1
        self.recorder.flush()

    def wait(self, arrived: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not arrived():
            assert time.monotonic() < deadline, self.problems
            time.sleep(0.1)


def points(client: Any, run_id: str, key: str) -> list[tuple[int, int, float]]:
    return sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(run_id, key))


def test_a_server_that_is_killed_and_comes_back_loses_nothing(server: MlflowServer, tmp_path: Path) -> None:
    """Each point written before, during and after it is there exactly once, at its time, and so is the page."""
    client = mlflow.MlflowClient(server.uri)
    tracker = MlflowTracker.create_run(server.uri, "killed")
    run = Run(tmp_path, tracker)
    run.write(300)
    run.wait(lambda: len(points(client, tracker.run_id, "stallmeter/m0")) > 0)
    server.kill()
    try:
        run.write(300)
        run.forwarder.show(Page(tags={"primary": "x"}, headline="h", note="during", files={}, final=False))
    finally:
        server.start()
    run.write(300)
    run.forwarder.show(Page(tags={"primary": "x"}, headline="h", note="after", files={}, final=True))
    run.recorder.close()
    assert run.forwarder.close(60.0) == ()
    assert run.problems == []
    for i in (0, 11):
        expected = [(n, round((NOW + n) * 1000), pytest.approx(float(f"{n + i / 10:.4g}"))) for n in range(run.windows)]
        assert points(client, tracker.run_id, f"stallmeter/m{i}") == expected
    assert len(points(client, tracker.run_id, "system/stallmeter/job_cpus")) == 900
    info = client.get_run(tracker.run_id)
    assert "after" in info.data.tags[NOTE_TAG]
    assert info.info.status == "FINISHED"
    assert info.info.end_time is not None


def test_what_a_dead_server_missed_is_delivered_later(server: MlflowServer, tmp_path: Path) -> None:
    """The run ends on time and names what is left; a later sync sends exactly that."""
    client = mlflow.MlflowClient(server.uri)
    run_id = client.create_run(client.create_experiment("later")).info.run_id
    with FaultProxy(server.uri.removeprefix("http://")) as proxy:
        proxy.refuse()
        run = Run(tmp_path, MlflowTracker(proxy.uri, run_id))
        run.write(100)
        run.recorder.close()
        started = time.monotonic()
        [left] = run.forwarder.close(4.0)  # a fifth of it is for counting
        assert time.monotonic() - started < 30
        assert (left.points, left.page) == (1300, False)
        assert left.destination == f"{proxy.uri} run {run_id}"
        proxy.heal()
        progress: list[int] = []
        assert deliver(tmp_path, 0, MlflowTracker(proxy.uri, run_id), progress=progress.append) == 1300
        assert progress[-1] == 1300
        assert deliver(tmp_path, 0, MlflowTracker(proxy.uri, run_id)) == 0
    assert len(points(client, run_id, "stallmeter/m3")) == 100


def test_a_hung_server_does_not_delay_the_end(tmp_path: Path) -> None:
    """The training program's exit is late by no more than the budget."""
    with FaultServer(silent=True) as hung:
        tracker = MlflowTracker(f"http://{hung.address}", "0" * 32)
        run = Run(tmp_path, tracker)
        run.write(10)
        run.wait(lambda: bool(hung.requests))
        started = time.monotonic()
        [left] = run.forwarder.close(1.0)
        assert time.monotonic() - started < 20
        assert left.points == 130


def test_tags_note_and_files_reach_a_server(server: MlflowServer, tmp_path: Path) -> None:
    """The user's text stays, files arrive under the names of the page, and the run goes on."""
    client = mlflow.MlflowClient(server.uri)
    experiment = client.create_experiment("page")
    run_id = client.create_run(experiment, tags={NOTE_TAG: "My own words."}).info.run_id
    report = tmp_path / "a b.html"
    report.write_text("<p>ü")
    files = {"report.html": report, "data/a b.csv": report}
    tracker = MlflowTracker(server.uri, run_id)
    tracker.show(Page(tags={"primary": "x"}, headline="h", note="verdict", files=files, final=True))
    client.set_tag(run_id, "stallmeter.predicted_speedup", "1.3")
    tracker.show(Page(tags={"primary": "x"}, headline="h", note="verdict", files=files, final=True))
    tracker.close()
    run = client.get_run(run_id)
    assert "stallmeter.predicted_speedup" not in run.data.tags
    with pytest.raises(RefusedError) as refused:
        tracker._store.delete_tag(run_id, "stallmeter.predicted_speedup")
    assert refused.value.code == "RESOURCE_DOES_NOT_EXIST"
    assert run.data.tags[NOTE_TAG].startswith(f"My own words.\n\n{BEGIN}\n\nverdict [Full report](#/experiments/")
    assert run.data.tags["stallmeter.primary"] == "x"
    assert run.info.status == "RUNNING"
    for name in files:
        assert server.artifact(run_id, f"stallmeter/{name}").decode() == "<p>ü"


def test_a_server_refuses_an_unknown_and_a_deleted_run(server: MlflowServer, tmp_path: Path) -> None:
    """One message, and the forwarding to it stops."""
    run = Run(tmp_path, MlflowTracker(server.uri, "0" * 32))
    run.write(1)
    run.wait(lambda: bool(run.problems))
    run.write(1)
    [left] = run.forwarder.close(5.0)
    run.recorder.close()
    assert left.points == 26
    [(name, message)] = run.problems
    assert name == "mlflow"
    assert "RESOURCE_DOES_NOT_EXIST" in message

    tracker = MlflowTracker.create_run(server.uri, "deleted run")
    mlflow.MlflowClient(server.uri).delete_run(tracker.run_id)
    with pytest.raises(TrackerError, match="has been deleted"):
        deliver(tmp_path, 0, tracker)


def test_the_first_steps_are_seen_one_by_one(server: MlflowServer, tmp_path: Path) -> None:
    """A slow start is visible step by step on the server."""
    recorder = Recorder(tmp_path, Header(run_id="test", started_s=NOW))
    for index in range(300):
        recorder.write(
            StepRecord(
                index=index,
                epoch=0,
                optimizer_step=index,
                tracker_step=index,
                samples=8,
                time_s=NOW + index,
                total_s=0.05,
                data_wait_s=0.02,
            )
        )
    recorder.close()
    tracker = MlflowTracker.create_run(server.uri, "first steps")
    deliver(tmp_path, 0, tracker)
    client = mlflow.MlflowClient(server.uri)
    found = points(client, tracker.run_id, "stallmeter/first_steps/data_wait_ms")
    assert found == [(n, round((NOW + n) * 1000), 20.0) for n in range(200)]
    experiment = client.get_experiment_by_name("first steps")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
