"""Reports of jobs whose ranks were all ended before rank 0 could write any."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallmeter.machine.ends import Watched, read_wait_status
from stallmeter.machine.procfs import process_space
from stallmeter.recording.ends import ENDS, ProcessEnd, read_ends
from stallmeter.report import survivor
from stallmeter.report.survivor import Survivor, can_survive, complete, tell_meanwhile, wait_for_ends

from ..children import children
from ..rules.job.jobs import START_S, Known
from .job.folders import write_job

pytestmark = pytest.mark.skipif(not can_survive(), reason="the system does not tell of strangers' processes")

Rank = subprocess.Popen[bytes]
KILLED = {rank: Known(ended=None, judged=False) for rank in range(3)}


@pytest.fixture
def ranks() -> Iterator[Callable[[], Rank]]:
    """Starts processes that stand for ranks."""
    made: list[Rank] = []

    def start() -> Rank:
        made.append(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.wait()


def job(folder: Path, *processes: Rank, **more: Any) -> Path:
    for rank, process in enumerate(processes):
        about = {"pid": process.pid, "process_space": process_space(), **more}
        write_job(folder, ranks=len(processes), only=[rank], known=KILLED, **about)
    return folder


def watching(process: Rank) -> Watched[int]:
    watched: Watched[int] = Watched()
    watched.add(0, process.pid)
    return watched


def survivors(folder: Path) -> list[int]:
    """Return those that wait for this folder's rank 0."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            command = path.read_bytes().split(b"\0")
            if len(command) > 4 and b"stallmeter.report.survivor" in command[2] and command[4] == bytes(folder):
                found.append(int(path.parent.name))
    return found


def is_there(pid: int) -> bool:
    """Whether a process has not ended; where nobody waits for orphans it stays as a zombie."""
    return read_wait_status(pid) is None and Path(f"/proc/{pid}").exists()


def test_who_was_killed_first_and_how(tmp_path: Path, ranks: Callable[[], Rank]) -> None:
    first, second = ranks(), ranks()
    folder = job(tmp_path / "job", first, second)
    second.send_signal(signal.SIGKILL)
    first.send_signal(signal.SIGTERM)
    ends = wait_for_ends(folder, watching(first))
    assert {rank: end.signal for rank, end in ends.items()} == {0: signal.SIGTERM, 1: signal.SIGKILL}
    assert abs(ends[0].time_s - time.time()) < 600


def test_a_rank_that_begins_late_is_seen_and_one_that_goes_on_is_left(
    tmp_path: Path, ranks: Callable[[], Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = ranks(), ranks(), ranks()
    folder = tmp_path / "job"
    folder.mkdir()
    looks = iter(
        [
            lambda: job(folder, first, second, third),
            lambda: second.send_signal(signal.SIGKILL),
            lambda: first.send_signal(signal.SIGKILL),
        ]
    )
    wait = survivor.Watched.wait

    def look(self: survivor.Watched[int], timeout_s: float | None) -> bool:
        next(looks, lambda: None)()
        return wait(self, timeout_s)

    monkeypatch.setattr(survivor.Watched, "wait", look)
    monkeypatch.setattr(survivor, "LAST_S", 0.05)
    assert set(wait_for_ends(folder, watching(first))) == {0, 1}


def test_a_death_is_told_while_rank_0_goes_on(
    tmp_path: Path, ranks: Callable[[], Rank], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(survivor, "MEANWHILE_S", 0.05)
    first, second = ranks(), ranks()
    folder = job(tmp_path / "job", first, second, host=platform.node(), started_s=time.time())
    second.send_signal(signal.SIGKILL)
    told: list[dict[int, ProcessEnd]] = []

    def meanwhile(ends: dict[int, ProcessEnd]) -> None:
        told.append(ends)
        tell_meanwhile(folder, ends)
        first.send_signal(signal.SIGTERM)

    ends = wait_for_ends(folder, watching(first), meanwhile)
    assert [set(one) for one in told] == [{1}]
    assert set(ends) == {0, 1}
    assert "Rank 1 died, while others went on." in (folder / "report.md").read_text()
    assert not capfd.readouterr().err
    complete(folder, ends, spoken=False, speaks=False)
    assert "Rank 1 was ended by SIGKILL" in (folder / "report.md").read_text()


@pytest.mark.parametrize("heard", [True, False])
def test_a_death_that_rank_0_follows_is_told_once(
    tmp_path: Path, ranks: Callable[[], Rank], monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    """Its launcher ends it within the moment, or it says itself that all is done."""
    first, second = ranks(), ranks()
    folder = job(tmp_path / "job", first, second)
    second.send_signal(signal.SIGKILL)
    watched = watching(first)
    wait = survivor.Watched.wait

    def look(self: survivor.Watched[int], timeout_s: float | None) -> bool:
        if self.ended and heard:
            self.heard += survivor.DONE
        elif self.ended:
            first.send_signal(signal.SIGKILL)
        return wait(self, 0.0 if self.heard else timeout_s)

    monkeypatch.setattr(survivor.Watched, "wait", look)
    told: list[dict[int, ProcessEnd]] = []
    wait_for_ends(folder, watched, told.append)
    assert not told


def test_ranks_that_have_done_their_part_are_no_deaths(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "job", known={rank: Known(ended="end", judged=False) for rank in range(3)})
    tell_meanwhile(folder, {1: ProcessEnd(time_s=START_S + 50)})
    assert not (folder / "report.md").exists()
    assert not (folder / ENDS).exists()
    tell_meanwhile(tmp_path / "gone", {})


def test_what_is_missing_is_written_and_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write_job(tmp_path / "job", known=KILLED)
    complete(
        folder,
        {0: ProcessEnd(time_s=START_S + 51, signal=15), 1: ProcessEnd(time_s=START_S + 50, signal=9)},
        spoken=False,
        speaks=True,
    )
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith(
        "stallmeter: Rank 1 was ended by SIGKILL (the kernel sends it where memory runs out), and"
    )
    assert said[-1] == f"stallmeter: details: stallmeter report {folder}"
    assert [row["died"] for row in json.loads((folder / "ranks.json").read_text())["ranks"]] == [False, True]
    assert said[0].removeprefix("stallmeter: ") in (folder / "report.md").read_text()
    assert (folder / "steps.csv").is_file()
    assert read_ends(folder)[1].signal == 9


def test_a_program_that_made_its_reports_itself_is_heard_no_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_job(tmp_path / "job")
    complete(folder, {}, spoken=False, speaks=False)
    (folder / ENDS).unlink()
    (folder / "steps.csv").unlink()  # the program did not wait for it
    before = (folder / "report.md").read_text()
    complete(folder, {0: ProcessEnd(time_s=1.0)}, spoken=True, speaks=True)
    assert (folder / "steps.csv").is_file()
    assert (folder / "report.md").read_text() == before
    assert not (folder / ENDS).exists()
    assert not capfd.readouterr().err


def test_a_recording_that_was_removed_is_nobodys(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    complete(tmp_path / "gone", {}, spoken=False, speaks=True)
    assert not (tmp_path / "gone").exists()
    assert not capfd.readouterr().err


def test_the_child_outlives_its_parent_and_what_ends_it(tmp_path: Path, ranks: Callable[[], Rank]) -> None:
    """A program that starts one for itself, and is ended with its whole group of processes."""
    second, folder = ranks(), tmp_path / "job"
    program = (
        "import sys, time; from pathlib import Path; from stallmeter.report.survivor import Survivor;"
        "child = Survivor(Path(sys.argv[1]), speaks=True); print('started', flush=True); time.sleep(600)"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("w"),
        start_new_session=True,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"started\n"
    [child] = survivors(folder)
    job(folder, first, second)
    second.send_signal(signal.SIGKILL)
    os.killpg(first.pid, signal.SIGTERM)
    first.wait()
    deadline = time.monotonic() + 60
    while not (folder / "steps.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "stallmeter: Rank 1 was ended by SIGKILL" in (tmp_path / "stderr").read_text()
    while is_there(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_there(child)
    assert {"report.md", "ranks.json", "diagnosis.json", ENDS} <= {path.name for path in folder.iterdir()}


def test_a_run_that_ends_as_it_should_leaves_nobody(tmp_path: Path) -> None:
    """Nor has the program a child meanwhile that it does not know of."""
    before = children()
    made = Survivor(tmp_path, speaks=True)
    assert not children() - before
    [found] = survivors(tmp_path)
    made.stop()
    deadline = time.monotonic() + 60
    while is_there(found) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_there(found)


def test_what_it_cannot_do_is_said_in_one_line(
    tmp_path: Path, ranks: Callable[[], Rank], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "alarm", lambda _: 0)
    monkeypatch.setattr(os, "chdir", lambda _: None)
    first, folder = ranks(), tmp_path / "job"
    folder.mkdir()
    (folder / "rank0.0000.jsonl").write_text("no recording\n")
    first.send_signal(signal.SIGKILL)
    survivor.main([str(folder), str(first.pid), "speak"])
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("stallmeter: the job's reports could not be made: ")
    assert line.endswith(f"to try again: stallmeter report {folder}")
