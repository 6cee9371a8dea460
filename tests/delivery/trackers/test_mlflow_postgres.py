"""A server on PostgreSQL, which is stopped in the middle of a run. Needs PostgreSQL's programs and a driver."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("torch")

from ...ports import free_port  # noqa: E402
from ...servers import MlflowServer  # noqa: E402
from .runs import WatchedTracker, complete, in_mlflow, in_recording, sync_patiently, train  # noqa: E402

DRIVER = next((name for name in ("psycopg2", "psycopg") if importlib.util.find_spec(name)), "")
PROGRAMS = shutil.which("initdb") and shutil.which("postgres")
pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not DRIVER or not PROGRAMS, reason="no initdb and postgres on the path, or no psycopg"),
]


class Postgres:
    """A server of its own, in a folder of its own. It refuses to run as root, so then it runs as ``postgres``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.uri = f"postgresql+{DRIVER}://mlflow@127.0.0.1:{self.port}/postgres"
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(folder, self._user)
        self._run("initdb", "-D", str(folder / "db"), "-U", "mlflow", "-A", "trust", "--no-sync")
        self._process: subprocess.Popen[bytes] | None = None

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=self.folder, timeout=120)

    def start(self) -> None:
        command = ["postgres", "-D", str(self.folder / "db"), "-h", "127.0.0.1", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-k", str(self.folder)], user=self._user, cwd=self.folder, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 60
        ready = ["pg_isready", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, capture_output=True).returncode:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._run("pg_ctl", "stop", "-D", str(self.folder / "db"), "-m", "immediate", "-W")
            self._process.wait(60)
            self._process = None


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    postgres = Postgres(folder)
    postgres.start()
    yield postgres
    postgres.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def postgres_server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("server"), postgres.uri).start()
    yield server
    server.kill()


@pytest.mark.parametrize("direct", [False, True], ids=["server", "direct"])
def test_a_run_on_postgres(postgres: Postgres, postgres_server: MlflowServer, direct: bool, tmp_path: Path) -> None:
    """Every value, step and time arrives while nothing fails."""
    uri = postgres.uri if direct else postgres_server.uri
    run_id = mlflow.MlflowClient(postgres_server.uri).create_run("0").info.run_id
    monitor = train(tmp_path, WatchedTracker(uri, run_id), budget_s=60)
    assert monitor.undelivered == ()
    assert in_mlflow(postgres_server.uri, run_id) == in_recording(monitor.folder)


@pytest.mark.parametrize("direct", [False, True], ids=["server", "direct"])
def test_postgres_stops_in_the_middle(
    postgres: Postgres, postgres_server: MlflowServer, direct: bool, tmp_path: Path
) -> None:
    """Training goes on, and after a sync each point is there once."""
    uri = postgres.uri if direct else postgres_server.uri
    run_id = mlflow.MlflowClient(postgres_server.uri).create_run("0").info.run_id
    tracker = WatchedTracker(uri, run_id, timeout_s=(0.5, 0.5))
    try:
        monitor = train(tmp_path, tracker, halfway=postgres.stop)
    finally:
        postgres.start()
    assert threading.get_ident() not in tracker.callers
    assert monitor.undelivered
    assert monitor.folder is not None
    sync_patiently(monitor.folder)
    assert in_mlflow(postgres_server.uri, run_id) == in_recording(monitor.folder)
    assert complete(monitor.folder)
