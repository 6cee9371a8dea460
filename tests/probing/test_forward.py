"""The result on the page of a real MLflow run, and trackers that fail."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import stallmeter
from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.errors import TrackerError, TrackerUnavailableError
from stallmeter.probing import forward as forwarding
from stallmeter.probing.forward import closing, forward, points
from stallmeter.records.interfaces import Page, Point

from ..conftest import ListTracker
from .test_show import EMPTY, RESULT


@pytest.fixture
def run(tmp_path: Path, new_database: Callable[[Path], str]) -> Iterator[tuple[MlflowClient, str, str]]:
    uri = new_database(tmp_path / "mlflow.db")
    client = MlflowClient(uri)
    experiment = client.create_experiment("probe", artifact_location=(tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    client.set_tag(run_id, "mlflow.note.content", "the verdict")
    return client, uri, run_id


def test_mlflow(run: tuple[MlflowClient, str, str], tmp_path: Path) -> None:
    client, uri, run_id = run
    forward(RESULT, [MlflowTracker(uri, run_id)])
    found = client.get_run(run_id)
    metrics = found.data.metrics
    assert metrics["stallmeter/probe/free_data_samples_per_s"] == 1600
    assert metrics["stallmeter/probe/together_step_time_ms"] == 100
    assert metrics["stallmeter/probe/headspace_pct"] == 400
    curve = client.get_metric_history(run_id, "stallmeter/probe/samples_per_s_by_num_workers")
    assert {point.step: point.value for point in curve} == {0: 320, 2: 800, 4: 1280, 8: 1290}
    assert found.data.tags["stallmeter.probe.headspace_pct"] == "400.0"
    assert found.data.tags["stallmeter.probe.num_workers"] == "4"
    assert found.data.tags["mlflow.note.content"] == "the verdict"
    assert found.info.status == "RUNNING"
    folder = Path(client.download_artifacts(run_id, "stallmeter", str(tmp_path)))
    assert json.loads((folder / "probe.json").read_text())["headspace_pct"] == pytest.approx(400)
    assert (folder / "probe.md").read_text().startswith("**The run reaches")


@pytest.mark.long
def test_the_active_run_is_found(run: tuple[MlflowClient, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` takes the run that the user has; None leaves it alone."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    client, uri, run_id = run
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    network = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        network(batch[0]).sum().backward()
        optimizer.step()

    loader = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8)
    stallmeter.probe(step=step, loader=loader, seconds=0.02, trackers=None)
    assert client.get_run(run_id).data.metrics == {}
    stallmeter.probe(step=step, loader=loader, seconds=0.02)
    assert client.get_run(run_id).data.metrics["stallmeter/probe/together_samples_per_s"] > 0


def test_points_of_nothing() -> None:
    assert list(points(EMPTY, 1.0)) == []
    assert {point.group for point in points(RESULT, 1.0)} == {"steps"}


class Failing(ListTracker):
    """Fails so many times."""

    def __init__(self, error: Exception, times: int) -> None:
        super().__init__()
        self.error, self.times = error, times

    def show(self, page: Page) -> None:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        super().show(page)

    def close(self) -> None:
        raise self.error


def test_a_tracker_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "WAIT_S", 0.0)
    tracker = Failing(TrackerUnavailableError("busy"), 2)
    forward(RESULT, [tracker])
    assert len(tracker.pages) == 1
    assert tracker.pages[0].files.keys() == {"probe.json", "probe.md"}


@pytest.mark.parametrize("error", [TrackerUnavailableError("busy"), TrackerError("no"), ConnectionError("of its own")])
def test_a_tracker_that_fails_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others get the result all the same, and so does the user."""
    monkeypatch.setattr(forwarding, "WAIT_S", 0.0)
    other = ListTracker()
    with caplog.at_level(logging.WARNING), closing(Failing(error, 99)) as tracker:
        forward(RESULT, [tracker, other])
    assert f"did not reach memory: {error}" in caplog.text
    assert f"memory could not be closed: {error}" in caplog.text
    assert len(other.pages) == 1
    assert isinstance(other.points[0], Point)
