"""Any other Lightning logger: points are logged on the training thread, never on the forwarder's."""

from __future__ import annotations

import csv
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from stallmeter.errors import TrackerUnavailableError
from stallmeter.forwarder import Forwarder
from stallmeter.interfaces import Page, Point, Tracker
from stallmeter.recording import Header, Recorder
from stallmeter.records import WindowRecord
from stallmeter.trackers.lightning_logger import LightningLoggerTracker

NOW = 1_700_000_000.0


class ListLogger:
    """What a Lightning logger looks like from here."""

    def __init__(self) -> None:
        self.calls: list[tuple[int | None, dict[str, float]]] = []
        self.threads: set[int] = set()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.calls.append((step, dict(metrics)))
        self.threads.add(threading.get_ident())


def point(key: str, value: float, step: int, group: str = "steps") -> Point:
    return Point(group, key, value, step, NOW + step)


def test_it_is_a_tracker() -> None:
    """The seam of the forwarder fits, and the name says which logger."""
    tracker = LightningLoggerTracker(ListLogger())
    assert isinstance(tracker, Tracker)
    assert (tracker.name, tracker.destination) == ("logger-ListLogger", "ListLogger")


def test_nothing_is_logged_before_the_training_thread_says_so() -> None:
    """Loggers are not thread-safe."""
    logger = ListLogger()
    tracker = LightningLoggerTracker(logger)
    tracker.send([point("a", 1.0, 5), point("b", 2.0, 5), point("cpu", 3.0, 6, "hardware")])
    assert logger.calls == []
    assert tracker.deliver() == 3
    assert logger.calls == [
        (5, {"stallmeter/a": 1.0, "stallmeter/b": 2.0}),
        (6, {"stallmeter/hardware/cpu": 3.0}),
    ]
    assert tracker.deliver() == 0
    assert len(logger.calls) == 2


def test_batches_that_share_a_step_keep_their_values() -> None:
    """With gradient accumulation a key comes several times per step; none overwrites another."""
    logger = ListLogger()
    tracker = LightningLoggerTracker(logger)
    tracker.send([point("a", 1.0, 5), point("b", 1.5, 5), point("a", 2.0, 5), point("b", 2.5, 5)])
    tracker.deliver()
    assert logger.calls == [
        (5, {"stallmeter/a": 1.0, "stallmeter/b": 1.5}),
        (5, {"stallmeter/a": 2.0, "stallmeter/b": 2.5}),
    ]


def test_a_full_mailbox_keeps_points_in_the_recording() -> None:
    """While the training thread is busy for long, the forwarder waits instead of dropping."""
    tracker = LightningLoggerTracker(ListLogger(), mailbox_points=3)
    tracker.send([point("a", 1.0, 1), point("a", 1.0, 2)])
    with pytest.raises(TrackerUnavailableError, match="2 points wait"):
        tracker.send([point("a", 1.0, 3), point("a", 1.0, 4)])
    assert tracker.deliver() == 2
    tracker.send([point("a", 1.0, 3), point("a", 1.0, 4)])
    assert tracker.deliver() == 2


def test_pages_and_close_leave_the_logger_alone() -> None:
    """The trainer owns it."""
    logger = ListLogger()
    tracker = LightningLoggerTracker(logger)
    tracker.show(Page(tags={"a": "b"}, headline="h", note="n", files={}, final=True))
    tracker.close()
    assert logger.calls == []


@pytest.mark.parametrize("namespace", ["lightning.pytorch", "pytorch_lightning"])
def test_a_real_csv_logger_gets_every_window(namespace: str, tmp_path: Path) -> None:
    """Through recording, forwarder and mailbox into metrics.csv, on the thread that calls deliver."""
    loggers = pytest.importorskip(f"{namespace}.loggers")
    logger = loggers.CSVLogger(tmp_path / "logs")
    tracker = LightningLoggerTracker(logger)
    problems: list[object] = []
    recorder = Recorder(tmp_path / "recording", Header(run_id="test", started_s=NOW))
    forwarder = Forwarder(
        tmp_path / "recording",
        0,
        [tracker],
        guard=lambda name, fn: fn(),
        on_problem=lambda name, message: problems.append(message),
    )
    for number in range(5):
        recorder.write(
            WindowRecord(
                time_s=NOW + number,
                tracker_step=10 * number,
                duration_s=1.0,
                metrics={"data_wait_ms": number + 0.5},
                hardware={"job_cpus": 2.0},
            )
        )
    recorder.close()
    assert forwarder.close(30.0) == ()
    assert tracker.deliver() == 10
    logger.save()
    with Path(logger.log_dir, "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["stallmeter/data_wait_ms"], row["stallmeter/hardware/job_cpus"]) for row in rows] == [
        (str(10 * n), str(n + 0.5), "2.0") for n in range(5)
    ]
    assert problems == []
