"""A report while the run goes on: what is read, what is said when, and how it ends."""

from __future__ import annotations

import io
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stallmeter import cli
from stallmeter.machine.procfs import process_space
from stallmeter.recording import Header, Recorder
from stallmeter.recording import reader as reader_module
from stallmeter.records import Event, LoaderInfo
from stallmeter.report import follow as follow_module
from stallmeter.report.follow import MERGED_STEPS, QUIET_LOOKS, Followed, Lines, follow
from stallmeter.report.model import Report, read_history
from stallmeter.report.text import Screen, to_text
from stallmeter.rules.evaluation import diagnose

from .recordings import START_S, VERDICT, hardware, ledger, step, write

GONE = "no program writes this recording any more: the run has ended and could not say how"


class Growing:
    """A recording that a test lets grow."""

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1, **options: Any) -> None:
        self.folder = folder
        known = {"host": "node1", "pid": 42, "framework": "loop", "started_s": START_S, "run_id": "ab12cd"}
        self.recorder = Recorder(folder, Header(rank=rank, world_size=world_size, **known), **options)

    def add(self, *records: Any) -> None:
        for record in records:
            self.recorder.write(record)
        self.recorder.flush()


class Shown:
    """A display that remembers."""

    def __init__(self) -> None:
        self.reports: list[Report | None] = []
        self.states: list[str] = []
        self.ended: tuple[Report | None, str] | None = None

    def show(self, report: Report | None, status: str) -> None:
        self.reports.append(report)
        self.states.append(status)

    def end(self, report: Report | None, status: str) -> None:
        self.ended = report, status


def script(*acts: Callable[[], object]) -> Callable[[float], None]:
    """Sleeping, as a test wants it: each time the next thing happens."""
    left = list(acts)

    def sleep(seconds: float) -> None:
        assert seconds == 2.0
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    return sleep


def end(detail: str = "end") -> Event:
    return Event(time_s=START_S + 99, name="end", detail=detail)


def test_it_quits_with_the_run(tmp_path: Path) -> None:
    run, shown = Growing(tmp_path), Shown()
    acts = (
        lambda: run.add(ledger(steps=10), *(step(i) for i in range(10))),
        lambda: run.add(ledger(steps=20), *(step(i) for i in range(10, 20))),
        lambda: run.add(end(), ledger(steps=30), VERDICT),
    )
    follow(Followed(tmp_path), shown, sleep=script(*acts))
    assert [None if one is None else one.steps for one in shown.reports] == [None, 10, 20]
    assert set(shown.states) == {"the run goes on"}
    assert shown.ended is not None
    report, status = shown.ended
    assert status == "the run has ended"
    assert report is not None
    assert (report.steps, report.ended, report.verdict.primary) == (30, "end", VERDICT.primary)


def test_the_last_verdict_comes_a_moment_later(tmp_path: Path) -> None:
    run, shown = Growing(tmp_path), Shown()
    run.add(*hardware(), *(step(i) for i in range(20)), ledger(), end())
    follow(Followed(tmp_path), shown, sleep=script(lambda: run.add(VERDICT)))
    assert shown.ended is not None
    assert shown.ended[0] is not None
    assert shown.ended[0].verdict.primary == VERDICT.primary
    # One that never comes is not waited for for long.
    other, shown = Growing(tmp_path / "other"), Shown()
    other.add(*(step(i) for i in range(20)), ledger(), end("exception: ValueError"))
    follow(Followed(other.folder), shown, sleep=script(lambda: None))
    assert shown.ended is not None
    assert shown.ended[1] == "the run has ended"


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what stands in parts that are full."""
    decoded = []
    decode = reader_module.decode
    monkeypatch.setattr(reader_module, "decode", lambda line, columns: decoded.append(line) or decode(line, columns))
    run = Growing(tmp_path, part_bytes=20_000)
    run.add(*hardware())
    for at in range(0, 1000, 100):
        run.add(*(step(i) for i in range(at, at + 100)), ledger(steps=at))
    assert len(list(tmp_path.glob("rank0.*.jsonl"))) > 2
    followed = Followed(tmp_path)
    assert followed.look()
    assert len(decoded) > 1000
    decoded.clear()
    assert not followed.look()
    assert decoded == []
    run.add(*(step(i) for i in range(1000, 1003)), ledger(steps=1003))
    assert followed.look()
    assert len(decoded) == 4
    report, once = followed.report(), read_history(tmp_path).report()
    assert report is not None
    assert (report.steps, report.step_time_s, report.ledger) == (1003, once.step_time_s, once.ledger)


def test_it_says_what_report_says(tmp_path: Path) -> None:
    """While the run goes on these are today's rules on what there is."""
    run = Growing(tmp_path)
    info = LoaderInfo(time_s=START_S, kind="DataLoader", num_workers=0, batch_size=32, probed=True)
    run.add(info, *(step(i) for i in range(60)), ledger(steps=60))
    followed = Followed(tmp_path)
    followed.look()
    report = followed.report()
    assert report is not None
    history = read_history(tmp_path)
    assert report.verdict.primary is not None
    assert to_text(report) == to_text(history.report(diagnose(history.window)))


def test_ctrl_c_ends_the_showing_and_nothing_else(tmp_path: Path) -> None:
    run, shown = Growing(tmp_path), Shown()
    run.add(*(step(i) for i in range(20)), ledger())
    follow(Followed(tmp_path), shown, sleep=script())
    assert shown.ended is not None
    assert shown.ended[1] == "the run goes on"
    assert shown.ended[0] is shown.reports[0]


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """Of this machine its process tells, of another one that the recording does not grow."""
    run, shown = Growing(tmp_path), Shown()
    run.add(*(step(i) for i in range(20)), ledger())
    silent = time.time() - 3600
    os.utime(run.recorder.path, (silent, silent))
    follow(Followed(tmp_path), shown, sleep=script(*(20 * [lambda: None])))
    assert shown.ended is not None
    assert shown.ended[1] == GONE
    assert len(shown.states) == QUIET_LOOKS


def test_a_process_that_is_gone_from_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    shown = Shown()
    header = {"host": socket.gethostname(), "process_space": process_space(), "pid": 4_000_000_000}
    folder = write(tmp_path, [*(step(i) for i in range(20)), ledger()], **header, started_s=time.time())
    follow(Followed(folder), shown, sleep=script())
    assert shown.states == []
    assert shown.ended is not None
    report, status = shown.ended
    assert status == GONE
    assert report is not None
    assert report.running is False


def test_an_end_that_comes_while_it_is_asked_for_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process writes it and is gone, between the look and the question."""
    run, shown = Growing(tmp_path), Shown()
    run.add(*(step(i) for i in range(20)), ledger())

    def gone(_: object) -> bool:
        run.add(end(), VERDICT)
        return False

    monkeypatch.setattr(follow_module, "process_lives", gone)
    follow(Followed(tmp_path), shown, sleep=script())
    assert shown.ended is not None
    assert shown.ended[1] == "the run has ended"


def test_one_that_is_silent_is_waited_for(tmp_path: Path) -> None:
    run, shown = Growing(tmp_path), Shown()
    run.add(*(step(i) for i in range(20)), ledger())
    acts = [*(7 * [lambda: None]), lambda: run.add(ledger(steps=21)), lambda: None]
    follow(Followed(tmp_path), shown, sleep=script(*acts))
    assert shown.states[QUIET_LOOKS] == "the run goes on, nothing new for 10 s"
    assert shown.states[-1] == "the run goes on"


def slow_rank(rank: int, first: int, last: int) -> Sequence[Any]:
    """Rank 1 waits for data; rank 0 waits for rank 1 in its backward."""
    own = {"data_wait_s": 0.06, "backward_s": 0.02} if rank else {"data_wait_s": 0.0, "backward_s": 0.08}
    buckets = {"start": 3.0, "data_wait": 60.0 * rank, "backward": 17.0 + 60.0 * (1 - rank), "forward": 20.0}
    shown = {**ledger().buckets, **dict.fromkeys(ledger().buckets, 0.0), **buckets}
    return [*(step(i, **own) for i in range(first, last)), ledger(steps=last, buckets=shown)]


def test_a_job_of_several_ranks(tmp_path: Path) -> None:
    """Also where a rank begins to record later; the job has ended when all have."""
    ranks, shown = [Growing(tmp_path, 0, 2)], Shown()
    ranks[0].add(*slow_rank(0, 0, 200))

    def begin() -> None:
        ranks.append(Growing(tmp_path, 1, 2))
        ranks[1].add(*slow_rank(1, 0, 200))

    def go_on() -> None:
        for rank, one in enumerate(ranks):
            one.add(*slow_rank(rank, 200, 400))

    acts = (begin, go_on, lambda: ranks[0].add(end(), VERDICT), lambda: ranks[1].add(end(), VERDICT))
    follow(Followed(tmp_path), shown, sleep=script(*acts))
    seen = [report for report in shown.reports if report is not None]
    assert [None if one.job is None else len(one.job.rows) for one in seen] == [1, 2, 2, 2]
    assert seen[1].job is not None
    assert seen[2].job is not None
    assert (seen[1].job.steps, seen[2].job.steps) == (200, 400)
    assert seen[2].verdict.primary is not None
    assert seen[2].verdict.primary.ranks == (1,)
    assert shown.ended is not None
    assert shown.ended[1] == "the run has ended"
    alone = Followed(tmp_path, 1)
    alone.look()
    report = alone.report()
    assert report is not None
    assert report.job is None
    assert report.header is not None
    assert report.header.rank == 1


@pytest.mark.long
def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    ranks = [Growing(tmp_path, rank, 2) for rank in range(2)]
    followed = Followed(tmp_path)
    for at in range(0, 12_000, 3000):
        for one in ranks:
            one.add(*(step(i) for i in range(at, at + 3000)), ledger(steps=at + 3000))
        followed.look()
        report = followed.report()
    assert report is not None
    assert report.job is not None
    assert MERGED_STEPS // 2 - 64 <= report.job.steps <= MERGED_STEPS // 2


def test_lines_of_a_run(tmp_path: Path) -> None:
    said: list[str] = []
    run = Growing(tmp_path)
    waits = lambda a, b, **changes: [*(step(i, **changes) for i in range(a, b)), ledger(steps=b)]  # noqa: E731
    info = LoaderInfo(time_s=START_S, kind="DataLoader", num_workers=0, batch_size=32, probed=True)
    acts = (
        lambda: run.add(info, *waits(0, 60)),
        lambda: run.add(*waits(60, 120)),
        lambda: run.add(*waits(120, 180)),
        lambda: run.add(end(), ledger(steps=180), VERDICT),
    )
    follow(Followed(tmp_path), Lines(said.append, now=lambda: 0.0), sleep=script(*acts))
    texts = [line.split("  ", 1)[1] for line in said]
    assert texts[0] == "nothing was measured yet"
    assert texts[1].startswith("60 steps: ")
    assert texts[-2].startswith("180 steps: No worker prepares batches")
    assert texts[-1] == "the run has ended"
    assert len(texts) == 4


def test_the_screen_is_given_back(tmp_path: Path) -> None:
    """Also when the recording turns out to be damaged; the whole report stands below at the end."""
    write(tmp_path, [*(step(i) for i in range(20)), ledger()])

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    followed = Followed(tmp_path)
    with pytest.raises(ZeroDivisionError), Screen(terminal) as screen:
        followed.look()
        screen.show(followed.report(), "the run goes on")
        raise ZeroDivisionError
    drawn = terminal.getvalue()
    assert "the run goes on · Ctrl-C to leave" in drawn
    assert drawn.count("\x1b[?1049h") == drawn.count("\x1b[?1049l") == 1
    with Screen(terminal) as screen:
        screen.end(followed.report(), "the run has ended")
    after = terminal.getvalue()[len(drawn) :].rpartition("\x1b[?1049l")[2]
    assert "Where the time went" in after
    assert after.endswith("the run has ended\n")


COMMAND = (sys.executable, "-m", "stallmeter", "report", "--follow")


def test_the_command_in_a_pipe(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [*hardware(), *(step(i) for i in range(20)), ledger(), end(), VERDICT])
    done = subprocess.run([*COMMAND, str(folder)], capture_output=True, text=True, timeout=60, check=True)
    first, last = done.stdout.splitlines()
    assert "No worker prepares batches beside the loop" in first
    assert last.endswith("the run has ended")
    assert done.stderr == ""


@pytest.mark.long
def test_the_command_in_a_terminal(tmp_path: Path) -> None:
    """It redraws while a run writes, and quits with it."""
    pty, fcntl, termios = (pytest.importorskip(name) for name in ("pty", "fcntl", "termios"))
    run = Growing(tmp_path / "run")
    run.add(*(step(i) for i in range(20)), ledger(steps=1234))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    program = subprocess.Popen([*COMMAND, str(tmp_path)], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    drawn = b""

    def until(words: bytes) -> None:
        nonlocal drawn
        deadline = time.monotonic() + 60
        while words not in drawn:
            assert time.monotonic() < deadline, drawn[-500:]
            drawn += os.read(ours, 65536)

    try:
        until(b"1,234 steps")
        run.add(*(step(i) for i in range(20, 40)), ledger(steps=5678))
        until(b"5,678 steps")
        run.add(end(), VERDICT)
        until(b"the run has ended")
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.wait()
        os.close(ours)


@pytest.mark.parametrize("more", [("--format", "json"), ("--output", "report.txt")])
def test_it_draws_text_alone(more: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run", [step(0), ledger()])
    assert cli.main(["report", str(tmp_path), "--follow", *more]) == 2
    assert "leave out --format and --output" in capsys.readouterr().err
