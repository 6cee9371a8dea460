"""The Neptune 3.x client: read back from its database, sent to a server on loopback, hung, closed and imitated."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallmeter import Monitor
from stallmeter.delivery.choice import choose_trackers
from stallmeter.delivery.delivery import deliver
from stallmeter.delivery.trackers.neptune import NeptuneScaleTracker, NeptuneTracker
from stallmeter.errors import MissingPackageError, TrackerError, TrackerUnavailableError
from stallmeter.records.interfaces import Tracker

from .neptune_recordings import expected, page, point, record
from .neptune_servers import PROJECT, NeptuneScaleServer, Run3

neptune_scale = pytest.importorskip("neptune_scale")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEPTUNE_API_TOKEN", "NEPTUNE_PROJECT", "NEPTUNE_MODE", "NEPTUNE_LOG_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)  # the client writes to ./.neptune


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    """The client's process would try to reach a server that is gone, and the interpreter waits for it at its exit."""
    before = set(multiprocessing.active_children())
    yield
    for child in set(multiprocessing.active_children()) - before:
        child.terminate()
        child.join(10)
        if child.is_alive():
            child.kill()
            child.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NeptuneScaleServer]:
    with NeptuneScaleServer() as found:
        monkeypatch.setenv("NEPTUNE_API_TOKEN", found.token)
        monkeypatch.setenv("NEPTUNE_PROJECT", PROJECT)
        yield found


def open_run(mode: str = "offline", **options: Any) -> Any:
    quiet = {"enable_console_log_capture": False, "source_tracking_config": None}
    return neptune_scale.Run(project=PROJECT, run_id="mine", mode=mode, **quiet, **options)


def stored(folder: Path) -> Run3:
    """What the client's database below a folder says."""
    from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import UpdateRunSnapshot

    (database,) = folder.glob("**/run_operations.sqlite3")
    run = Run3()
    with sqlite3.connect(database) as connection:
        rows = connection.execute(
            "select operation from run_operations where operation_type = 0 order by sequence_id"
        ).fetchall()
        for (content,) in rows:
            snapshot = UpdateRunSnapshot()
            snapshot.ParseFromString(content)
            run.apply(snapshot)
    connection.close()
    return run


def uploads(folder: Path) -> set[str]:
    (database,) = folder.glob("**/run_operations.sqlite3")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select source_path, mime_type from file_upload_requests").fetchall()
    connection.close()
    return {f"{Path(path).name} {kind}" for path, kind in rows}


def floored(points: dict[str, list[tuple[float, float, float]]]) -> dict[str, list[tuple[int, float, float]]]:
    return {
        path: [(int(step), value, pytest.approx(time_s, abs=1e-6)) for step, value, time_s in each]
        for path, each in points.items()
    }


def increasing(points: dict[str, list[tuple[float, float, float]]]) -> bool:
    return all(a[0] < b[0] for each in points.values() for a, b in itertools.pairwise(each))


# -- what arrives ------------------------------------------------------------------------------------------------------


def test_the_offline_database_holds_what_the_recording_holds(tmp_path: Path) -> None:
    folder = record(tmp_path / "rec")
    run = open_run()
    (tracker,) = choose_trackers(run, (), 0)
    assert isinstance(tracker, NeptuneScaleTracker)
    assert isinstance(tracker, Tracker)
    assert tracker.destination.startswith(f"neptune_scale run {PROJECT}/mine, offline in {tmp_path}")
    assert deliver(folder, 0, tracker) == 601
    tracker.show(page(tmp_path / "files"))
    tracker.close()
    run.log_metrics({"still/open": 1.0}, step=1)
    run.close()
    found = stored(tmp_path)
    assert found.series.pop("still/open")
    assert increasing(found.series)
    assert expected(folder) == floored(found.series)
    assert found.tags == ["stallmeter", "stallmeter:no-workers"]
    assert found.configs["stallmeter/summary/primary"] == "no-workers"
    assert found.configs["stallmeter/summary/num_workers"] == 0
    assert found.configs["stallmeter/summary/note"] == "**Data wait 50 %**"
    assert uploads(tmp_path) == {"report.html text/html", "steps.csv text/csv"}


def test_a_cause_that_a_later_page_lacks_is_withdrawn(tmp_path: Path) -> None:
    """The client deletes nothing; a number keeps its type, and so its value."""
    run = open_run()
    tracker = NeptuneScaleTracker(run)
    early = page(tmp_path / "files", final=False)
    tracker.show(early)
    tracker.show(dataclasses.replace(early, tags={}, final=True))
    run.close()
    found = stored(tmp_path).configs
    assert found["stallmeter/summary/primary"] == "none"
    assert found["stallmeter/summary/num_workers"] == 0


def test_the_real_client_delivers_everything_once(server: NeptuneScaleServer, tmp_path: Path) -> None:
    folder = record(tmp_path / "rec", windows=40)
    run = open_run("async")
    tracker = NeptuneScaleTracker(run, base_namespace="training/stallmeter/")
    deliver(folder, 0, tracker)
    tracker.show(page(tmp_path / "files"))
    tracker.close()
    assert not run._is_closing
    run.close(timeout=60)
    (found,) = server.runs.values()
    assert increasing(found.series)
    wanted = {f"training/{path}": points for path, points in expected(folder).items()}
    assert wanted == floored(found.series)
    assert found.tags == ["stallmeter", "stallmeter:no-workers"]
    assert sorted(server.files.values()) == [b"<h1>report</h1>", b"step,data_wait_s\n"]


def test_a_run_of_ours_is_closed_and_holds_nothing_else(server: NeptuneScaleServer, tmp_path: Path) -> None:
    folder = record(tmp_path / "rec", windows=10)
    (tracker,) = choose_trackers("neptune-scale", (), 0)
    assert tracker.destination.startswith(f"neptune-scale://{PROJECT} run stallmeter-")
    tracker._patience_s = 60.0  # type: ignore[attr-defined]
    deliver(folder, 0, tracker)
    tracker.close()
    (found,) = server.runs.values()
    assert expected(folder) == floored(found.series)
    assert found.configs == {}
    tracker.close()


def test_sending_again_after_a_failure_doubles_nothing(tmp_path: Path) -> None:
    run = open_run()

    class Flaky:
        """The third call fails once."""

        calls = 0

        def log_metrics(self, data: Any, step: float, *, timestamp: Any) -> None:
            self.calls += 1
            if self.calls == 3:
                raise sqlite3.OperationalError("database or disk is full")
            run.log_metrics(data, step, timestamp=timestamp)

        def log_configs(self, data: Any) -> None:
            run.log_configs(data)

    (tracker,) = choose_trackers(Flaky(), (), 0)
    points = [point(key, float(step), step // 2) for step in range(4) for key in "ab"]
    with pytest.raises(TrackerUnavailableError, match="disk is full"):
        tracker.send(points)
    tracker.send([*points, point("a", 9.0, 9)])
    run.close()
    found = stored(tmp_path).series
    assert [value for _, value, _ in found["stallmeter/a"]] == [0.0, 1.0, 2.0, 3.0, 9.0]
    assert [value for _, value, _ in found["stallmeter/b"]] == [0.0, 1.0, 2.0, 3.0]


def test_steps_that_neptune_rejects_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = open_run()
    tracker = NeptuneScaleTracker(run)
    tracker.send([point("user/a", 1.0, -5, time_s=1.0), point("user/b", 1.0, 10**12), point("user/c", 1.0, 4)])
    tracker.send([point("user/c", 2.0, 3), point("user/c", 3.0, 5)])
    run.close()
    assert [(s, v) for s, v, _ in stored(tmp_path).series.pop("stallmeter/user/c")] == [(4, 1.0), (5, 3.0)]
    assert list(stored(tmp_path).series) == ["stallmeter/user/c"]
    assert sum("is left out there" in message for message in caplog.messages) == 3


def test_a_clock_set_back_does_not_make_times_decrease(tmp_path: Path) -> None:
    run = open_run()
    NeptuneScaleTracker(run).send([point("a", 1.0, 1, time_s=1e9 + 5), point("a", 2.0, 2, time_s=1e9)])
    run.close()
    assert stored(tmp_path).series["stallmeter/a"] == [(1.0, 1.0, 1e9 + 5), (2.0, 2.0, 1e9 + 5)]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_closed_run_is_an_error_for_good(tmp_path: Path) -> None:
    """The client itself would take the points and drop them without a word."""
    run = open_run()
    run.close()
    tracker = NeptuneScaleTracker(run)
    with pytest.raises(TrackerError, match="close it afterwards"):
        tracker.send([point("a", 1.0, 1)])
    with pytest.raises(TrackerError, match="close it afterwards"):
        tracker.show(page(tmp_path / "files"))


def test_a_server_without_a_token_is_refused() -> None:
    with pytest.raises(TrackerError, match="NEPTUNE_API_TOKEN"):
        NeptuneScaleTracker.open_run(PROJECT, offline=False)
    with pytest.raises(TrackerError, match="takes no run"):
        NeptuneScaleTracker.open_run("no-workspace", offline=True)


def test_a_missing_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"stallmeter\[neptune\]"):
        NeptuneScaleTracker.open_run()


def test_a_program_that_the_clients_process_imports_does_not_train_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Importing:
        _inheriting = True

    monkeypatch.setattr("multiprocessing.current_process", Importing)
    with pytest.raises(SystemExit, match="__main__"):
        NeptuneScaleTracker.open_run(offline=True)


@pytest.mark.long
def test_a_server_that_hangs_delays_no_step_and_the_end_by_its_budget(
    server: NeptuneScaleServer, tmp_path: Path
) -> None:
    server.hangs.set()
    (tracker,) = choose_trackers("neptune-scale", (), 0)
    tracker._patience_s = 2.0  # type: ignore[attr-defined]
    monitor = Monitor(
        directory=tmp_path / "rec", trackers=tracker, console=False, hardware=False, workers=False, close_budget_s=2.0
    )
    steps = sum(1 for _ in monitor.watch([[0] * 4] * 200))
    began = time.monotonic()
    monitor.close()
    assert time.monotonic() - began < 9.0
    assert steps == monitor.run.clock.index == 200
    assert monitor.folder is not None
    wanted = expected(monitor.folder)
    assert wanted
    # What the server did not take is in the client's own database.
    assert {path: len(each) for path, each in stored(tmp_path).series.items()} == {
        path: len(each) for path, each in wanted.items()
    }


@pytest.mark.long
def test_closing_says_what_sends_the_rest(server: NeptuneScaleServer, caplog: pytest.LogCaptureFixture) -> None:
    server.hangs.set()
    tracker = NeptuneScaleTracker.open_run(patience_s=2.0)
    tracker.send([point("a", 1.0, 1)])
    began = time.monotonic()
    with pytest.raises(TrackerUnavailableError, match=r"neptune sync /.*run_operations\.sqlite3"):
        tracker.close()
    assert time.monotonic() - began < 20.0


# -- which run ---------------------------------------------------------------------------------------------------------


def test_by_name_a_run_is_opened_offline_unless_the_environment_names_a_server(tmp_path: Path) -> None:
    (tracker,) = choose_trackers("neptune-scale", (), 0)
    assert f"offline in {tmp_path / '.neptune'}" in tracker.destination
    assert choose_trackers("neptune-scale", (), 1) == ()
    tracker.send([point("a", 1.0, 1)])
    tracker.close()
    assert stored(tmp_path).series == {"stallmeter/a": [(1.0, 1.0, 1_700_000_001.0)]}


def test_a_run_with_both_interfaces_is_taken_as_one_of_1x() -> None:
    class Both:
        def __getitem__(self, path: str) -> Any: ...

        def sync(self) -> None: ...

        def wait(self) -> None: ...

        def log_metrics(self) -> None: ...

        def log_configs(self) -> None: ...

    (tracker,) = choose_trackers(Both(), (), 0)
    assert isinstance(tracker, NeptuneTracker)


def test_a_successor_with_the_same_interface(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Run:
        """The least that a successor may have."""

        def __init__(self) -> None:
            self.metrics: list[Any] = []
            self.configs: dict[str, Any] = {}
            self.tags: list[str] = []

        def log_metrics(self, data: dict[str, float], step: float, *, timestamp: Any) -> None:
            self.metrics.append((data, step, timestamp.timestamp()))

        def log_configs(self, data: dict[str, Any]) -> None:
            self.configs.update(data)

        def add_tags(self, tags: list[str]) -> None:
            self.tags += tags

    run = Run()
    (tracker,) = choose_trackers(run, (), 0)
    tracker.send([point("a", 1.0, 1), point("b", 2.0, 1)])
    tracker.show(page(tmp_path / "files"))
    tracker.show(page(tmp_path / "files", final=False))
    assert run.metrics == [({"stallmeter/a": 1.0, "stallmeter/b": 2.0}, 1, 1_700_000_001.0)]
    assert run.configs["stallmeter/summary/verdict"] == "Data wait 50 %: set num_workers=2"
    assert sum("takes no files" in message for message in caplog.messages) == 1
