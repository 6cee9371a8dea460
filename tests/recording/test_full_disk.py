"""A disk that is full for a while costs a recording nothing, and a file left without a header costs that file."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stallmeter import recording
from stallmeter.cli import main
from stallmeter.delivery.delivery import deliver
from stallmeter.errors import RecordingError
from stallmeter.recording import Header, Position, Reader, Recorder
from stallmeter.recording.cursor import Cursor, cursor_path, write_cursor
from stallmeter.recording.pending import is_written
from stallmeter.records import Event, LedgerRecord, UserMetrics
from stallmeter.report.model import read_history
from stallmeter.report.text import to_text

from ..conftest import FakeTime, ListTracker
from ..monitors import bare_monitor

HEADER = Header(run_id="full", started_s=1.7e9, host="gone")
HEADER_BYTES = 4096
"""More than a header takes."""


class SmallDisk:
    """A file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        with suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while file.write(b"x" * 65536):
                pass

    def clear(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """8 MB of memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel takes what fits of a write, and then nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def event(number: int) -> Event:
    return Event(time_s=float(number), name="n" * 200)


def times(folder: Path, **where: Any) -> list[float]:
    reader = Reader(folder, **where)
    found = [record.time_s for record, _ in reader if isinstance(record, Event)]
    assert (reader.skipped, reader.skipped_parts) == (0, [])
    return found


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_at_the_roll_over(disk: SmallDisk) -> None:
    """Five flushes fail where a new part is due; afterwards every line is there, in parts that can be read."""
    folder = disk.folder / "run"
    recorder = Recorder(folder, HEADER, part_bytes=HEADER_BYTES)
    written = failures = 0
    while recorder.path.stat().st_size <= HEADER_BYTES:
        recorder.write(event(written))
        recorder.flush()
        written += 1
    disk.fill()
    while failures < 5:
        recorder.write(event(written))
        written += 1
        try:
            recorder.flush()
        except OSError:
            failures += 1
    assert [f.name for f in sorted(folder.iterdir())] == ["rank0.0000.jsonl"]
    disk.clear()
    recorder.write(event(written))
    recorder.close()
    assert times(folder) == list(range(written + 1))
    assert recorder.take_losses() == []


def test_a_run_whose_disk_is_full_for_a_while(
    disk: SmallDisk, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report counts every step, and the tracker gets what it would have got."""
    monkeypatch.setattr(recording.Recorder.__init__, "__kwdefaults__", {"part_bytes": HEADER_BYTES})
    tracker = ListTracker()
    monitor = bare_monitor(disk.folder, interval_s=3600, trackers=[tracker], now=fake_time)
    tick = monitor.run.collector.tick
    for i, _ in enumerate(monitor.watch(range(18))):
        fake_time.sleep(1.0)
        monitor.log({"loss": float(i)})
        if i == 8:
            disk.fill()
        if i == 14:
            disk.clear()
        tick()
    monitor.close()
    assert monitor.folder is not None
    report = read_history(monitor.folder).report()
    assert (report.steps, report.recorded_steps, report.ended) == (18, 18, "end")
    assert [e.name for e in report.events] == ["end"]
    logged = [x.metrics["loss"] for x, _ in Reader(monitor.folder) if isinstance(x, UserMetrics)]
    assert logged == list(range(18))
    assert [p.value for p in tracker.points if p.key == "user/loss"] == logged


@pytest.mark.parametrize("room", range(0, 470, 23))
@pytest.mark.parametrize("part_bytes", [1, 1 << 20], ids=["roll-over", "same part"])
def test_a_write_that_stops_anywhere_is_gone_on_with(tmp_path: Path, room: int, part_bytes: int) -> None:
    """Nothing is missing and nothing is there twice, however much of it had fitted, in a header or in a line."""
    recorder = Recorder(tmp_path, HEADER, part_bytes=part_bytes)
    for i in range(2):
        recorder.write(event(i))
    size = recorder.path.stat().st_size
    for _ in range(2):
        with file_size_limit(size + room), pytest.raises(OSError, match="large"):
            recorder.flush()
        seen = times(tmp_path)
        assert seen == [0.0, 1.0][: len(seen)]
    recorder.write(event(2))
    recorder.close()
    assert times(tmp_path) == [0.0, 1.0, 2.0]
    assert list(tmp_path.glob("*.tmp")) == []


def test_what_is_kept_for_a_retry_is_bounded_and_what_is_dropped_is_told(
    disk: SmallDisk, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the new part cannot be begun, and between two flushes."""
    monkeypatch.setattr("stallmeter.recording.writer.KEPT_LINES", 50)
    monkeypatch.setattr(recording.Recorder.__init__, "__kwdefaults__", {"part_bytes": 1})
    monitor = bare_monitor(disk.folder, interval_s=3600, now=fake_time)
    recorder = monitor.run.output.recorder
    assert recorder is not None
    disk.fill()
    for i in range(500):
        monitor.log({"loss": float(i)})
        if i % 100 == 0:
            monitor.run.collector.tick()
    monitor.run.collector.keep_inbox()
    disk.clear()
    monitor.close()
    assert monitor.folder is not None
    reader = Reader(monitor.folder)
    logged = [x.metrics["loss"] for x, _ in reader if isinstance(x, UserMetrics)]
    assert reader.skipped == 0
    assert logged[-40:] == list(range(460, 500))
    assert logged == sorted(set(logged))
    assert len(logged) < 100
    (told,) = [e for e in read_history(monitor.folder).report().events if e.name == "the recording is not complete"]
    dropped = int(told.detail.split()[0])
    assert 500 - len(logged) <= dropped <= 520
    assert caplog.text.count("the recording is not complete") == 1


def test_lines_that_never_found_room_are_counted_at_the_end(disk: SmallDisk) -> None:
    recorder = Recorder(disk.folder / "run", HEADER)
    disk.fill()
    for i in range(100):
        recorder.write(event(i))
    with pytest.raises(OSError, match=r"the last \d+ lines are lost.*No space left"):
        recorder.close()


class LateDisk:
    """A network file system: it says when a file is closed that it could not keep it."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def close(self) -> None:
        self.file.close()
        raise OSError(5, "Input/output error")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_part_that_cannot_be_closed_is_told_and_costs_no_other_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEADER, part_bytes=1)
    recorder._file = LateDisk(recorder._file)
    for i in range(3):
        recorder.write(event(i))
        recorder.flush()
    assert times(tmp_path) == [0.0, 1.0, 2.0]
    (told,) = recorder.take_losses()
    assert told.startswith("lines before rank0.0001.jsonl may be missing: ")
    assert "Input/output error" in told
    recorder.close()


# -- reading -----------------------------------------------------------------------------------------------------------

NO_HEADERS = {
    "empty": b"",
    "torn": b'["hea',
    "zeros": bytes(8192),
    "zeros and a line": bytes(100) + b"\n" + b'["event",{"time_s":99.0,"name":"x"}]\n',
    "of nobody": b"hello\n",
}


@pytest.fixture(params=NO_HEADERS.values(), ids=NO_HEADERS)
def crashed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Four parts, of which the second and the last have no header."""
    return crashed_with(tmp_path / "run", request.param)


def crashed_with(folder: Path, content: bytes) -> Path:
    for part in range(4):
        if part % 2:
            (folder / f"rank0.{part:04d}.jsonl").write_bytes(content)
            continue
        recorder = Recorder(folder, HEADER)
        recorder.write(event(part))
        recorder.write(UserMetrics(time_s=float(part), tracker_step=part, metrics={"loss": float(part)}))
        recorder.write(LedgerRecord(time_s=1.7e9, wall_s=part + 1.0, steps=part, epochs=1, buckets={"other": 1.0}))
        recorder.close()
    return folder


BAD = ["rank0.0001.jsonl", "rank0.0003.jsonl"]


def test_a_part_without_a_header_is_passed_over_and_named(crashed: Path) -> None:
    reader = Reader(crashed)
    assert [x.time_s for x, _ in reader if isinstance(x, Event)] == [0.0, 2.0]
    assert reader.skipped_parts == BAD
    assert reader.position.part == 2
    assert list(reader) == []
    assert (reader.header(), reader.newest()) == (HEADER, (crashed / "rank0.0002.jsonl", HEADER))
    assert reader.every_for(0) == 1
    assert [x.time_s for x, _ in Reader(crashed, position=Position(1, 17)) if isinstance(x, Event)] == [2.0]


def test_the_first_part_may_be_the_one(crashed: Path) -> None:
    (crashed / "rank0.0000.jsonl").write_bytes((crashed / "rank0.0001.jsonl").read_bytes())
    assert Reader(crashed).header() == HEADER
    (crashed / "rank0.0002.jsonl").unlink()
    with pytest.raises(RecordingError, match=r"rank0\.0000\.jsonl is no recording .* not a header"):
        Reader(crashed).header()
    with pytest.raises(RecordingError, match=r"rank0\.0000\.jsonl is no recording .* not a header"):
        Reader(crashed).newest()


def test_the_report_has_what_comes_after_and_names_the_part(crashed: Path) -> None:
    report = read_history(crashed).report()
    assert report.steps == 2
    assert [e.name for e in report.events][-2:] == [f"{name} was passed over" for name in BAD]
    assert "rank0.0001.jsonl was passed over" in to_text(report, width=200)


def test_a_tracker_gets_what_comes_after(crashed: Path) -> None:
    """Also one that had been sent the first part before."""
    tracker = ListTracker()
    assert deliver(crashed, 0, tracker) == 2
    assert [p.value for p in tracker.points] == [0.0, 2.0]
    end_of_first = (crashed / "rank0.0000.jsonl").stat().st_size
    write_cursor(cursor_path(crashed, "late", 0), Cursor("memory", 0, Position(0, end_of_first), 1))
    late = ListTracker("late")
    assert deliver(crashed, 0, late) == 1
    assert [p.value for p in late.points] == [2.0]


def test_sync_sends_it_and_says_so(
    tmp_path: Path, new_database: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    crashed = crashed_with(tmp_path / "run", b"")
    os.utime(crashed / "rank0.0002.jsonl", (1.7e9, 1.7e9))
    assert main(["sync", str(crashed), "--to", new_database(tmp_path / "mlflow.db")]) == 0
    out, err = capsys.readouterr()
    assert "2 points sent to" in out
    assert [line for line in err.splitlines() if line.startswith(str(crashed))] == [
        f"{crashed}: {name} has no header and was passed over" for name in BAD
    ]


def test_whether_a_run_goes_on_is_read_from_the_newest_part_with_a_header(tmp_path: Path) -> None:
    header = Header(run_id="x", started_s=time.time(), host=socket.gethostname(), pid=os.getpid())
    recorder = Recorder(tmp_path, header)
    (tmp_path / "rank0.0001.jsonl").touch()
    assert is_written(tmp_path)
    recorder.close()


@pytest.mark.parametrize("what", ["the folder", "the file"])
def test_a_recording_that_is_deleted_is_begun_anew(tmp_path: Path, what: str) -> None:
    """A write to a file without a name does not fail: it would be lost without a word."""
    folder = tmp_path / "runs" / "run"
    recorder = Recorder(folder, HEADER)
    recorder.write(Event(time_s=0.0, name="zero"))
    recorder.flush()
    if what == "the folder":
        shutil.rmtree(tmp_path / "runs")
    else:
        recorder.path.unlink()
    recorder.write(Event(time_s=1.0, name="one"))
    recorder.flush()
    recorder.write(Event(time_s=2.0, name="two"))
    recorder.close()
    (lost,) = recorder.take_losses()
    assert "has been deleted" in lost
    assert [record.name for record, _ in Reader(folder) if isinstance(record, Event)] == ["one", "two"]
