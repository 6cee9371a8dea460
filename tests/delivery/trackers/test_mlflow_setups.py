"""The ways in which people use MLflow: each run gets our points, and no run is ended, doubled or mixed up."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

mlflow = pytest.importorskip("mlflow")
lightning = pytest.importorskip("lightning.pytorch")

import torch  # noqa: E402

from stallmeter import Monitor  # noqa: E402
from stallmeter.delivery.sync import sync  # noqa: E402
from stallmeter.delivery.trackers.mlflow import MlflowTracker  # noqa: E402
from stallmeter.delivery.trackers.mlflow.note import NOTE_TAG  # noqa: E402
from stallmeter.errors import RecordingError, TrackerError, TrackerUnavailableError  # noqa: E402
from stallmeter.lightning import StallMonitor  # noqa: E402
from stallmeter.recording import Header, Recorder  # noqa: E402
from stallmeter.records import LedgerRecord, WindowRecord  # noqa: E402

from ...children import our_threads  # noqa: E402
from ...servers import MlflowServer  # noqa: E402
from .runs import in_mlflow, in_recording, train  # noqa: E402


@pytest.fixture(autouse=True)
def _at_home(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MLflow's global state is set for one test and put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(sqlite_uri)
    yield
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self.layer(batch[0]).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(folder: Path, *, epochs: int = 1, ckpt: Path | None = None, **options: Any) -> Any:
    """Train for 30 steps an epoch and return the monitor."""
    monitor = StallMonitor(directory=folder / "rec", period_s=0.2, interval_s=0.05, console=False, close_budget_s=60)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[monitor],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **{"logger": False, "enable_checkpointing": False, **options},
    )
    data = torch.utils.data.TensorDataset(torch.randn(120, 4))
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4), ckpt_path=ckpt)
    if ckpt is None:
        trainer.save_checkpoint(folder / "last.ckpt")
    assert monitor.monitor is not None
    assert monitor.monitor.undelivered == ()
    return monitor.monitor


def status(uri: str, run_id: str) -> str:
    found: str = mlflow.MlflowClient(uri).get_run(run_id).info.status
    return found


def test_autolog(sqlite_uri: str, tmp_path: Path) -> None:
    """Our points are in the run that autolog makes, beside its own, and it ends that run."""
    mlflow.pytorch.autolog(log_models=False, log_every_n_step=1)
    try:
        monitor = fit(tmp_path)
    finally:
        mlflow.pytorch.autolog(disable=True)
    run = mlflow.last_active_run()
    assert in_mlflow(sqlite_uri, run.info.run_id) == in_recording(monitor.folder)
    run = mlflow.get_run(run.info.run_id)
    assert "loss" in run.data.metrics
    assert run.info.status == "FINISHED"


def test_nested_runs(sqlite_uri: str, tmp_path: Path) -> None:
    """Each child gets the points of its own training, the parent none."""
    with mlflow.start_run() as parent:
        for _ in range(2):
            with mlflow.start_run(nested=True) as child:
                monitor = fit(tmp_path)
                assert in_mlflow(sqlite_uri, child.info.run_id) == in_recording(monitor.folder)
                assert status(sqlite_uri, child.info.run_id) == "RUNNING"
        assert in_mlflow(sqlite_uri, parent.info.run_id) == {}
        assert mlflow.active_run().info.run_id == parent.info.run_id


@pytest.mark.parametrize("how", ["argument", "environment", "logger"])
def test_a_run_id_given(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The run is used as it is; one that had ended keeps its status where nobody else opens it."""
    client = mlflow.MlflowClient(sqlite_uri)
    run_id = client.create_run("0", tags={NOTE_TAG: "Mine."}).info.run_id
    client.set_terminated(run_id, "FAILED")
    if how == "logger":
        logger = lightning.loggers.MLFlowLogger(tracking_uri=sqlite_uri, run_id=run_id)
        monitor = fit(tmp_path, logger=logger)
    else:
        if how == "environment":
            monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        monitor = train(tmp_path, "auto" if how == "environment" else MlflowTracker(sqlite_uri, run_id), budget_s=60)
        assert status(sqlite_uri, run_id) == "FAILED"
    assert in_mlflow(sqlite_uri, run_id) == in_recording(monitor.folder)
    assert client.get_run(run_id).data.tags[NOTE_TAG].startswith("Mine.")


def test_a_resumed_run(sqlite_uri: str, tmp_path: Path) -> None:
    """The first part's points stay, and the second's steps go on where it stopped."""
    with mlflow.start_run() as run:
        first = in_recording(fit(tmp_path).folder)
    with mlflow.start_run(run_id=run.info.run_id):
        second = in_recording(fit(tmp_path, epochs=2, ckpt=tmp_path / "last.ckpt").folder)
    both = {key: sorted([*first.get(key, ()), *second.get(key, ())]) for key in first.keys() | second.keys()}
    assert in_mlflow(sqlite_uri, run.info.run_id) == both
    key = "stallmeter/first_steps/step_time_ms"
    assert [step for step, _, _ in both[key]] == list(range(60)) or [step for step, _, _ in both[key]] == list(
        range(1, 61)
    )
    assert mlflow.get_run(run.info.run_id).data.tags[NOTE_TAG].count("stallmeter:begin") == 1


def test_a_run_made_by_us_is_ended_by_sync_when_we_could_not(sqlite_uri: str, tmp_path: Path) -> None:
    """A run that its program could not end is not left running for ever."""
    tracker = MlflowTracker.create_run(sqlite_uri)
    store: Any = tracker._store
    store.terminate = _unavailable
    monitor = train(tmp_path, tracker, budget_s=60)
    assert monitor.folder is not None
    assert status(sqlite_uri, tracker.run_id) == "RUNNING"
    sync(monitor.folder)
    assert status(sqlite_uri, tracker.run_id) == "FINISHED"
    assert in_mlflow(sqlite_uri, tracker.run_id) == in_recording(monitor.folder)


def test_a_run_made_by_us_fails_with_its_program(sqlite_uri: str, tmp_path: Path) -> None:
    """The status says whether the training came to its end."""
    tracker = MlflowTracker.create_run(sqlite_uri)
    with (
        pytest.raises(ZeroDivisionError),
        Monitor(directory=tmp_path, trackers=tracker, close_budget_s=60, console=False) as monitor,
    ):
        for _ in monitor.watch(range(10)):
            pass
        _ = 1 / 0
    assert monitor.finish()
    assert status(sqlite_uri, tracker.run_id) == "FAILED"


@pytest.mark.parametrize("by", ["MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", ""])
def test_a_run_made_by_us_goes_to_the_experiment_that_mlflow_is_set_up_with(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """``mlflow.set_experiment`` sets the number in the environment, too; another server knows neither."""
    from mlflow import MlflowClient

    client = MlflowClient(sqlite_uri)
    known = client.get_experiment_by_name("tests")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    if by:
        monkeypatch.setenv(by, known.experiment_id if by.endswith("ID") else "tests")

    tracker = MlflowTracker.create_run()
    tracker.close()

    made = client.get_experiment(client.get_run(tracker.run_id).info.experiment_id)
    assert made.name == ("tests" if by else "Default")


def _unavailable(*_: object) -> None:
    raise TrackerUnavailableError("down")


def _forwarders() -> list[threading.Thread]:
    return our_threads("stallmeter-forwarder")


def test_ranks_are_not_mixed(sqlite_uri: str, tmp_path: Path) -> None:
    """Only rank 0 was forwarded; another rank can be sent to a run of its own."""
    for rank in (0, 1):
        recorder = Recorder(tmp_path / "rec", Header(run_id="x", rank=rank, world_size=2, started_s=1.7e9, host="gone"))
        for number in range(5):
            metrics = {"step_time_ms": 10.0 * rank + number}
            record = WindowRecord(
                time_s=1.7e9 + number, tracker_step=number, duration_s=1.0, metrics=metrics, hardware={}
            )
            recorder.write(record)
        recorder.write(LedgerRecord(time_s=1.7e9 + 5, wall_s=5.0, steps=5, epochs=1, buckets={}))
        recorder.close()
        os.utime(recorder.path, (1.7e9, 1.7e9))
    first = sync(tmp_path / "rec", tracking_uri=sqlite_uri).destination.rpartition(" ")[2]
    with pytest.raises(RecordingError, match=r"rank 1 of .* pass --to URI"):
        sync(tmp_path / "rec", rank=1)
    second = sync(tmp_path / "rec", rank=1, tracking_uri=sqlite_uri).destination.rpartition(" ")[2]
    assert second != first
    assert in_mlflow(sqlite_uri, first) == in_recording(tmp_path / "rec", 0)
    assert in_mlflow(sqlite_uri, second) == in_recording(tmp_path / "rec", 1)
    with pytest.raises(RecordingError, match="no recording of rank 2"):
        sync(tmp_path / "rec", rank=2)


def test_a_folder_is_still_refused_with_what_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow 3.14 and later; Lightning's default points there."""
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    if tuple(map(int, mlflow.__version__.split(".")[:2])) < (3, 14):
        pytest.skip("this MLflow writes runs to folders")
    with pytest.raises(TrackerError, match=r'tracking_uri="sqlite:///mlflow\.db"'):
        MlflowTracker.create_run(f"file:{tmp_path / 'mlruns'}")


def test_a_relative_database_is_found_from_another_folder(
    tmp_path: Path, new_database: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run started in one folder is completed by a sync from another."""
    new_database(tmp_path / "mine.db")
    run_id = mlflow.MlflowClient("sqlite:///mine.db").create_run("0").info.run_id
    tracker = MlflowTracker("sqlite:///mine.db", run_id)
    with Monitor(directory=tmp_path / "rec", trackers=tracker, close_budget_s=0, console=False) as monitor:
        for _ in monitor.watch(range(20)):
            pass
    for thread in _forwarders():
        thread.join(60)
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert monitor.folder is not None
    sync(monitor.folder)
    assert not (tmp_path / "else" / "mine.db").exists()
    assert in_mlflow(f"sqlite:///{tmp_path / 'mine.db'}", run_id) == in_recording(monitor.folder)


SKINNY = textwrap.dedent(
    """
    import sys

    class Hiding:
        names = {"sqlalchemy", "alembic", "pandas", "matplotlib", "sklearn", "scipy", "pyarrow", "flask", "docker"}

        def __init__(self, finder):
            self.finder = finder

        def find_spec(self, name, path=None, target=None):
            return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, path, target)

        def __getattr__(self, name):
            return getattr(self.finder, name)

    sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
    from stallmeter import Monitor
    from stallmeter.delivery.trackers.mlflow import MlflowTracker
    uri, folder = sys.argv[1:]
    tracker = MlflowTracker.create_run(uri)
    with Monitor(directory=folder, trackers=tracker, close_budget_s=60, console=False) as monitor:
        for number in monitor.watch(range(50)):
            monitor.log({"number": number})
    assert monitor.undelivered == (), monitor.undelivered
    print(tracker.run_id, monitor.folder)
    """
)


@pytest.mark.server
@pytest.mark.long
def test_the_skinny_package(server: MlflowServer, tmp_path: Path) -> None:
    """A server needs nothing of what mlflow-skinny leaves out."""
    done = subprocess.run(
        [sys.executable, "-c", SKINNY, server.uri, str(tmp_path / "rec")],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
    )
    assert done.returncode == 0, done.stderr
    run_id, folder = done.stdout.split()[-2:]
    assert in_mlflow(server.uri, run_id) == in_recording(Path(folder))
    assert status(server.uri, run_id) == "FINISHED"
