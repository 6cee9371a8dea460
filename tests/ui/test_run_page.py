"""What a user sees: the page of a run that stallmeter has fed, in a real browser on a real MLflow server."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stallmeter.delivery.delivery import deliver
from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.recording import Header, Recorder
from stallmeter.records import StepRecord, WindowRecord
from stallmeter.records.interfaces import Page

from ..servers import MlflowServer
from .conftest import Browser

pytestmark = [pytest.mark.ui, pytest.mark.server, pytest.mark.timeout(600)]

HEADLINE = (
    "**Too few workers: 64 % of the training time is data wait.** "
    "Set `num_workers=6` (now 2): predicted +148 % throughput."
)
NOTE = f"""{HEADLINE}

| where the time went | s | share |
|---|---:|---:|
| data wait | 386.4 | **64.4 %** |
| backward | 91.2 | 15.2 % |
| forward | 68.3 | 11.4 % |
| optimizer | 31.0 | 5.2 % |
| everything else | 23.1 | 3.8 % |

**What to do**

1. `DataLoader(…, num_workers=6)`: the workers compute 41 ms a batch, the loop needs 8 ms; 7.6 of 8 CPUs are free.
2. Keep `persistent_workers=True`: each epoch started 2.1 s late.
"""
STEP_CHARTS = ("data_wait_max_ms", "data_wait_ms", "data_wait_pct", "samples_per_s", "step_time_ms", "step_time_p95_ms")
HARDWARE_CHARTS = ("cpu_iowait_pct", "disk_read_mb_per_s", "gpu0_util_pct", "job_cpus", "others_cpus", "usable_cpus")


@dataclass
class FedRun:
    url: str
    """Address of the run's page."""


@pytest.fixture(scope="module")
def fed_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FedRun]:
    """A run of ten minutes with its own loss and parameters, and what the real tracker sent of a recording."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    folder = tmp_path_factory.mktemp("fed")
    started_s = time.time() - 600
    server = MlflowServer(folder / "server").start()
    try:
        client = MlflowClient(server.uri)
        experiment = client.create_experiment("stallmeter")
        run = client.create_run(
            experiment, start_time=round(started_s * 1e3), run_name="example with made-up values"
        ).info.run_id
        losses = [
            Metric("train_loss", round(2.3 * math.exp(-i / 200), 4), round(1e3 * (started_s + i)), 16 * i)
            for i in range(1, 600)
        ]
        client.log_batch(run, metrics=losses, params=[Param("batch_size", "64"), Param("lr", "0.1")])
        tracker = MlflowTracker(server.uri, run)
        record(folder / "recording", started_s)
        deliver(folder / "recording", 0, tracker)
        tracker.show(page(folder))
        tracker.close()
        client.set_terminated(run)
        yield FedRun(f"{server.uri}/#/experiments/{experiment}/runs/{run}")
    finally:
        server.kill()


def record(folder: Path, started_s: float) -> None:
    """Write a recording of a run whose loader is too slow and slower in the middle."""
    recorder = Recorder(folder, Header(run_id="ui", started_s=started_s))
    for index in range(200):
        wait_s = 0.9 if index == 0 else 0.041 + 0.01 * (index % 16 == 0)
        recorder.write(
            StepRecord(
                index=index,
                epoch=0,
                optimizer_step=index + 1,
                tracker_step=index,
                samples=64,
                time_s=started_s + 0.06 * index,
                total_s=wait_s + 0.023,
                data_wait_s=wait_s,
            )
        )
    noise = random.Random(7)
    for window in range(1, 61):
        wave = noise.uniform(-1, 1)
        wait_ms = 41.0 + 6.0 * wave + (35.0 if 28 <= window <= 33 else 0.0)
        step_ms = wait_ms + 22.7 + 0.4 * wave
        recorder.write(
            WindowRecord(
                time_s=started_s + 10.0 * window,
                tracker_step=160 * window,
                duration_s=10.0,
                metrics={
                    "data_wait_ms": wait_ms,
                    "data_wait_p95_ms": wait_ms * 1.6,
                    "data_wait_max_ms": wait_ms * 2.4 + 9.0,
                    "data_wait_pct": 100.0 * wait_ms / step_ms,
                    "step_time_ms": step_ms,
                    "step_time_p95_ms": step_ms * 1.35,
                    "step_time_max_ms": step_ms * 1.9 + 9.0,
                    "samples_per_s": 64e3 / step_ms,
                    "steps_per_s": 1e3 / step_ms,
                },
                hardware={
                    "cpu_iowait_pct": 1.2 + 0.4 * wave,
                    "disk_read_mb_per_s": 34.0 + 5.0 * wave,
                    "gpu0_memory_pct": 61.5,
                    "gpu0_power_w": 142.0 + 12.0 * wave,
                    "gpu0_util_pct": 31.0 + 4.0 * wave - (14.0 if 28 <= window <= 33 else 0.0),
                    "job_cpus": 2.6 + 0.2 * wave,
                    "job_rss_gb": 5.1 + window / 400,
                    "others_cpus": 0.3 + (3.9 if 28 <= window <= 33 else 0.1 * wave),
                    "usable_cpus": 8.0,
                },
            )
        )
    recorder.close()


def page(folder: Path) -> Page:
    """The final page with a report and a chart as files."""
    from PIL import Image, ImageDraw

    report = folder / "report.html"
    report.write_text("<!doctype html><h1>stallmeter</h1><p id=proof>The whole report</p>")
    chart = folder / "phases.png"
    image = Image.new("RGB", (640, 40), "white")
    draw, left = ImageDraw.Draw(image), 0.0
    for share, colour in ((64.4, "#d1495b"), (15.2, "#30638e"), (11.4, "#00798c"), (5.2, "#edae49"), (3.8, "#9a9a9a")):
        draw.rectangle((left, 0, left + 6.4 * share, 40), fill=colour)
        left += 6.4 * share
    image.save(chart)
    tags = {"primary": "too-few-workers", "data_wait_pct": "64.4", "num_workers": "2"}
    files = {"report.html": report, "phases.png": chart}
    return Page(tags=tags, headline=HEADLINE, note=NOTE, files=files, final=True)


@pytest.fixture(scope="module")
def run_page(browser: Browser, fed_run: FedRun) -> str:
    """The address of the run's page, with MLflow's side panel out of the way."""
    browser.open(fed_run.url, "Too few workers")
    browser.tidy_mlflow()
    return fed_run.url


def test_the_overview_shows_the_verdict_without_our_markers(browser: Browser, run_page: str) -> None:
    """The note stands on the run's first page as rendered Markdown; its markers and asterisks cannot be seen."""
    text = browser.open(run_page, "Too few workers", "stallmeter.primary", "Full report")
    assert "64 % of the training time is data wait." in text
    assert "stallmeter:begin" not in text
    assert "**" not in text
    browser.click("//*[@data-testid='show-comment-toggle']")
    loaded = "return [...document.images].some(i => i.src.includes('phases.png') && i.naturalWidth > 0)"
    browser.until(lambda: browser.driver.execute_script(loaded), "the chart inside the note")
    assert browser.save("mlflow-overview", browser.scratch).stat().st_size > 20_000


def test_the_link_in_the_note_opens_the_report(browser: Browser, run_page: str) -> None:
    """The link in the verdict's line leads to the uploaded report."""
    browser.open(run_page, "Full report")
    link = browser.driver.find_element("link text", "Full report").get_attribute("href")
    browser.open(link, "report.html")
    browser.until(lambda: browser.driver.find_elements("tag name", "iframe"), "the report's frame")
    browser.driver.switch_to.frame(browser.driver.find_element("tag name", "iframe"))
    try:
        browser.until(lambda: "The whole report" in browser.text(), "the report's text")
    finally:
        browser.driver.switch_to.default_content()


def test_step_metrics_are_charts_on_the_model_metrics_tab(browser: Browser, run_page: str) -> None:
    """Each step metric has a chart under its whole name, above the user's own metrics."""
    text = browser.open(f"{run_page}/model-metrics", *STEP_CHARTS)
    browser.until(lambda: len(browser.driver.find_elements("css selector", ".js-line")) >= 6, "six drawn curves")
    browser.save("mlflow-model-metrics", browser.scratch)
    assert text.index("stallmeter") < text.index("data_wait_ms")
    assert "gpu0_util_pct" not in text


def test_hardware_is_charts_on_the_system_metrics_tab(browser: Browser, run_page: str) -> None:
    """Hardware stands on the tab for system metrics."""
    text = browser.open(f"{run_page}/system-metrics", *HARDWARE_CHARTS)
    browser.until(lambda: len(browser.driver.find_elements("css selector", ".js-line")) >= 6, "six drawn curves")
    browser.save("mlflow-system-metrics", browser.scratch)
    assert "system/stallmeter" in text
    assert "data_wait_ms" not in text
