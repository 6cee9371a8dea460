"""Fakes at the public seams: a clock that is moved by hand, a source and a tracker that remember."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import shutil
import signal
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import stallmeter
from stallmeter.records.interfaces import Page, Point
from stallmeter.report.drawing import draw
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import COMPUTE, OTHER, START, Ledger

from .children import ProcessesLeft, children, forget_threads, left
from .servers import MlflowServer
from .warm import Forks

PACKAGE = Path(stallmeter.__file__).parent

# Before torch is imported, here and in child processes: on few CPUs its threads mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with Ctrl-C ignored, and all that they start inherits that. Tests interrupt programs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time and no limit on theirs: what fails here fails everywhere, however busy the machine is.
settings.register_profile("stallmeter", derandomize=True, deadline=None)
settings.load_profile("stallmeter")

# It would also draw numbers and words that stand in the modules loaded so far, and which these are depends on how the
# tests are shared out: a test would fail in one run and pass in the next. There is no setting for it.
with contextlib.suppress(ImportError, AttributeError):
    from hypothesis.internal.conjecture import providers

    _no_constants = providers._local_constants
    providers._get_local_constants = lambda: _no_constants


SHARE_A_SERVER = ("test_mlflow_faults", "test_mlflow_hostile", "test_mlflow_server", "test_mlflow_setups")
SHARE_A_SERVER += ("test_mlflow_traces", "test_tracking", "test_compare")
"""Files whose tests run in one process where several share the tests: each process would start a server."""

LONGEST = (*SHARE_A_SERVER, "test_leaks", "test_exits", "test_ranks", "test_edges")
"""They are begun first, or one process would be left with one of them in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file together, and those of files that share a server.

    The process that shares them out knows no marks: pytest-xdist 3.8 does not find its own groups with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "server" if Path(file).stem in SHARE_A_SERVER else file

    return Scheduling(config, log)


class FakeTime:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.ns = 1_000_000

    def __call__(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


class FakeSource:
    """Hands out prepared samples."""

    def __init__(self, name: str = "fake", samples: Sequence[Any] = ()) -> None:
        self.name = name
        self.samples = list(samples)
        self.closed = False

    def sample(self, time_s: float) -> Sequence[Any]:
        taken, self.samples = self.samples, []
        return taken

    def close(self) -> None:
        self.closed = True


class ListTracker:
    """Keeps what it is sent."""

    def __init__(self, name: str = "list") -> None:
        self.name = name
        self.destination = "memory"
        self.batch_size = 100
        self.points: list[Point] = []
        self.pages: list[Page] = []
        self.closed = False

    def send(self, points: Sequence[Point]) -> None:
        self.points.extend(points)

    def show(self, page: Page) -> None:
        self.pages.append(page)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def ledger(fake_time: FakeTime) -> Ledger:
    return Ledger(START, now=fake_time)


@pytest.fixture
def step_clock(ledger: Ledger) -> StepClock:
    return StepClock(ledger, loop=COMPUTE, idle=OTHER, unix_ns=lambda: 1_700_000_000 * 10**9)


@pytest.fixture(autouse=True)
def deprecations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What our own code does that will not work for ever fails the test, on any thread and where a guard holds errors.

    A warning that is turned into an error would be held there, too.
    """
    found: list[str] = []
    show = warnings.showwarning

    def look(message: Any, category: type[Warning], filename: str, *where: Any, **more: Any) -> None:
        if issubclass(category, (DeprecationWarning, PendingDeprecationWarning)) and PACKAGE in Path(filename).parents:
            found.append(f"{filename}: {category.__name__}: {message}")
        show(message, category, filename, *where, **more)

    monkeypatch.setattr(warnings, "showwarning", look)
    yield found
    assert not found


@pytest.fixture(autouse=True)
def _no_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process make no page and no pictures: a child process for each would take most of the time."""
    monkeypatch.setattr("stallmeter.engine.wiring.start_drawing", lambda: None)


@pytest.fixture
def drawings(_no_drawings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page and pictures are made, as for a user."""
    monkeypatch.setattr("stallmeter.engine.wiring.start_drawing", lambda: draw)


@pytest.fixture(autouse=True)
def _earlier_threads() -> None:
    forget_threads()


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    """A run that goes on would make the loops of the tests that follow somebody else's."""
    yield
    run = sys.modules.get("stallmeter.engine.run")
    assert run is None or not run.are_loops_claimed(None)


@pytest.fixture
def processes_left() -> ProcessesLeft:
    return functools.partial(left, children())


@pytest.fixture(autouse=True)
def _mlflow_is_not_set_up() -> Iterator[None]:
    """Its loggers set a tracking URI for the whole process, and for the processes that it starts."""
    yield
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None and mlflow.is_tracking_uri_set():
        mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """For tests that collect garbage often: what is there by now is left out, a million objects of imports."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Starts programs that import torch."""
    pytest.importorskip("torch")
    made = Forks()
    yield made
    made.close()


@pytest.fixture(scope="session")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Put a sqlite database with MLflow's tables at a path and return its URI: making the tables takes seconds.

    They are empty, and the first to open it makes the default experiment.
    """
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    tables = tmp_path_factory.mktemp("tables") / "mlflow.db"
    MlflowClient(f"sqlite:///{tables}").search_experiments()
    with closing(sqlite3.connect(tables)) as connection, connection:
        connection.execute("DELETE FROM experiments")  # the default one says where its artifacts go

    def put(path: Path) -> str:
        shutil.copyfile(tables, path)
        return f"sqlite:///{path}"

    return put


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[Path], str]) -> Iterator[MlflowServer]:
    """A running tracking server. Who kills it starts it again."""
    folder = tmp_path_factory.mktemp("server")
    server = MlflowServer(folder, new_database(folder / "server.db")).start()
    yield server
    server.kill()
