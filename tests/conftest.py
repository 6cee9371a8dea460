"""Fakes at the public seams: a clock that is moved by hand, a source and a tracker that remember."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

from stallmeter.clock import StepClock
from stallmeter.interfaces import Page, Point
from stallmeter.ledger import COMPUTE, OTHER, START, Ledger

from .servers import MlflowServer

# The same examples each time and no limit on theirs: what fails here fails everywhere, however busy the machine is.
settings.register_profile("stallmeter", derandomize=True, deadline=None)
settings.load_profile("stallmeter")


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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A running tracking server. Who kills it starts it again."""
    pytest.importorskip("mlflow")
    server = MlflowServer(tmp_path_factory.mktemp("server")).start()
    yield server
    server.kill()
