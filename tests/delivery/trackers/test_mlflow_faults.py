"""Real training against a real MLflow that fails: training goes on, and after a sync each point is there once."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("torch")

import psutil  # noqa: E402

from stallmeter.delivery.sync import sync  # noqa: E402
from stallmeter.delivery.trackers.mlflow.note import NOTE_TAG  # noqa: E402
from stallmeter.errors import RecordingError, TrackerError  # noqa: E402
from stallmeter.recording import Header, Recorder  # noqa: E402
from stallmeter.records import LedgerRecord, WindowRecord  # noqa: E402

from ...servers import FaultProxy, MlflowServer  # noqa: E402
from ...warm import NO_PICTURES, Forks  # noqa: E402
from .runs import WatchedTracker, complete, in_mlflow, in_recording, sync_patiently, train  # noqa: E402

pytestmark = [pytest.mark.server, pytest.mark.long]

HANG_S = 30.0
"""Closing has a budget of 0.8 s in these runs: who takes this long hangs."""


@pytest.fixture
def proxy(server: MlflowServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.uri.removeprefix("http://")) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """A tracker that hung is left behind by its run; it must be gone before the next test."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("stallmeter"):
            thread.join(60)


def new_run(uri: str) -> str:
    run_id: str = mlflow.MlflowClient(uri).create_run("0").info.run_id
    return run_id


def check_run(folder: Path, uri: str, run_id: str) -> None:
    """Everything has arrived once, and sending it again changes nothing."""
    expected = in_recording(folder)
    assert sum(map(len, expected.values())) > 700
    assert in_mlflow(uri, run_id) == expected
    assert complete(folder)
    tags = mlflow.MlflowClient(uri).get_run(run_id).data.tags
    assert "stallmeter:begin" in tags[NOTE_TAG]
    assert "stallmeter.version" in tags


def train_through(tmp_path: Path, tracker: WatchedTracker, halfway: Callable[[], object]) -> Path:
    """Train with a fault from the middle on; the loop must not notice."""
    ended: list[float] = []

    def begin() -> None:
        halfway()
        ended.append(time.monotonic())

    monitor = train(tmp_path / "recordings", tracker, halfway=begin)
    assert time.monotonic() - ended[0] < HANG_S
    assert tracker.callers
    assert threading.get_ident() not in tracker.callers
    assert [left.destination for left in monitor.undelivered] == [tracker.destination]
    assert monitor.folder is not None
    return monitor.folder


@pytest.mark.parametrize("fault", ["refused", "hung", "lost", 500, 401])
def test_a_server_that_fails_in_the_middle(
    server: MlflowServer, proxy: FaultProxy, fault: str | int, tmp_path: Path
) -> None:
    run_id = new_run(server.uri)
    tracker = WatchedTracker(proxy.uri, run_id, timeout_s=(0.3, 0.3))

    def fail() -> None:
        if fault == "refused":
            proxy.refuse()
        else:
            proxy.fault = fault

    folder = train_through(tmp_path, tracker, fail)
    assert not complete(folder)
    proxy.heal()
    assert sync_patiently(folder).destination == f"{proxy.uri} run {run_id}"
    check_run(folder, server.uri, run_id)


@pytest.mark.parametrize("fault", ["refused", "hung", 401])
def test_a_server_that_is_down_for_the_whole_run(
    server: MlflowServer, proxy: FaultProxy, fault: str | int, tmp_path: Path
) -> None:
    run_id = new_run(server.uri)
    if fault == "refused":
        proxy.refuse()
    proxy.fault = fault
    folder = train_through(tmp_path, WatchedTracker(proxy.uri, run_id, timeout_s=(0.2, 0.2)), lambda: None)
    assert not in_mlflow(server.uri, run_id)
    proxy.heal()
    sync_patiently(folder)
    check_run(folder, server.uri, run_id)


def test_a_server_that_is_killed_and_started_again(server: MlflowServer, tmp_path: Path) -> None:
    run_id = new_run(server.uri)
    tracker = WatchedTracker(server.uri, run_id, timeout_s=(0.3, 0.5))

    def restart() -> None:
        server.kill()
        server.start(wait=False)

    try:
        folder = train_through(tmp_path, tracker, restart)
    finally:
        server.wait()
    sync_patiently(folder)
    check_run(folder, server.uri, run_id)


@contextlib.contextmanager
def no_more_room(server: MlflowServer) -> Iterator[None]:
    """Keep the server's database from growing, as a full disk does; needs no privileges."""
    assert server._process is not None
    main = psutil.Process(server._process.pid)
    processes = [main, *main.children(recursive=True)]
    limits = [resource.prlimit(p.pid, resource.RLIMIT_FSIZE) for p in processes]
    room = (server.folder / "server.db").stat().st_size + 4096
    for process, (_, hard) in zip(processes, limits, strict=True):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        for process, limit in zip(processes, limits, strict=True):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limit)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits another process")
def test_a_server_whose_disk_is_full(server: MlflowServer, tmp_path: Path) -> None:
    run_id = new_run(server.uri)
    with contextlib.ExitStack() as full:
        folder = train_through(
            tmp_path, WatchedTracker(server.uri, run_id), lambda: full.enter_context(no_more_room(server))
        )
        assert in_mlflow(server.uri, run_id) != in_recording(folder)
    sync_patiently(folder)
    check_run(folder, server.uri, run_id)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold the database for oneself, as a long write of another program does."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=30)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_a_server_whose_database_is_locked(server: MlflowServer, tmp_path: Path) -> None:
    run_id = new_run(server.uri)
    tracker = WatchedTracker(server.uri, run_id, timeout_s=(0.3, 0.3))
    with contextlib.ExitStack() as lock:
        folder = train_through(tmp_path, tracker, lambda: lock.enter_context(locked(server.folder / "server.db")))
    sync_patiently(folder)
    check_run(folder, server.uri, run_id)


def test_a_database_that_is_locked(sqlite_uri: str, tmp_path: Path) -> None:
    """Without a server the wait is in our process, in the tracker's own thread: up to 20 s of MLflow's own."""
    run_id = new_run(sqlite_uri)
    tracker = WatchedTracker(sqlite_uri, run_id)
    path = Path(sqlite_uri.removeprefix("sqlite:///"))
    with contextlib.ExitStack() as lock:
        folder = train_through(tmp_path, tracker, lambda: lock.enter_context(locked(path)))
    sync_patiently(folder)
    check_run(folder, sqlite_uri, run_id)


def test_a_database_whose_disk_is_full(sqlite_uri: str, tmp_path: Path) -> None:
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    pages = [2**30]

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages[0]}")  # not below what there is

    def fill() -> None:
        pages[0] = 1

    run_id = new_run(sqlite_uri)
    event.listen(Engine, "checkout", limit)
    try:
        folder = train_through(tmp_path, WatchedTracker(sqlite_uri, run_id), fill)
        assert in_mlflow(sqlite_uri, run_id) != in_recording(folder)
        pages[0] = 2**30
        sync_patiently(folder)
    finally:
        event.remove(Engine, "checkout", limit)
    check_run(folder, sqlite_uri, run_id)


RUNS = textwrap.dedent(
    """
    import os, sys, time
    import mlflow
    import mlflow.store.tracking.sqlalchemy_store
    from stallmeter import Monitor
    from stallmeter.delivery.trackers.mlflow import MlflowTracker
    uri, *folders = sys.argv[1:]

    def run(folder):
        run_id = mlflow.MlflowClient(uri).create_run("0").info.run_id
        options = dict(directory=folder, interval_s=0.05, period_s=0.2, close_budget_s=60, console=False)
        with Monitor(trackers=MlflowTracker(uri, run_id), **options) as monitor:
            for number in monitor.watch(range(300)):
                time.sleep(0.005)
                monitor.log({"number": number})
        # In one piece: what several processes print at once gets mixed up.
        os.write(1, f"{run_id} {monitor.folder} {len(monitor.undelivered)}\\n".encode())

    children = []
    for folder in folders:
        child = os.fork()  # MLflow is imported once; nothing is opened yet
        if not child:
            run(folder)
            sys.exit()
        children.append(child)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
    """
)


def test_several_runs_share_a_database(forks: Forks, sqlite_uri: str, tmp_path: Path) -> None:
    """Four programs at once, each with a run of its own: sqlite lets one write at a time."""
    folders = [str(tmp_path / str(number)) for number in range(4)]
    done = forks.run(NO_PICTURES + RUNS, sqlite_uri, *folders, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    ended = [line.split() for line in done.stdout.splitlines()]
    assert sorted(str(Path(folder).parent) for _, folder, _ in ended) == folders
    for run_id, folder, undelivered in ended:
        assert undelivered == "0"
        expected = in_recording(Path(folder))
        assert sum(map(len, expected.values())) > 700
        assert in_mlflow(sqlite_uri, run_id) == expected


def write_recording(folder: Path, windows: int, **header: object) -> None:
    """A recording without an end, as a program that was killed leaves it."""
    recorder = Recorder(folder, Header(run_id="killed", started_s=1.7e9, **header))  # type: ignore[arg-type]
    for number in range(windows):
        metrics = {f"m{i}": number + i / 10 for i in range(20)}
        recorder.write(
            WindowRecord(time_s=1.7e9 + number, tracker_step=number, duration_s=1.0, metrics=metrics, hardware={})
        )
    recorder.write(
        LedgerRecord(
            time_s=1.7e9 + windows, wall_s=float(windows), steps=windows, epochs=1, buckets={}, recorded_steps=windows
        )
    )
    recorder.close()
    os.utime(recorder.path, (1.7e9, 1.7e9))


def test_a_sync_that_is_killed_is_made_up_for_by_the_next(
    server: MlflowServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    """With a new run as its goal: the second one completes the run that the first has made."""
    write_recording(tmp_path, 200)
    proxy.fault = "slow"
    command = [sys.executable, "-m", "stallmeter", "sync", str(tmp_path), "--to", proxy.uri]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while sum("log-batch" in request for request in proxy.requests) < 4:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    proxy.heal()
    done = sync_patiently(tmp_path, tracking_uri=proxy.uri)
    assert 0 < done.points < 4000
    [run] = [r for r in mlflow.MlflowClient(server.uri).search_runs(["0"]) if r.info.run_name == tmp_path.name]
    assert done.destination.endswith(f" run {run.info.run_id}")
    assert in_mlflow(server.uri, run.info.run_id) == in_recording(tmp_path)
    assert run.info.status == "KILLED"
    assert sync_patiently(tmp_path, tracking_uri=proxy.uri).points == 0


def test_one_sync_at_a_time(server: MlflowServer, proxy: FaultProxy, tmp_path: Path) -> None:
    write_recording(tmp_path, 10)
    run_id = new_run(server.uri)
    proxy.fault = "hung"
    errors: list[BaseException] = []

    def first() -> None:
        with contextlib.suppress(Exception):
            sync(tmp_path, tracking_uri=proxy.uri, run_id=run_id)

    thread = threading.Thread(target=first)
    thread.start()
    deadline = time.monotonic() + 60
    while not proxy.requests and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(RecordingError, match="another `stallmeter sync`"):
        sync(tmp_path, tracking_uri=proxy.uri, run_id=run_id)
    proxy.heal()
    thread.join(60)
    assert not errors
    sync_patiently(tmp_path, tracking_uri=proxy.uri, run_id=run_id)
    assert in_mlflow(server.uri, run_id) == in_recording(tmp_path)


def test_what_was_deleted_there_is_named(server: MlflowServer, tmp_path: Path) -> None:
    write_recording(tmp_path, 3)
    client = mlflow.MlflowClient(server.uri)
    deleted = new_run(server.uri)
    client.delete_run(deleted)
    with pytest.raises(TrackerError, match="deleted"):
        sync(tmp_path, tracking_uri=server.uri, run_id=deleted)
    experiment = client.create_experiment(f"deleted {tmp_path.name}")
    inside = client.create_run(experiment).info.run_id
    client.delete_experiment(experiment)
    with pytest.raises(TrackerError, match="deleted"):
        sync(tmp_path, tracking_uri=server.uri, run_id=inside)
    with pytest.raises(TrackerError, match="RESOURCE_DOES_NOT_EXIST"):
        sync(tmp_path, tracking_uri=server.uri, run_id="0" * 32)
    made = sync(tmp_path, tracking_uri=server.uri).destination.rpartition(" ")[2]
    client.delete_run(made)
    write_recording(tmp_path, 3)
    with pytest.raises(TrackerError, match=r"To have another run made, delete .*cursor-mlflow-new-"):
        sync(tmp_path, tracking_uri=server.uri)
