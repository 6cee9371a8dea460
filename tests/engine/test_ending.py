"""A run's end holds up its program only for what must be done at once; the rest is waited for when the program ends."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import stallmeter
from stallmeter.engine.monitor import Monitor
from stallmeter.engine.run import is_signalled
from stallmeter.recording import Reader, Recorder
from stallmeter.records import Event, StepRecord
from stallmeter.records.interfaces import Point
from stallmeter.report import child, drawing
from stallmeter.report.drawing import ChildDrawing, DrawingError

from ..children import children, left, our_threads
from ..conftest import ListTracker
from ..monitors import bare_monitor
from ..warm import NO_PICTURES


class SlowDrawing:
    """A child that makes its page when it is told to."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.files = {"report.html": folder / "report.html"}
        self.finish, self.stopped = threading.Event(), False
        self.error: Exception | None = None

    def wait(self, timeout_s: float) -> bool:
        if not self.finish.wait(timeout_s):
            return self.stopped
        if self.error is not None:
            raise self.error
        self.files["report.html"].write_text("page")
        return True

    def stop(self) -> None:
        self.stopped = True


class Bench:
    """Runs of four steps whose drawings can be held up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drawings: list[SlowDrawing] = []
        self.tracker = ListTracker()

    def draw(self, folder: Path, rank: int, _: bool) -> SlowDrawing:
        self.drawings.append(SlowDrawing(folder, rank))
        return self.drawings[-1]

    def run(self, *, budget_s: float = 60.0, **plugins: Any) -> Monitor:
        plugins = {"trackers": [self.tracker], "draw": self.draw, **plugins}
        monitor = bare_monitor(self.folder, close_budget_s=budget_s, interval_s=0.02, **plugins)
        for _ in monitor.watch(range(4)):
            time.sleep(0.001)
        return monitor


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for one in made.drawings:
        one.finish.set()


def events(monitor: Monitor) -> list[str]:
    assert monitor.folder is not None
    return [r.name for r, _ in Reader(monitor.folder) if isinstance(r, Event)]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_the_end_of_a_run_waits_for_the_trackers_points_but_not_for_the_pictures(bench: Bench) -> None:
    """Nor does the next run; the last page comes when they are drawn, and the tracker is let go of then."""
    monitor = bench.run()
    monitor.close()
    assert monitor.folder is not None
    assert {"report.md", "diagnosis.json"} <= {f.name for f in monitor.folder.iterdir()}
    assert "step_time_ms" in {p.key for p in bench.tracker.points}
    assert bench.tracker.pages
    assert not any(page.final for page in bench.tracker.pages)
    assert not monitor.finish(0.0)
    second = bench.run(trackers=[ListTracker("second")])
    second.close()
    assert not bench.tracker.closed
    bench.drawings[0].finish.set()
    assert monitor.finish()
    assert bench.tracker.closed
    assert [page.final for page in bench.tracker.pages].count(True) == 1
    assert set(bench.tracker.pages[-1].files) == {"report.md", "diagnosis.json", "report.html"}
    assert monitor.undelivered == ()
    assert events(monitor) == ["end"]


def test_a_client_that_the_program_may_close_gets_all_before_the_run_is_over(bench: Bench) -> None:
    """Else the page would set_known_ranks a closed client."""
    bench.tracker.borrowed = True  # type: ignore[attr-defined]
    monitor = bench.run()
    closing = threading.Thread(target=monitor.close)
    closing.start()
    wait_for(lambda: bench.drawings)
    assert not monitor.finish(0.2)
    assert closing.is_alive()
    bench.drawings[0].finish.set()
    closing.join(60)
    assert bench.tracker.pages[-1].final
    assert bench.tracker.closed


def test_a_drawing_that_fails_is_named_and_the_rest_reaches_the_tracker(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = bench.run()
    monitor.close()
    bench.drawings[0].error = DrawingError("no room")
    bench.drawings[0].finish.set()
    assert monitor.finish()
    assert caplog.text.count("the page and the pictures failed; training goes on. ") == 1
    assert "no room" in caplog.text
    assert set(bench.tracker.pages[-1].files) == {"report.md", "diagnosis.json"}
    assert bench.tracker.pages[-1].final
    assert events(monitor) == ["end", "the page and the pictures failed"]


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    child = ChildDrawing(tmp_path / "nothing", 0)
    with pytest.raises(DrawingError, match=r"(?s)nothing.*To make what is missing: stallmeter report "):
        while not child.wait(1.0):
            pass


def test_one_child_at_a_time_and_not_too_many_in_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program of many short fits must not fill the machine with children, nor its memory with ended runs."""
    caplog.set_level(logging.INFO, "stallmeter")
    monkeypatch.setattr(drawing, "MOST_WAITING", 3)
    monkeypatch.setattr(child, "_PATH", "import time; time.sleep(60); ")
    others = children()
    made = [drawing.draw(tmp_path, 0, True) for _ in range(4)]
    assert [one is not None for one in made] == [True, True, True, False]
    assert caplog.text.count("no page yet") == 1
    first, second, third = filter(None, made)
    assert not first.wait(0.1)
    assert not second.wait(0.1)
    assert len(children() - others) == 1
    third.stop()
    assert third.wait(0.1)
    first.stop()
    wait_for(lambda: first.wait(0.1))
    assert not second.wait(0.1)
    second.stop()
    wait_for(lambda: second.wait(0.1))
    assert not left(others)


def test_a_program_that_ends_gives_pictures_up_that_take_too_long(bench: Bench) -> None:
    """The tracker still gets its points and a page, which is not the last one: `sync` has something left to do."""
    monitor = bench.run(budget_s=1.0)
    monitor.run.exit()(time.monotonic() + 1.0)
    assert monitor.finish()
    assert bench.drawings[0].stopped
    assert "step_time_ms" in {p.key for p in bench.tracker.points}
    assert bench.tracker.closed
    assert not any(page.final for page in bench.tracker.pages)
    assert "interpreter exit" in [r.detail for r, _ in Reader(monitor.folder) if isinstance(r, Event)]  # type: ignore[arg-type]


def test_a_thread_that_a_test_suite_stops_leaves_the_rest(bench: Bench) -> None:
    """Lightning's suite does so with each daemon thread that outlives a test and can be stopped."""
    before = set(threading.enumerate())
    monitor = bench.run(trackers=[])
    monitor.close()
    wait_for(lambda: bench.drawings)
    left: list[Any] = [t for t in threading.enumerate() if t not in before]
    assert [t.daemon for t in left] == [True]
    left[0].stop()
    assert not left[0].is_alive()
    assert bench.drawings[0].stopped
    assert monitor.finish(0.0)


class Silent(ListTracker):
    """Does not answer until it is released."""

    def __init__(self) -> None:
        super().__init__("silent")
        self.release = threading.Event()

    def send(self, points: Sequence[Point]) -> None:
        self.release.wait(60)
        super().send(points)


def test_an_exception_holds_the_program_up_for_the_recording_alone(bench: Bench) -> None:
    """Reports and trackers wait until those who save something have done so."""
    bench.tracker = Silent()
    monitor = bench.run(budget_s=30.0)
    monitor.abort("exception: ValueError")
    assert monitor.folder is not None
    assert events(monitor) == ["end"]
    assert sum(isinstance(r, StepRecord) for r, _ in Reader(monitor.folder)) == 4
    monitor.run.ending.others_are_done(0.0)
    bench.tracker.release.set()
    wait_for(lambda: bench.drawings)
    bench.drawings[0].finish.set()
    assert monitor.finish()
    assert bench.tracker.pages[-1].final


def test_reports_wait_until_others_are_done(bench: Bench) -> None:
    monitor = bench.run()
    monitor.abort("exception: ValueError")
    assert monitor.folder is not None
    time.sleep(0.3)
    assert not (monitor.folder / "report.md").exists()
    assert not bench.drawings
    monitor.run.ending.others_are_done(0.0)
    wait_for(lambda: bench.drawings)
    assert (monitor.folder / "report.md").exists()


def test_nothing_but_the_recording_when_a_signal_ends_the_process(bench: Bench) -> None:
    """The program's end waits for nothing either; `stallmeter sync` does the rest."""
    monitor = bench.run()
    monitor.abort("exception: SIGTERMException", signalled=True)
    assert monitor.finish()
    assert events(monitor) == ["end"]
    assert not bench.drawings
    assert not (monitor.folder / "report.md").exists()  # type: ignore[operator]
    assert not bench.tracker.closed
    bench.tracker.pages.clear()


class FakeSurvivor:
    """Counts instead of starting a process."""

    made: ClassVar[list[FakeSurvivor]] = []

    def __init__(self, folder: Path, *, speaks: bool) -> None:
        self.folder = folder
        self.heard: list[str] = []
        self.made.append(self)

    def spoken(self) -> None:
        self.heard.append("spoken")

    def stop(self) -> None:
        self.heard.append("stop")


@pytest.fixture
def survivors(monkeypatch: pytest.MonkeyPatch) -> list[FakeSurvivor]:
    monkeypatch.setattr("stallmeter.report.survivor.Survivor", FakeSurvivor)
    monkeypatch.setattr(FakeSurvivor, "made", [])
    return FakeSurvivor.made


def test_somebody_would_make_the_reports_until_they_are_made(bench: Bench, survivors: list[FakeSurvivor]) -> None:
    monitor = bare_monitor(bench.folder, interval_s=0.02, draw=bench.draw, world_size=2)
    wait_for(lambda: survivors)
    assert [one.folder for one in survivors] == [monitor.folder]
    monitor.close()
    assert survivors[0].heard == ["spoken"]  # the page is still being drawn
    bench.drawings[0].finish.set()
    assert monitor.finish()
    assert survivors[0].heard == ["spoken", "stop"]


def test_where_a_signal_ends_the_process_somebody_else_makes_its_reports(
    bench: Bench, survivors: list[FakeSurvivor]
) -> None:
    monitor = bare_monitor(bench.folder, interval_s=0.02, draw=bench.draw, world_size=2)
    wait_for(lambda: survivors)
    monitor.abort("exception: SIGTERMException", signalled=True)
    assert monitor.finish()
    assert [one.heard for one in survivors] == [[]]


@pytest.mark.parametrize("about", [{}, {"rank": 1, "world_size": 2}, {"world_size": 2, "is_killed": True}])
def test_who_has_no_job_to_tell_of_starts_nobody(
    bench: Bench, survivors: list[FakeSurvivor], about: dict[str, Any]
) -> None:
    monitor = bare_monitor(bench.folder, interval_s=0.02, **about)
    for _ in monitor.watch(range(4)):
        time.sleep(0.03)
    monitor.close()
    assert monitor.finish()
    assert not survivors


@pytest.mark.parametrize(
    ("exc", "signalled"),
    [
        (SystemExit(143), True),
        (SystemExit(130), False),
        (SystemExit(1), False),
        (SystemExit("words"), False),
        (KeyboardInterrupt(), False),
        (ValueError(), False),
        (type("SIGTERMException", (SystemExit,), {})(), True),
    ],
    ids=repr,
)
def test_what_says_that_a_signal_ends_the_process(exc: BaseException, signalled: bool) -> None:
    assert is_signalled(exc) is signalled


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe stands for a folder that does not answer")
def test_a_folder_that_hangs_is_not_touched_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening the next part waits for ever, as on a dead file server, and so would reading it for the reports."""
    monkeypatch.setattr("stallmeter.engine.output.Recorder", functools.partial(Recorder, part_bytes=1))
    monkeypatch.setattr("stallmeter.engine.collector.GIVE_UP_S", 1.0)
    monkeypatch.setattr("stallmeter.engine.collector.HANG_S", 0.5)
    monitor = bare_monitor(bench.folder, close_budget_s=1.0, interval_s=3600, draw=bench.draw)
    assert monitor.folder is not None
    for _ in monitor.watch(range(4)):
        pass
    pipe = monitor.folder / f"rank0.{os.getpid()}.tmp"
    os.mkfifo(pipe)
    monitor.close()
    assert monitor.finish()
    assert "does not answer" in caplog.text
    assert not (monitor.folder / "report.md").exists()
    assert not bench.drawings
    assert our_threads("stallmeter-sampler")  # it still hangs there
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    wait_for(lambda: not our_threads("stallmeter-sampler"))


@pytest.mark.long
def test_the_programs_end_waits_for_pages_that_no_package_of_the_program_made(tmp_path: Path) -> None:
    """In the program and in a child of multiprocessing, which ends in another way."""
    program = """
        import multiprocessing, sys, time
        import stallmeter

        def train(name):
            with stallmeter.Monitor(directory=name, trackers=None, hardware=False, console=False) as monitor:
                for _ in monitor.watch(range(20)):
                    time.sleep(0.001)
            assert not {"plotly", "matplotlib", "jinja2"} & set(sys.modules)

        if __name__ == "__main__":
            child = multiprocessing.get_context("fork").Process(target=train, args=("child",))
            child.start()
            child.join()
            assert child.exitcode == 0
            train("parent")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, check=True, timeout=120)
    for name in ("parent", "child"):
        (folder,) = (tmp_path / name).iterdir()
        made = {f.name for f in folder.iterdir()}
        assert {"report.html", "steps.csv", "report.md", "diagnosis.json"} <= made
        assert "phases.png" not in made  # no tracker would show it


def test_a_process_that_is_killed_at_once_waits_for_its_page(bench: Bench) -> None:
    """Ray Train kills its workers when their function has returned: no program's end comes."""
    monitor = bench.run(is_killed=True)
    closing = threading.Thread(target=monitor.close)
    closing.start()
    wait_until = time.monotonic() + 30
    while not bench.drawings and time.monotonic() < wait_until:
        time.sleep(0.01)
    assert closing.is_alive()
    bench.drawings[0].finish.set()
    closing.join(30)
    assert not closing.is_alive()
    assert (monitor.folder / "report.html").read_text() == "page"  # type: ignore[operator]
    assert monitor.finish(0.0)


def test_such_a_process_waits_no_longer_than_its_budget(bench: Bench) -> None:
    monitor = bench.run(is_killed=True, budget_s=0.1)
    monitor.close()
    assert not monitor.finish(0.0)
    assert (monitor.folder / "report.md").is_file()  # type: ignore[operator]


def test_a_run_without_a_step_is_not_called_free_of_losses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It crashed on its first batch, say."""

    def broken() -> Iterator[int]:
        raise KeyError("text")
        yield 0

    monitor = stallmeter.Monitor(directory=tmp_path, trackers=None, hardware=False)
    with pytest.raises(KeyError), monitor:
        next(iter(monitor.watch(broken())))
    assert monitor.finish()
    assert monitor.folder is not None
    assert "Not judged: too little was measured." in (monitor.folder / "report.md").read_text()
    assert "no loss" not in capfd.readouterr().err.lower()


ENDED_BY = """
import sys
sys.modules["torch"] = None
import stallmeter
for batch in stallmeter.watch([[1, 2, 3]] * 10, directory="runs", trackers=None, hardware=False):
    pass
raise {}
"""


def ended_by(raised: str, folder: Path) -> tuple[int, list[str]]:
    """Return a program's exit status and what it says on stderr, with its traceback first."""
    program = NO_PICTURES + ENDED_BY.format(raised)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.startswith("Traceback")
    return done.returncode, done.stderr.splitlines()


def test_below_the_traceback_of_an_exception_one_line_says_where_the_recording_is(tmp_path: Path) -> None:
    status, said = ended_by("KeyError('of the program')", tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert status == 1
    assert said[-2:] == [
        "KeyError: 'of the program'",
        f"stallmeter: what was measured until the KeyError: stallmeter report runs/{folder.name}",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="the exit status of an interrupted program")
def test_who_interrupts_the_training_is_told_the_verdict(tmp_path: Path) -> None:
    status, said = ended_by("KeyboardInterrupt", tmp_path)
    assert status == -signal.SIGINT
    assert said.index("KeyboardInterrupt") < len(said) - 2
    assert said[-1].startswith("stallmeter: details: stallmeter report runs/")
