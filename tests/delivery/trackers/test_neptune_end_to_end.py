"""Whole trainings with Neptune: Lightning into an offline run, forks that wait for a request, and sync."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallmeter import Monitor
from stallmeter.cli import main
from stallmeter.delivery.sync import sync
from stallmeter.delivery.trackers.neptune import NeptuneTracker
from stallmeter.errors import RecordingError

from .neptune_recordings import expected, record
from .neptune_servers import PROJECT, Neptune1Server, NeptuneScaleServer
from .test_neptune import QUIET, floored, let_go, offline_run, operations, series
from .test_neptune_scale import floored as floored_scale
from .test_neptune_scale import stored

neptune = pytest.importorskip("neptune")


@pytest.fixture(scope="module", autouse=True)
def _http_on_loopback() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
        yield


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEPTUNE_API_TOKEN", "NEPTUNE_PROJECT", "NEPTUNE_MODE", "NEPTUNE_CUSTOM_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def log_into(server: Neptune1Server | NeptuneScaleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_API_TOKEN", server.token)


# -- Lightning ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("drawings")
def test_a_lightning_training_into_an_offline_run(tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    torch = pytest.importorskip("torch")
    from stallmeter.lightning import StallMonitor

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    run = offline_run()
    callback = StallMonitor(trackers=run, directory=tmp_path / "rec", console=False, period_s=0.05, interval_s=0.02)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=3,
        accumulate_grad_batches=2,  # two batches share a step
        callbacks=[callback],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(80, 4), batch_size=4))
    assert callback.monitor.undelivered == ()
    assert run.get_state() == "started"
    run.stop()
    found = operations(run)
    wanted = expected(callback.monitor.folder)
    assert len(wanted["stallmeter/first_steps/step_time_ms"]) == 60
    assert len({step for step, _, _ in wanted["stallmeter/first_steps/step_time_ms"]}) == 30
    assert "stallmeter/step_time_ms" in wanted
    assert any(path.startswith("stallmeter/hardware/") for path in wanted)
    assert floored(series(found)) == wanted
    last = {"/".join(o["path"]): o["value"] for o in found if o["type"].startswith("Assign")}
    assert last["stallmeter/summary/steps"] == 60
    assert last["stallmeter/summary/note"]
    assert last["stallmeter/summary/ledger/forward_s"] > 0
    uploaded = {"/".join(o["path"]) for o in found if o["type"] == "UploadFile"}
    assert {"stallmeter/report.md", "stallmeter/diagnosis.json", "stallmeter/steps.csv"} <= uploaded


# -- forks that wait for the client's request ------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_fork_that_waits_for_the_client_is_not_blamed_on_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    torch = pytest.importorskip("torch")
    with Neptune1Server() as server:
        log_into(server, monkeypatch)
        run = neptune.init_run(project=PROJECT, **QUIET)
        loader = torch.utils.data.DataLoader(
            torch.ones(40, 4), batch_size=4, num_workers=1, multiprocessing_context="fork"
        )
        with Monitor(directory=tmp_path / "rec", trackers=run, console=False, hardware=False) as monitor:
            for _ in range(epochs):
                server.hangs.set()
                asked = len(server.requests)
                for _ in range(1200):  # enough to wake the client's thread at once
                    run["mine"].append(1.0)
                deadline = time.monotonic() + 30
                while len(server.requests) == asked and time.monotonic() < deadline:
                    time.sleep(0.01)
                threading.Timer(1.5, server.hangs.clear).start()
                for _batch in monitor.watch(loader):
                    pass
        run.stop()
    ledger = monitor.window.ledger.record
    assert ledger is not None
    assert monitor.window.workers.fork_s is not None
    assert monitor.window.workers.fork_s >= 1.0 * epochs
    assert ledger.buckets["worker_startup"] >= 1.0 * epochs
    assert ledger.buckets["data_wait"] < 1.0
    primary = monitor.verdict.primary
    assert primary is None or primary.rule in ("worker-startup", "compute-bound")
    if epochs > 1:
        assert primary is not None
        assert primary.culprit == "a fork handler of another package"


# -- sync --------------------------------------------------------------------------------------------------------------


def test_sync_makes_a_run_on_a_server_and_repeating_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record(tmp_path / "20260101-120000-abcdef", windows=30)
    with Neptune1Server() as server:
        log_into(server, monkeypatch)
        assert main(["sync", str(folder), "--to", f"neptune://{PROJECT}"]) == 0
        assert f"121 points sent to neptune://{PROJECT} run {folder.name}" in capsys.readouterr().out
        before = server.run.series("stallmeter/data_wait_ms")
        assert len(before) == 30
        assert sync(folder, tracking_uri=f"neptune://{PROJECT}").points == 0
        assert server.run.series("stallmeter/data_wait_ms") == before
        assert sync(folder, tracking_uri=f"neptune://{PROJECT}", run_id="another").points == 121
        assert [run.custom_id for run in server.runs.values()] == [folder.name, "another"]


@pytest.mark.long
def test_sync_goes_on_where_an_interrupted_one_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = record(tmp_path / "rec", windows=600)

    def stop_early(done: int, total: int) -> None:
        assert total == 2401
        raise KeyboardInterrupt

    with Neptune1Server() as server:
        log_into(server, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            sync(folder, tracking_uri=f"neptune://{PROJECT}", progress=stop_early)
        sync(folder, tracking_uri=f"neptune://{PROJECT}")
        for path, points in expected(folder).items():
            assert [(int(s), v, ms / 1000) for s, v, ms in server.run.series(path)] == points


@pytest.mark.long
def test_an_outage_of_a_whole_run_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was to be made on a server that never answered; ``sync`` makes it and delivers everything once."""
    with Neptune1Server() as server:
        log_into(server, monkeypatch)
        monkeypatch.setenv("NEPTUNE_PROJECT", PROJECT)
        server.refuses_with = 503
        monkeypatch.setattr("neptune.common.backends.utils.MAX_RETRY_TIME", 1)
        options: dict[str, Any] = {"console": False, "hardware": False, "workers": False, "close_budget_s": 1.0}
        tracker = NeptuneTracker.open_run(patience_s=0.2)
        with Monitor(directory=tmp_path / "rec", trackers=tracker, **options) as monitor:
            for _ in monitor.watch([[0] * 4] * 50):
                pass
        (left,) = monitor.undelivered
        server.refuses_with = None
        let_go()
        assert main(["sync", str(monitor.folder)]) == 0
        assert monitor.folder is not None
        wanted = expected(monitor.folder)
        assert 0 < left.points <= sum(map(len, wanted.values()))
        (run,) = (run for run in server.runs.values() if run.operations)
        assert f"neptune://{PROJECT} run {run.custom_id}" == left.destination
        for path, points in wanted.items():
            assert [(int(s), v) for s, v, _ in run.series(path)] == [(s, v) for s, v, _ in points]


@pytest.mark.long
def test_sync_makes_a_run_of_neptune_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = record(tmp_path / "rec", windows=10)
    with NeptuneScaleServer() as server:
        log_into(server, monkeypatch)
        assert sync(folder, tracking_uri=f"neptune-scale://{PROJECT}").points == 41
        assert expected(folder) == floored_scale(server.runs[f"{PROJECT}/rec"].series)


@pytest.mark.parametrize("client", ["neptune", "neptune-scale"])
def test_sync_makes_an_offline_run(tmp_path: Path, client: str) -> None:
    folder = record(tmp_path / "rec", windows=10)
    done = sync(folder, tracking_uri=f"{client}+offline:")
    assert done.points == 41
    assert str(tmp_path / ".neptune") in done.destination
    if client == "neptune-scale":
        assert expected(folder) == floored_scale(stored(tmp_path).series)


def test_sync_of_a_run_that_only_its_program_can_reach_says_so(tmp_path: Path) -> None:
    run = offline_run()
    with Monitor(directory=tmp_path / "rec", trackers=run, console=False, hardware=False, workers=False) as monitor:
        pass
    run.stop()
    assert monitor.folder is not None
    with pytest.raises(RecordingError, match=r"--to neptune://WORKSPACE/PROJECT"):
        sync(monitor.folder)
