"""Any other Lightning logger: points are logged on the training thread, never on the forwarder's."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from stallmeter.delivery.delivery import deliver, points_left
from stallmeter.delivery.forwarder import Forwarder
from stallmeter.delivery.points import points_of
from stallmeter.delivery.trackers.lightning_logger import LightningLoggerTracker
from stallmeter.errors import TrackerUnavailableError
from stallmeter.recording import Header, Reader, Recorder
from stallmeter.recording.cursor import cursor_path, cursors, read_cursor
from stallmeter.records import WindowRecord
from stallmeter.records.interfaces import Page, Point, Tracker

from ...conftest import ListTracker
from ...lightning.conftest import Bench

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


class Moody(ListLogger):
    """Fails at some of its calls."""

    def __init__(self, *failing: int) -> None:
        super().__init__()
        self.failing = failing
        self.asked = 0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.asked += 1
        if self.asked in self.failing:
            raise OSError(28, "No space left on device")
        super().log_metrics(metrics, step)


def test_what_the_logger_did_not_take_is_kept_for_the_next_call() -> None:
    """Each point is logged once, whichever call fails; those of a later step may overtake none."""
    for failing in range(1, 4):
        logger = Moody(failing)
        tracker = LightningLoggerTracker(logger)
        tracker.send([point("a", 1.0, 5), point("a", 1.0, 6), point("b", 2.0, 5), point("a", 1.0, 7)])
        with pytest.raises(OSError, match="No space"):
            tracker.deliver()
        assert tracker.waiting
        assert tracker.held_points == {1: 4, 2: 3, 3: 1}[failing]
        tracker.send([point("a", 1.0, 8)])
        tracker.deliver()
        assert (tracker.waiting, tracker.held_points) == (False, 0)
        assert logger.calls == [
            (5, {"stallmeter/a": 1.0, "stallmeter/b": 2.0}),
            *((step, {"stallmeter/a": 1.0}) for step in (6, 7, 8)),
        ]


def test_a_logger_that_refuses_is_asked_again_as_late_as_any_other_tracker() -> None:
    """In 1 s, then 2 s, up to 15 s, and never given up; what it takes makes the next wait short again."""
    now = [100.0]
    logger = Moody(*range(1, 8), 9)
    tracker = LightningLoggerTracker(logger)
    tracker.send([point("a", 1.0, 1), point("a", 1.0, 2)])
    waits: list[float] = []
    while tracker.waiting:
        began = now[0]
        while not tracker.is_due(now[0]):
            now[0] += 0.5
        waits.append(now[0] - began)
        with contextlib.suppress(OSError):
            tracker.deliver(lambda: now[0])
    assert waits == [0, 1, 2, 4, 8, 15, 15, 15, 1]
    assert [step for step, _ in logger.calls] == [1, 2]


def test_a_logger_that_is_slow_to_refuse_does_not_hold_up_the_training() -> None:
    """One with a timeout of 4 s would take a fifth of the time if it were asked every 15 s."""
    now = [100.0]

    class Slow(ListLogger):
        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            now[0] += 4
            raise TimeoutError

    tracker = LightningLoggerTracker(Slow())
    tracker.send([point("a", 1.0, 1)])
    with pytest.raises(TimeoutError):
        tracker.deliver(lambda: now[0])
    assert not tracker.is_due(now[0] + 399)
    assert tracker.is_due(now[0] + 400)


def test_a_logger_that_refuses_for_many_batches_gets_everything_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The batches of a fast loop are no measure of how long an outage lasts."""
    bench = Bench("lightning.pytorch", tmp_path)
    logger = bench.pl.loggers.CSVLogger(tmp_path / "csv")
    tracker = LightningLoggerTracker(logger)
    log_metrics, began = logger.log_metrics, bench.time()
    refused: list[float] = []

    def refuse(metrics: Mapping[str, float], step: int | None = None) -> None:
        now_s = (bench.time() - began) / 1e9
        if any(key.startswith("stallmeter") for key in metrics) and now_s < 11:
            refused.append(now_s)
            raise OSError(5, "Input/output error")
        if step == 4:
            deadline = time.monotonic() + 60
            while not tracker.waiting and time.monotonic() < deadline:
                time.sleep(0.02)
        log_metrics(metrics, step)

    logger.log_metrics = refuse
    sm = bench.monitor(trackers=tracker)
    trainer = bench.trainer(sm, logger=logger, max_epochs=1, log_every_n_steps=1)
    trainer.fit(bench.model(training_step=0.5), bench.loader(4 * 40))
    assert len(refused) == 4
    assert sm.monitor.finish()
    assert sm.monitor.undelivered == ()
    assert caplog.text.count("tracker logger-CSVLogger failed and is tried again") == 1
    (cursor,) = cursors(sm.monitor.folder).values()
    assert cursor.points == sum(len(points_of(x)) for x, _ in Reader(sm.monitor.folder))


def record(folder: Path, windows: int) -> None:
    recorder = Recorder(folder, Header(run_id="test", started_s=NOW))
    for number in range(windows):
        recorder.write(
            WindowRecord(time_s=NOW + number, tracker_step=number, duration_s=1.0, metrics={"a": 1.0, "b": 2.0})
        )
    recorder.close()


def test_the_cursor_moves_when_points_were_handed_over(tmp_path: Path) -> None:
    """Not when they are in the mailbox: a kill loses that."""
    record(tmp_path, 5)
    logger = Moody(4)
    tracker = LightningLoggerTracker(logger)
    forwarder = Forwarder(
        tmp_path, 0, [tracker], guard=lambda name, fn: fn(), on_problem=lambda name, message: None, start=False
    )

    def left() -> tuple[int, int]:
        known = read_cursor(cursor_path(tmp_path, tracker.name, 0))
        assert known is not None
        return known.points, points_left(tmp_path, 0, tracker)

    tracker.batch_size = 2
    forwarder.turn()
    assert left() == (0, 10)
    with pytest.raises(OSError, match="No space"):
        tracker.deliver()
    forwarder.turn()
    assert left() == (6, 4)
    assert forwarder.close() == ()
    assert left() == (6, 4)
    assert [u.points for u in forwarder.settle()] == [4]
    assert tracker.deliver() == 4
    assert forwarder.settle() == ()
    assert left() == (10, 0)
    assert len(logger.calls) == 5


def test_a_record_that_does_not_fit_into_the_mailbox_is_logged_once(tmp_path: Path) -> None:
    """Its first points went in; the others follow when there is room, and no larger mailbox is needed for a record."""
    recorder = Recorder(tmp_path, Header(run_id="test", started_s=NOW))
    metrics = {f"m{i}": float(i) for i in range(10)}
    recorder.write(WindowRecord(time_s=NOW, tracker_step=1, duration_s=1.0, metrics=metrics))
    recorder.close()
    logger = ListLogger()
    tracker = LightningLoggerTracker(logger, mailbox_points=5)
    tracker.batch_size = 4
    now = [0.0]
    forwarder = Forwarder(
        tmp_path,
        0,
        [tracker],
        guard=lambda name, fn: fn(),
        on_problem=lambda name, message: None,
        monotonic=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
        start=False,
    )
    for _ in range(4):
        forwarder.turn()
        tracker.deliver()
        now[0] += 60
    assert forwarder.close() == ()
    logged = [key for _, row in logger.calls for key in row]
    assert sorted(logged) == sorted(f"stallmeter/{key}" for key in metrics)


KILLED = """
import json, os, signal, sys
from pathlib import Path
from stallmeter.recording.cursor import cursor_path, read_cursor
from stallmeter import Monitor
from stallmeter.delivery.trackers.lightning_logger import LightningLoggerTracker
import time

class FileLogger:
    def log_metrics(self, metrics, step=None):
        with open(sys.argv[2], "a") as file:
            file.write(json.dumps([step, metrics]) + "\\n")

def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)

tracker = LightningLoggerTracker(FileLogger())
bare = {"hardware": False, "workers": False, "rules": (), "console": False}
monitor = Monitor(directory=Path(sys.argv[1]), interval_s=0.05, trackers=[tracker], **bare)
print(monitor.folder)
for i, _ in enumerate(monitor.watch(range(40))):
    if i == 20:
        wait_for(lambda: tracker.held_points >= 38)
        delivered = tracker.deliver()
        wait_for(lambda: read_cursor(cursor_path(monitor.folder, tracker.name, 0)).points >= delivered)
wait_for(lambda: tracker.held_points >= 38)
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_kill_took_from_the_mailbox_is_not_lost(tmp_path: Path) -> None:
    """The cursor says what the logger had got; the rest can still be sent."""
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, log], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = Path(done.stdout.strip())
    logged = sum(len(json.loads(line)[1]) for line in log.read_text().splitlines())
    written = sum(len(points_of(x)) for x, _ in Reader(folder))
    known = read_cursor(cursor_path(folder, "logger-FileLogger", 0))
    assert known is not None
    assert (known.points, known.complete) == (logged, False)
    assert written >= logged + 38
    rest = ListTracker("logger-FileLogger")
    rest.destination = "FileLogger"
    assert deliver(folder, 0, rest) == written - logged


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
