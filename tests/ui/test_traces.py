"""The slow steps of a run in the Traces tab of MLflow, in a real browser."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from stallmeter.delivery.trackers.mlflow import MlflowTracker

from ..delivery.trackers.test_mlflow_traces import final_page
from ..servers import MlflowServer
from .conftest import Browser

mlflow = pytest.importorskip("mlflow")
pytestmark = [pytest.mark.ui, pytest.mark.server, pytest.mark.timeout(600)]


def test_a_slow_step_stands_in_the_traces_tab(server: MlflowServer, tmp_path: Path, browser: Browser) -> None:
    """Its length and its longest parts are in the list; opened, it has a span for each bucket."""
    client = mlflow.MlflowClient(server.uri)
    experiment = client.create_experiment("slow steps")
    run_id = client.create_run(experiment).info.run_id
    page = final_page(tmp_path)
    # The tab shows the last days only.
    page = replace(page, slow_steps=[replace(step, time_s=time.time() - 60) for step in page.slow_steps])
    MlflowTracker(server.uri, run_id, traces=2, upload_s=60).show(page)
    url = f"{server.uri}/#/experiments/{experiment}/runs/{run_id}/traces"
    browser.open(url)
    browser.tidy_mlflow()
    browser.open(url, "step 40 (slowest step), 500 ms: data_wait 460 ms")
    browser.save("mlflow-traces")
    browser.click("//*[contains(text(), 'step 40')]")
    parts = ("data_wait", "forward", "backward")
    browser.until(lambda: all(browser.named(part) for part in parts), f"spans {parts}")
    browser.save("mlflow-trace")
