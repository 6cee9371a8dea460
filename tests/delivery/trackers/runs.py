"""Short real training runs that forward to MLflow, and what must be in MLflow in the end."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlflow
import torch

from stallmeter import Monitor
from stallmeter.delivery.points import points_of
from stallmeter.delivery.sync import SyncResult, sync
from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.errors import TrackerUnavailableError
from stallmeter.recording import Reader
from stallmeter.recording.cursor import cursors
from stallmeter.records.interfaces import Page, Point

STEPS = 360
PREFIX = {"steps": "stallmeter/", "hardware": "system/stallmeter/"}

History = dict[str, list[tuple[int, int, float]]]


class WatchedTracker(MlflowTracker):
    """Remembers in which threads it was called."""

    callers: set[int]

    def __init__(self, *args: Any, **options: Any) -> None:
        self.callers = set()
        super().__init__(*args, **options)

    def send(self, points: Sequence[Point]) -> None:
        self.callers.add(threading.get_ident())
        super().send(points)

    def show(self, page: Page) -> None:
        self.callers.add(threading.get_ident())
        super().show(page)

    def close(self) -> None:
        self.callers.add(threading.get_ident())
        super().close()


def train(
    directory: Path, tracker: object, *, halfway: Callable[[], object] = lambda: None, budget_s: float = 0.8
) -> Monitor:
    """Train a small network for `STEPS` steps over two seconds, and end the run."""
    data = torch.utils.data.TensorDataset(torch.randn(4 * STEPS, 16), torch.randn(4 * STEPS, 1))
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    with Monitor(
        directory=directory,
        trackers=tracker,  # type: ignore[arg-type]
        interval_s=0.05,
        period_s=0.1,
        close_budget_s=budget_s,
        console=False,
    ) as monitor:
        for x, y in monitor.watch(torch.utils.data.DataLoader(data, batch_size=4)):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            monitor.log({"loss": loss.item()})
            time.sleep(0.005)
            steps += 1
            if steps == STEPS // 2:
                halfway()
    assert steps == monitor.run.clock.index == STEPS
    return monitor


def in_recording(folder: Path, rank: int = 0) -> History:
    """Every point that a tracker should have."""
    found: dict[str, set[tuple[int, int, float]]] = defaultdict(set)
    for record, _ in Reader(folder, rank):
        for point in points_of(record):
            found[PREFIX[point.group] + point.key].add((point.step, round(point.time_s * 1000), point.value))
    return {key: sorted(values) for key, values in found.items()}


def in_mlflow(uri: str, run_id: str) -> History:
    """Every point of ours that a run has, as its client tells."""
    client = mlflow.MlflowClient(uri)
    keys = [key for key in client.get_run(run_id).data.metrics if "stallmeter/" in key]
    return {k: sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(run_id, k)) for k in keys}


def sync_patiently(folder: Path, **options: Any) -> SyncResult:
    """Sync as a user would: again, when a busy machine answers too late."""
    deadline = time.monotonic() + 90
    while True:
        try:
            return sync(folder, **options)
        except TrackerUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def complete(folder: Path) -> bool:
    """Whether the recording says that its trackers have got everything."""
    found = cursors(folder)
    return bool(found) and all(cursor.complete for cursor in found.values())
