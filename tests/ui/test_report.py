"""The HTML report of a real run in a real browser: from a disk without a network, and inside MLflow's frame."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallmeter.recording import find_recording

from ..servers import MlflowServer
from .conftest import Browser

pytestmark = [pytest.mark.ui, pytest.mark.server, pytest.mark.timeout(600)]

CHARTS = {"phases", "step-times", "distribution", "lanes", "cpu", "memory"}
"""Charts that every Lightning run on Linux has; disks, network and GPUs depend on the machine."""

DRAWN = """
return Object.fromEntries([...document.querySelectorAll('.drawing')].map(
    plot => [plot.id, [plot.dataset.drawn, plot.querySelectorAll('svg path').length]]))
"""
OVERFLOW = """
const wide = [...document.querySelectorAll('body *')].filter(
    e => !e.closest('.scroll, svg') && e.getBoundingClientRect().right > window.innerWidth + 1);
return [document.documentElement.scrollWidth - window.innerWidth, wide.map(e => e.tagName + '.' + e.className)]
"""
OVERLAPS = """
const boxes = [...document.querySelectorAll('.drawing')].flatMap(plot =>
    [['x', '.xtick text'], ['y', '.ytick text']].map(([axis, labels]) =>
        [plot.id + ' ' + axis, [...plot.querySelectorAll(labels)].map(e => e.getBoundingClientRect())]));
const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
return boxes.filter(([, all]) => all.some((a, i) => all.slice(i + 1).some(b => touch(a, b)))).map(([name]) => name)
"""
FETCHED = "return performance.getEntriesByType('resource').map(e => e.name).filter(n => !/^(data|blob|file):/.test(n))"
COLOUR = "return getComputedStyle(document.querySelector('#phases .point path')).fill"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of the demo: a real training on real JPEG files."""
    folder = tmp_path_factory.mktemp("demo")
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-m", "stallmeter", "demo", "--dir", str(folder), "--epochs", "8"]
    subprocess.run(command, check=True, timeout=500, env=environment, stdout=subprocess.DEVNULL)
    return find_recording(folder / "stallmeter")


@pytest.fixture
def offline(browser: Browser) -> Iterator[Browser]:
    """The browser cut off from every network."""
    command = browser.driver.execute_cdp_cmd
    command("Network.enable", {})
    command("Network.setBlockedURLs", {"urls": ["http://*", "https://*", "ws://*", "wss://*"]})
    browser.complaints()
    yield browser
    command("Network.setBlockedURLs", {"urls": []})
    command("Network.disable", {})
    browser.plain()


def drawn(browser: Browser, tone: str) -> dict[str, list[object]]:
    """Wait until every chart is drawn in this tone, and return what each consists of."""

    def all_drawn() -> dict[str, list[object]] | None:
        found: dict[str, list[object]] = browser.driver.execute_script(DRAWN)
        return found if found and all(was == tone for was, _ in found.values()) else None

    found: dict[str, list[object]] = browser.until(all_drawn, f"every chart drawn {tone}")
    return found


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_the_report_from_a_disk(offline: Browser, recording: Path, width: int, dark: bool) -> None:
    """Without a network, light and dark, on a screen and on a phone: all drawn, nothing cut off, no complaint."""
    offline.look(width=width, dark=dark)
    offline.open((recording / "report.html").as_uri(), "Where the time went", "What was not measured")
    charts = drawn(offline, "dark" if dark else "light")
    assert set(charts) >= CHARTS
    assert all(int(str(paths)) > 3 for _, paths in charts.values()), charts
    assert offline.driver.execute_script(OVERFLOW) == [0, []]
    assert offline.driver.execute_script(OVERLAPS) == []
    assert offline.driver.execute_script(FETCHED) == []
    assert offline.complaints() == []


def test_the_tone_follows_the_system(offline: Browser, recording: Path) -> None:
    """When the system turns dark, the charts are drawn again in other colours, without a reload."""
    offline.look(width=1280)
    offline.open((recording / "report.html").as_uri(), "Where the time went")
    drawn(offline, "light")
    light = offline.driver.execute_script(COLOUR)
    offline.look(width=1280, dark=True)
    drawn(offline, "dark")
    assert offline.driver.execute_script(COLOUR) != light


def test_pictures_for_the_docs(offline: Browser, recording: Path) -> None:
    """What the README and the how-to show."""
    for name, dark, anchor, height in (("report", False, "verdict", 1130), ("report-details", True, "steps", 900)):
        offline.look(width=1280, height=height, dark=dark)
        offline.open((recording / "report.html").as_uri(), "Where the time went")
        drawn(offline, "dark" if dark else "light")
        if anchor != "verdict":
            offline.driver.execute_script(f"document.getElementById('{anchor}').scrollIntoView()")
        assert offline.save(name).stat().st_size > 20_000


@pytest.fixture(scope="module")
def run_page(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the demo's run, on a server that has the database which the demo wrote."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("server")
    shutil.copy(recording.parents[1] / "mlflow.db", folder / "server.db")
    server = MlflowServer(folder).start()
    try:
        client = MlflowClient(server.uri)
        experiment = client.get_experiment_by_name("stallmeter-demo")
        assert experiment is not None
        run = client.search_runs([experiment.experiment_id])[0].info.run_id
        yield f"{server.uri}/#/experiments/{experiment.experiment_id}/runs/{run}"
    finally:
        server.kill()


def test_mlflow_shows_the_demo(browser: Browser, run_page: str) -> None:
    """The verdict and the phase chart in the run's description, the curves on both metric pages."""
    browser.plain()
    browser.open(run_page, "Full report")
    browser.tidy_mlflow()
    browser.open(run_page, "Full report", "stallmeter.primary")
    browser.click("//*[@data-testid='show-comment-toggle']")
    shown = "return [...document.images].some(i => i.src.includes('phases.png') && i.naturalWidth === 1200)"
    browser.until(lambda: browser.driver.execute_script(shown), "the phase chart inside the description")
    browser.save("mlflow-overview")
    for page, key in (("model-metrics", "data_wait_ms"), ("system-metrics", "job_cpus")):
        browser.open(f"{run_page}/{page}", key)
        browser.until(lambda: len(browser.driver.find_elements("css selector", ".js-line")) >= 6, "six drawn curves")
        browser.save(f"mlflow-{page}")


def test_the_report_inside_mlflow(browser: Browser, run_page: str) -> None:
    """The link in the description leads to the report, drawn in a sandboxed frame that has no origin."""
    browser.plain()
    browser.open(run_page, "Full report")
    link = browser.driver.find_element("link text", "Full report").get_attribute("href")
    browser.open(link, "report.html")
    frame = browser.until(lambda: browser.driver.find_elements("tag name", "iframe"), "the report's frame")[0]
    assert frame.get_attribute("sandbox") == "allow-scripts"
    browser.driver.switch_to.frame(frame)
    try:
        browser.until(lambda: "Where the time went" in browser.text(), "the report's text")
        assert set(drawn(browser, "light")) >= CHARTS
        assert browser.driver.execute_script("return window.origin") == "null"
    finally:
        browser.driver.switch_to.default_content()
    assert browser.save("mlflow-report").stat().st_size > 20_000
