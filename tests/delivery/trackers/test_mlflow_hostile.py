"""Names that somebody chose to break things, and passwords: through a whole run into a real MLflow and every report."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

mlflow = pytest.importorskip("mlflow")

from stallmeter import Monitor  # noqa: E402
from stallmeter.cli import main  # noqa: E402
from stallmeter.delivery.delivery import deliver  # noqa: E402
from stallmeter.delivery.sync import sync  # noqa: E402
from stallmeter.delivery.trackers.mlflow import MlflowTracker  # noqa: E402
from stallmeter.delivery.trackers.mlflow.note import NOTE_TAG  # noqa: E402
from stallmeter.recording import Header, Recorder  # noqa: E402
from stallmeter.records import UserMetrics  # noqa: E402
from stallmeter.report import markdown  # noqa: E402

from ...servers import FaultProxy, MlflowServer  # noqa: E402
from .runs import History, sync_patiently  # noqa: E402

NASTY = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a\nb\r\n\n# c\x00\x1b[31m",
    "x" * 10_000,
    "caf\udce9 \ud800",
    "[a](javascript:alert(1)) ![b](http://c) | `d` ***",
    "'; DROP TABLE metrics; --",
    "../../../etc/passwd",
    "%s%n{0}{}$HOME",
    "-->",
    "\u202egnp.exe",
)
NAMES = st.sampled_from(NASTY) | st.text(st.characters(), min_size=1, max_size=300)


def in_run(uri: str, run_id: str) -> History:
    client = mlflow.MlflowClient(uri)
    keys = client.get_run(run_id).data.metrics
    return {k: sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(run_id, k)) for k in keys}


@settings(max_examples=25)
@given(st.dictionaries(NAMES, st.floats(), max_size=8))
@example({name: float(i) for i, name in enumerate(NASTY)})
def test_no_metric_name_breaks_a_batch(
    sqlite_uri: str, tmp_path_factory: pytest.TempPathFactory, metrics: dict[str, float]
) -> None:
    """Every finite value arrives, beside a harmless neighbour in the same batch, and MLflow rejects none."""
    folder = tmp_path_factory.mktemp("names")
    recorder = Recorder(folder, Header(run_id="names", started_s=1.7e9))
    recorder.write(UserMetrics(time_s=1.7e9, tracker_step=1, metrics=metrics))
    recorder.write(UserMetrics(time_s=1.7e9, tracker_step=2, metrics={"harmless": 1.0}))
    recorder.close()
    tracker = MlflowTracker(sqlite_uri, mlflow.MlflowClient(sqlite_uri).create_run("0").info.run_id)
    sent = deliver(folder, 0, tracker)
    assert not tracker._batches.left_out
    found = in_run(sqlite_uri, tracker.run_id)
    assert len(found["stallmeter/user/harmless"]) >= 1
    assert 1 <= sum(map(len, found.values())) <= sent


def run_with(directory: Path, tracker: MlflowTracker, name: str) -> Monitor:
    """A real run whose callback, logger, metric and exception have this name."""
    with Monitor(directory=directory, trackers=tracker, interval_s=0.05, close_budget_s=60) as monitor:
        callback, logger = monitor.span("callbacks", name), monitor.span("logging", name)
        for _ in monitor.watch([[0] * 4] * 40):
            with callback:
                sum(range(20_000))
            with logger:
                sum(range(1000))
            monitor.log({name: 1.0})
    assert monitor.finish()
    return monitor


@pytest.mark.long
@pytest.mark.usefixtures("drawings")
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES)
@example("".join(NASTY[:3]) + "".join(NASTY[4:]))
@example(NASTY[3])
def test_no_name_escapes_from_a_report(sqlite_uri: str, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """The folder has a name that is no text, the host and a callback a hostile one: nothing of it acts anywhere."""
    folder = tmp_path_factory.mktemp("run") / os.fsdecode(b"<b>caf\xe9 [x](y)")
    tracker = MlflowTracker(sqlite_uri, mlflow.MlflowClient(sqlite_uri).create_run("0").info.run_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: name)
        monitor = run_with(folder, tracker, name)
    assert not monitor.run.guard._named
    assert monitor.undelivered == ()
    assert monitor.folder is not None
    tags = mlflow.MlflowClient(sqlite_uri).get_run(tracker.run_id).data.tags
    assert len(tags[NOTE_TAG]) <= 5000
    for shown in ((monitor.folder / "report.md").read_text(), _ours(tags[NOTE_TAG])):
        assert re.search(r"<(?!0\.1 %)", shown) is None
        assert re.search(r"(?<!\\)!\[(?!phases\])", shown) is None
    for form in ("text", "markdown", "json", "html"):
        target = folder / f"again.{form}"
        assert main(["report", str(monitor.folder), "--format", form, "--output", str(target)]) == 0
        text = target.read_text(encoding="utf-8")
        if form == "json":
            json.loads(text)
        assert form in ("text", "json") or "<script>alert" not in text
        assert "<img src=x" not in text or form in ("text", "json")
    assert (monitor.folder / "steps.csv").read_text().isascii()


def _ours(note: str) -> str:
    """Our section without the two marks around it."""
    return note.replace("<!-- stallmeter:begin -->", "").replace("<!-- stallmeter:end -->", "")


# --------------------------------------------------------------------------------------------------------- secrets

SECRETS = ("s3cretpw", "t0kenvalue", "qu3rypw", "envpw")


def assert_nowhere(folder: Path, *texts: str) -> None:
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in SECRETS:
            assert secret.encode() not in content, path
            assert secret not in str(path)
    for text in texts:
        for secret in SECRETS:
            assert secret not in text


@pytest.mark.long
@pytest.mark.server
@pytest.mark.usefixtures("drawings")
@pytest.mark.parametrize("fault", ["none", "refused", "hung", 500, 401])
def test_no_password_comes_out(
    server: MlflowServer,
    fault: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Not into the recording, the cursor, a report, the log, the console, a tag, the note or an artifact."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "someone")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "envpw")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0kenvalue")
    caplog.set_level(logging.DEBUG, "stallmeter")
    client = mlflow.MlflowClient(server.uri)
    run_id = client.create_run("0").info.run_id
    with FaultProxy(server.uri.removeprefix("http://")) as proxy:
        if fault == "refused":
            proxy.refuse()
        elif fault != "none":
            proxy.fault = fault
        uri = proxy.uri.replace("//", "//someone:s3cretpw@")
        tracker = MlflowTracker(uri, run_id, timeout_s=(0.5, 0.5))
        options: dict[str, Any] = {"directory": tmp_path / "rec", "interval_s": 0.05, "period_s": 0.1}
        with Monitor(trackers=tracker, close_budget_s=20 if fault == "none" else 1, **options) as monitor:
            monitor.window.facts["tracking"] = f"{uri}?password=qu3rypw"
            for _ in monitor.watch(range(30)):
                monitor.log({"x": 1.0})
        assert monitor.finish() == (fault == "none")
        assert monitor.folder is not None
        assert bool(monitor.undelivered) == (fault != "none")
        proxy.heal()
        sync_patiently(monitor.folder)
        assert main(["sync", str(monitor.folder), "--to", uri, "--run-id", run_id]) == 0
    out, err = capfd.readouterr()
    run = client.get_run(run_id)
    for name in ("report.md", "diagnosis.json", "steps.csv"):
        artifact = tmp_path / "artifacts" / name
        artifact.parent.mkdir(exist_ok=True)
        artifact.write_bytes(server.artifact(run_id, f"stallmeter/{name}"))
    assert_nowhere(tmp_path, caplog.text, out, err, repr(run.data.tags), repr(sorted(run.data.metrics)))


def test_no_password_of_a_database_comes_out(
    tmp_path: Path,
    new_database: Callable[[Path], str],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A database with a password in its query, which sqlite itself refuses."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG, "stallmeter")
    uri = f"{new_database(tmp_path / 'x.db')}?password=qu3rypw"
    with Monitor(directory=tmp_path / "rec", trackers=MlflowTracker(uri, "0" * 32), close_budget_s=5) as monitor:
        for _ in monitor.watch(range(30)):
            monitor.log({"x": 1.0})
    assert monitor.undelivered
    assert monitor.folder is not None
    with pytest.raises(Exception) as caught:  # whatever it is, it must not tell
        sync(monitor.folder)
    out, err = capfd.readouterr()
    assert_nowhere(tmp_path, caplog.text, out, err, str(caught.value), markdown.escape(uri))
