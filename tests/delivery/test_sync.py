"""What a tracker missed reaches it afterwards, once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

mlflow = pytest.importorskip("mlflow")

from stallmeter import Monitor  # noqa: E402
from stallmeter.cli import main  # noqa: E402
from stallmeter.delivery.sync import sync  # noqa: E402
from stallmeter.delivery.trackers.mlflow import MlflowTracker  # noqa: E402
from stallmeter.errors import RecordingError, TrackerUnavailableError  # noqa: E402
from stallmeter.records.interfaces import Point  # noqa: E402


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow puts artifacts below the current folder


def record(folder: Path, **options: object) -> Path:
    with Monitor(directory=folder, console=False, hardware=False, workers=False, **options) as monitor:  # type: ignore[arg-type]
        for _ in monitor.watch([[0] * 4] * 30):
            sum(range(1000))
    assert monitor.finish() == (not monitor.undelivered)
    assert monitor.folder is not None
    return monitor.folder


class Down(MlflowTracker):
    """Its server does not answer while the run goes on."""

    def send(self, points: Sequence[Point]) -> None:
        raise TrackerUnavailableError("down")


def count(uri: str, run_id: str) -> int:
    client = mlflow.MlflowClient(uri)
    keys = client.get_run(run_id).data.metrics
    return sum(len(client.get_metric_history(run_id, key)) for key in keys)


def test_an_outage_is_made_up_for_and_repeating_changes_nothing(
    tmp_path: Path, new_database: Callable[[Path], str]
) -> None:
    uri = new_database(tmp_path / "mlflow.db")
    tracker = Down.create_run(uri)
    run_id = tracker.run_id
    folder = record(tmp_path / "rec", trackers=tracker, close_budget_s=1)
    for _ in range(2):
        done = sync(folder)
        assert done.destination == f"{uri} run {run_id}"
    sent = count(uri, run_id)
    assert sent >= 60
    (folder / "cursor-mlflow.json").unlink()
    assert sync(folder, tracking_uri=uri, run_id=run_id).points == sent
    assert count(uri, run_id) == sent
    tags = mlflow.MlflowClient(uri).get_run(run_id).data.tags
    assert "stallmeter:begin" in tags["mlflow.note.content"]


def test_a_recording_becomes_a_new_run_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record(tmp_path / "rec", trackers=None)
    with pytest.raises(RecordingError, match="--to URI"):
        sync(folder)
    uri = f"sqlite:///{tmp_path / 'other.db'}"
    assert main(["sync", str(tmp_path), "--to", uri]) == 0
    assert "points sent to" in capsys.readouterr().out
    (run,) = mlflow.MlflowClient(uri).search_runs(["0"])
    assert run.info.status == "FINISHED"
    assert count(uri, run.info.run_id) >= 60


def runs(uri: str) -> list[Any]:
    return list(mlflow.MlflowClient(uri).search_runs(["0"]))


def test_what_stops_the_reports_makes_no_run(
    tmp_path: Path, new_database: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take seconds, and a run made before them would be left open with nothing that knows of it."""
    folder = record(tmp_path / "rec", trackers=None)
    uri = new_database(tmp_path / "x.db")
    for error, seen in ((KeyboardInterrupt, KeyboardInterrupt), (PermissionError("no"), RecordingError)):
        with monkeypatch.context() as patch:
            patch.setattr("stallmeter.delivery.sync.complete_reports", mock.Mock(side_effect=error))
            with pytest.raises(seen):
                sync(folder, tracking_uri=uri)
    assert runs(uri) == []


def test_what_stops_the_sending_leaves_a_run_that_a_repetition_completes(
    tmp_path: Path, new_database: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record(tmp_path / "rec", trackers=None)
    uri = new_database(tmp_path / "x.db")
    with monkeypatch.context() as patch:
        patch.setattr("stallmeter.delivery.sync.points_left", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sync(folder, tracking_uri=uri)
    sync(folder, tracking_uri=uri)
    (run,) = runs(uri)
    assert (run.info.status, run.info.run_name) == ("FINISHED", folder.name)


def test_no_run_is_made_that_a_repetition_would_not_find(
    tmp_path: Path, new_database: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that takes no files; and a run that the tracker did not make leaves no trace."""
    folder = record(tmp_path / "rec", trackers=None)
    uri = new_database(tmp_path / "x.db")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowTracker, "start_run", mock.Mock(side_effect=TrackerUnavailableError("down")))
        with pytest.raises(TrackerUnavailableError):
            sync(folder, tracking_uri=uri)
    assert not list(folder.glob("cursor-mlflow-new-*"))
    sync(folder, tracking_uri=uri)
    (cursor,) = folder.glob("cursor-mlflow-new-*")
    cursor.unlink()
    cursor.mkdir()  # root may write into any folder, but replaces none by a file
    for _ in range(2):
        with pytest.raises(RecordingError, match="each repetition would make another run"):
            sync(folder, tracking_uri=uri)
    assert len(runs(uri)) == 1


def test_a_folder_of_recordings_is_sent_as_a_whole(
    tmp_path: Path, new_database: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each recording that is not complete; one that cannot be sent does not keep the others back."""
    uri = new_database(tmp_path / "mlflow.db")
    trackers = [kind.create_run(uri) for kind in (Down, Down, MlflowTracker)]
    for tracker in trackers:
        record(tmp_path / "rec", trackers=tracker, close_budget_s=1 if isinstance(tracker, Down) else 60)
    mlflow.MlflowClient(uri).delete_run(trackers[0].run_id)
    capsys.readouterr()
    assert main(["sync", str(tmp_path / "rec")]) == 2
    out, err = capsys.readouterr()
    assert "deleted" in err
    assert err.count("\n") == 1
    assert [line.partition(" run ")[2] for line in out.splitlines()] == [trackers[1].run_id]
    assert count(uri, trackers[1].run_id) == count(uri, trackers[2].run_id)
    mlflow.MlflowClient(uri).restore_run(trackers[0].run_id)
    assert main(["sync", str(tmp_path / "rec")]) == 0
    assert main(["sync", str(tmp_path / "rec")]) == 0
    assert "nothing is left" in capsys.readouterr().out
    assert count(uri, trackers[0].run_id) == count(uri, trackers[1].run_id)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ZeroDivisionError("a bug")])
def test_whatever_stops_one_recording_does_not_stop_the_others(
    error: Exception,
    tmp_path: Path,
    new_database: Callable[[Path], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What nobody foresaw rises in the end: it is a defect of ours."""
    uri = new_database(tmp_path / "mlflow.db")
    folders = [record(tmp_path / "rec", trackers=Down.create_run(uri), close_budget_s=1) for _ in range(2)]
    capsys.readouterr()

    def fail_once(folder: Path, **options: Any) -> Any:
        if folder.name == folders[0].name:
            raise error
        return sync(folder, **options)

    monkeypatch.setattr("stallmeter.delivery.sync.sync", fail_once)
    if isinstance(error, OSError):
        assert main(["sync", str(tmp_path / "rec")]) == 2
    else:
        with pytest.raises(ZeroDivisionError):
            main(["sync", str(tmp_path / "rec")])
    out, err = capsys.readouterr()
    assert [line.partition(":")[0] for line in out.splitlines()] == [str(folders[1])]
    assert ("No space left" in err) is isinstance(error, OSError)


def test_two_runs_of_one_program_are_both_completed(
    tmp_path: Path, new_database: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a cursor, and the command sends to both."""
    trackers = [Down.create_run(new_database(tmp_path / f"{name}.db")) for name in "ab"]
    folder = record(tmp_path / "rec", trackers=trackers, close_budget_s=1)
    assert main(["sync", str(folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    counts = [count(t.tracking_uri, t.run_id) for t in trackers]
    assert counts[0] == counts[1] >= 60


def test_a_run_that_goes_on_is_not_sent(tmp_path: Path) -> None:
    """Its own program sends it; the message says who that is."""
    with Monitor(directory=tmp_path / "rec", console=False, trackers=None) as monitor:
        for _ in monitor.watch(range(10)):
            pass
        assert monitor.folder is not None
        with pytest.raises(RecordingError, match=f"still being written by process {os.getpid()} on "):
            sync(monitor.folder, tracking_uri=f"sqlite:///{tmp_path / 'x.db'}")


def test_progress_is_a_bar_on_a_terminal(
    tmp_path: Path,
    new_database: Callable[[Path], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends full, on a line of its own; what is not a terminal gets none."""
    folder = record(tmp_path / "rec", trackers=None)
    uri = new_database(tmp_path / "x.db")
    assert main(["sync", str(folder), "--to", uri]) == 0
    assert " points\n" not in capsys.readouterr().err
    (cursor,) = folder.glob("cursor-mlflow-new-*")
    cursor.unlink()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["sync", str(folder), "--to", uri]) == 0
    assert f"\r[{30 * '#'}] " in (err := capsys.readouterr().err)
    assert " points\n" in err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
