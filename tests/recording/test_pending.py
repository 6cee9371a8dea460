"""Recordings that their tracker has not got are found when the next run starts, and sent by one command."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from stallmeter.recording import Header, Position, Recorder, pending
from stallmeter.recording.cursor import Cursor, cursor_path, cursors, read_cursor, write_cursor
from stallmeter.recording.pending import is_written, pending_deliveries_below, unfinished_cursors
from stallmeter.records import Event, HostSample

from ..conftest import ListTracker
from ..monitors import bare_monitor

NOW = time.time()


def dead_pid() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def recording(
    folder: Path, *, label: str = "mlflow", complete: bool = False, end: bool = True, pid: int = 0, host: str = ""
) -> Path:
    recorder = Recorder(folder, Header(run_id="x", started_s=NOW, pid=pid, host=host or socket.gethostname()))
    recorder.write(HostSample(time_s=NOW))
    if end:
        recorder.write(Event(time_s=NOW, name="end", detail="end"))
        recorder.write(HostSample(time_s=NOW))
    recorder.close()
    write_cursor(cursor_path(folder, label, 0), Cursor("http://host run 1", complete=complete))
    return folder


def test_what_a_tracker_lacks_is_found(tmp_path: Path) -> None:
    """Of killed and of ended runs; nothing of complete ones, of other trackers and of folders of other kinds."""
    killed = recording(tmp_path / "20260101-a", end=False, pid=dead_pid())
    ended = recording(tmp_path / "20260102-b")
    recording(tmp_path / "20260103-c", complete=True)
    recording(tmp_path / "20260104-d", label="logger-CSVLogger")
    twin = recording(tmp_path / "20260105-e", label="mlflow-2")
    (tmp_path / "else").mkdir()
    (tmp_path / "file").touch()
    assert pending.pending_deliveries(tmp_path) == [twin, ended, killed]
    assert pending.pending_deliveries(tmp_path, but=twin) == [ended, killed]
    assert pending_deliveries_below(tmp_path) == [killed, ended, twin]


def test_a_run_that_goes_on_is_no_pending_delivery(tmp_path: Path) -> None:
    """Its own program still sends: its process lives, or, on another host, its file grows."""
    assert is_written(recording(tmp_path / "here", end=False, pid=os.getpid()))
    assert not is_written(recording(tmp_path / "ended", end=True, pid=os.getppid()))
    assert not is_written(recording(tmp_path / "still being sent", end=True, pid=os.getpid()))
    elsewhere = recording(tmp_path / "elsewhere", end=False, pid=1, host="another")
    assert is_written(elsewhere)
    assert pending.pending_deliveries(tmp_path) == [tmp_path / "ended"]
    os.utime(elsewhere / "rank0.0000.jsonl", (NOW - 3600, NOW - 3600))
    assert not is_written(elsewhere)


def test_a_killed_run_is_left_over_on_every_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, and where signal 0 is Ctrl-C: it was taken to run for ever, or was interrupted."""
    killed = recording(tmp_path / "killed", end=False, pid=dead_pid())
    reused = recording(tmp_path / "reused", end=False, pid=77)
    alive = recording(tmp_path / "alive", end=False, pid=78)
    read = Path.read_text

    def no_proc(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.as_posix().startswith("/proc"):
            raise FileNotFoundError(path)
        return read(path, *args, **kwargs)

    def started(pid: int) -> SimpleNamespace:
        ages_s = {77: -3600.0, 78: 3600.0}  # one began long after the recording did
        if pid not in ages_s:
            raise psutil.NoSuchProcess(pid)
        return SimpleNamespace(pid=pid, status=lambda: "running", create_time=lambda: NOW - ages_s[pid])

    monkeypatch.setattr(Path, "read_text", no_proc)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    monkeypatch.setattr(psutil, "Process", started)
    assert [is_written(folder) for folder in (killed, reused, alive)] == [False, False, True]
    assert pending.pending_deliveries(tmp_path) == [reused, killed]


def test_only_the_newest_are_looked_at(tmp_path: Path) -> None:
    for number in range(pending.NEWEST + 3):
        recording(tmp_path / f"2026{number:04d}")
    found = pending.pending_deliveries(tmp_path)
    assert len(found) == pending.NEWEST
    assert found[0].name == f"2026{pending.NEWEST + 2:04d}"
    assert len(pending_deliveries_below(tmp_path)) == pending.NEWEST + 3


def test_what_was_sent_elsewhere_is_no_pending_delivery(tmp_path: Path) -> None:
    folder = recording(tmp_path / "a")
    path = cursor_path(folder, "mlflow-new-0a1b2c3d", 0)
    write_cursor(path, Cursor("http://other run 2"))
    assert list(unfinished_cursors(folder)) == ["mlflow"]
    write_cursor(path, Cursor("http://other run 2", complete=True))
    assert unfinished_cursors(folder) == {}


def test_cursors_are_kept_as_they_are_and_garbage_is_none(tmp_path: Path) -> None:
    """One of an earlier version, without the later fields, counts as not complete."""
    cursor = Cursor("http://host run 1", 3, Position(1, 2), 4, complete=True, ours=True)
    path = cursor_path(tmp_path, "a/b", 3)
    assert path.name == "cursor-a_b-rank3.json"
    write_cursor(path, cursor)
    assert read_cursor(path) == cursor
    assert cursors(tmp_path) == {"a_b": cursor}
    assert cursors(tmp_path, 0) == {}
    for text in ("", "[]", "3", '{"destination": 1}'):
        path.write_text(text)
        assert read_cursor(path) is None
    path.write_text('{"destination": "d", "rank": 0, "part": 0, "offset": 5, "points": 1}')
    assert read_cursor(path) == Cursor("d", 0, Position(0, 5), 1)


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_that_starts_says_what_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int) -> None:
    """One line, with the command that sends it."""
    found = [recording(tmp_path / f"2026010{i}-x") for i in range(number)]
    with caplog.at_level(logging.WARNING, "stallmeter"):
        bare_monitor(tmp_path, console=True, trackers=[ListTracker()]).close()
    lines = [r.getMessage() for r in caplog.records if "earlier recording" in r.getMessage()]
    where = found[0] if number == 1 else tmp_path
    assert len(lines) == 1
    assert f"{number} earlier" in lines[0]
    assert lines[0].endswith(f"stallmeter sync {where}")


def test_a_run_that_starts_alone_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bare_monitor(tmp_path, console=True).close()
    assert not caplog.records
