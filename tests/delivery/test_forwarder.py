"""The forwarder: every point reaches each tracker that can be reached, and nobody waits for one that cannot."""

from __future__ import annotations

import itertools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallmeter.delivery.delays import MAX_DELAY_S
from stallmeter.delivery.delivery import deliver, points_left
from stallmeter.delivery.forwarder import Forwarder
from stallmeter.delivery.points import points_of
from stallmeter.errors import RecordingError, TrackerError, TrackerUnavailableError
from stallmeter.recording import Header, Reader, Recorder
from stallmeter.recording.cursor import cursor_path, read_cursor
from stallmeter.records import Event, HostSample, StepRecord, UserMetrics, WindowRecord
from stallmeter.records.interfaces import Page, Point, Tracker

T = TypeVar("T")
NOW = 1_700_000_000.0


class ReplicaTracker:
    """Keeps what it got, once per point like MLflow; fails as it is told to."""

    def __init__(self, name: str = "replica", batch_size: int = 500, destination: str = "memory") -> None:
        self.name = name
        self.destination = destination
        self.batch_size = batch_size
        self.points: dict[tuple[str, str, int, float], float] = {}
        self.calls: list[str] = []
        self.pages: list[Page] = []
        self.failures: Iterator[Exception | None] = iter(())
        self.closed = 0

    def _answer(self) -> None:
        if failure := next(self.failures, None):
            raise failure

    def send(self, points: Sequence[Point]) -> None:
        self.calls.append(f"send {len(points)}")
        self._answer()
        for point in points:
            self.points[(point.group, point.key, point.step, point.time_s)] = point.value

    def show(self, page: Page) -> None:
        self.calls.append("show")
        self._answer()
        self.pages.append(page)

    def close(self) -> None:
        self.closed += 1


class HungTracker(ReplicaTracker):
    """Never answers until released."""

    def __init__(self, name: str = "hung") -> None:
        super().__init__(name)
        self.entered = threading.Event()
        self.release = threading.Event()

    def send(self, points: Sequence[Point]) -> None:
        self.entered.set()
        self.release.wait(60)
        super().send(points)


class Problems:
    """The monitor's side: the guard and the one warning per tracker."""

    def __init__(self) -> None:
        self.guarded: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []

    def guard(self, name: str, fn: Callable[[], T]) -> T | None:
        if name in dict(self.guarded):
            return None
        try:
            return fn()
        except Exception as exc:
            self.guarded.append((name, repr(exc)))
            return None

    def on_problem(self, name: str, message: str) -> None:
        self.refused.append((name, message))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def forwarder(folder: Path, *trackers: Tracker, problems: Problems | None = None, **settings: Any) -> Forwarder:
    problems = problems or Problems()
    settings.setdefault("start", False)
    return Forwarder(folder, 0, trackers, guard=problems.guard, on_problem=problems.on_problem, **settings)


def window(number: int, **metrics: float) -> WindowRecord:
    return WindowRecord(
        time_s=NOW + number,
        tracker_step=10 * number,
        duration_s=1.0,
        metrics=metrics or {"data_wait_ms": float(number), "step_time_ms": 2.0 * number},
        hardware={"job_cpus": 1.5},
    )


def step(index: int, total_s: float = 0.05) -> StepRecord:
    return StepRecord(
        index=index,
        epoch=0,
        optimizer_step=index,
        tracker_step=index,
        samples=8,
        time_s=NOW + index,
        total_s=total_s,
        data_wait_s=0.02,
    )


def page(text: str = "verdict", *, final: bool = False) -> Page:
    return Page(tags={"primary": text}, headline=text, note=text, files={}, final=final)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path, Header(run_id="test", started_s=NOW))
    yield recorder
    recorder.close()


def write(recorder: Recorder, *records: Any) -> None:
    for record in records:
        recorder.write(record)
    recorder.flush()


def everything(folder: Path) -> dict[tuple[str, str, int, float], float]:
    """What an ideal tracker holds, from the plain reader."""
    points = [p for record, _ in Reader(folder) for p in points_of(record)]
    return {(p.group, p.key, p.step, p.time_s): p.value for p in points}


def test_a_window_gives_step_and_hardware_points() -> None:
    """Each metric becomes one point with the window's step and time."""
    assert points_of(window(3, data_wait_ms=1.0)) == [
        Point("steps", "data_wait_ms", 1.0, 30, NOW + 3),
        Point("hardware", "job_cpus", 1.5, 30, NOW + 3),
    ]


def test_the_first_steps_are_sent_one_by_one_and_later_ones_are_not() -> None:
    """Step 199 is the last that gives points, in ms."""
    assert points_of(step(199)) == [
        Point("steps", "first_steps/step_time_ms", 50.0, 199, NOW + 199),
        Point("steps", "first_steps/data_wait_ms", 20.0, 199, NOW + 199),
    ]
    assert points_of(step(200)) == []


def test_what_no_tracker_wants_gives_no_points() -> None:
    """Samples and events stay in the recording."""
    assert points_of(HostSample(time_s=NOW, job_cpus=1.0)) == []
    assert points_of(Event(time_s=NOW, name="x")) == []


def test_user_metrics_keep_their_keys_below_user() -> None:
    """A key that every tracker takes is not changed."""
    record = UserMetrics(time_s=NOW, tracker_step=7, metrics={"val/acc.top-1 x": 0.5})
    assert points_of(record) == [Point("steps", "user/val/acc.top-1 x", 0.5, 7, NOW)]


def test_our_values_are_rounded_and_non_finite_ones_left_out() -> None:
    """4 significant digits; nan, infinities, None and what no float can hold are dropped."""
    values: dict[str, Any] = {
        "a": 22.62861821,
        "nan": float("nan"),
        "inf": float("inf"),
        "neg": float("-inf"),
        "none": None,
        "text": "1",
        "huge": 10**400,
        "small": 1.23456e-9,
        "zero": 0,
    }
    assert {p.key: p.value for p in points_of(window(0, **values)) if p.group == "steps"} == {
        "a": 22.63,
        "small": 1.235e-09,
        "zero": 0.0,
    }


@given(st.floats() | st.integers())
def test_a_users_value_is_sent_as_the_float_it_is(value: float) -> None:
    """Learning rates and counts of tokens are data; what is not finite no tracker takes."""
    try:
        finite = [float(value)] if math.isfinite(value) else []
    except OverflowError:
        finite = []
    sent = [p.value for p in points_of(UserMetrics(time_s=NOW, tracker_step=0, metrics={"a": value}))]
    assert list(map(repr, sent)) == list(map(repr, finite))


@pytest.mark.parametrize(
    ("key", "clean"),
    [
        ("größe %", "user/größe _pct_"),
        ("recall@1", "user/recall_at_1"),
        ("recall_1", "user/recall_1"),
        ("精度", "user/精度"),
        ("召回", "user/召回"),
        ("loss (a)", "user/loss _a_"),
        ("\ud800", "user/_"),
        ("a//b", "user/a/b"),
        ("/a/", "user/a"),
        ("../../etc", "user/etc"),
        ("a/./b", "user/a/b"),
        ("a..b", "user/a.b"),
        (" a / b ", "user/a/b"),
        ("…", "user/_"),
    ],
)
def test_keys_are_made_such_that_every_tracker_takes_them(key: str, clean: str) -> None:
    """Known troublemakers become the nearest key that is allowed."""
    assert [p.key for p in points_of(UserMetrics(time_s=NOW, tracker_step=0, metrics={key: 1.0}))] == [clean]


@given(st.text(max_size=400))
def test_any_key_becomes_a_safe_one(key: str) -> None:
    """Whatever the user passes, what is sent is a normal relative path of allowed characters."""
    for point in points_of(UserMetrics(time_s=NOW, tracker_step=0, metrics={key: 1.0})):
        parts = point.key.split("/")
        assert re.fullmatch(r"[\w./ -]+", point.key)
        assert 0 < len(point.key.encode()) <= 230
        assert ".." not in point.key
        assert all(part and part != "." for part in parts)


def test_every_point_reaches_the_tracker_in_batches(tmp_path: Path, recorder: Recorder) -> None:
    """Batches respect the tracker's size, lines without points are passed over, and the plain reader agrees."""
    write(recorder, *[step(i) for i in range(300)], HostSample(time_s=NOW), *[window(i) for i in range(50)])
    tracker = ReplicaTracker(batch_size=100)
    forwarder(tmp_path, tracker).turn()
    assert tracker.points == everything(tmp_path)
    assert len(tracker.points) == 2 * 200 + 3 * 50
    assert max(int(call.split()[1]) for call in tracker.calls) <= 100


def test_a_record_with_more_points_than_a_batch_is_sent_in_parts(tmp_path: Path, recorder: Recorder) -> None:
    """No record is too large for a tracker."""
    write(recorder, UserMetrics(time_s=NOW, tracker_step=0, metrics={f"m{i}": float(i) for i in range(25)}))
    tracker = ReplicaTracker(batch_size=10)
    forwarder(tmp_path, tracker).turn()
    assert tracker.calls == ["send 10", "send 10", "send 5"]
    assert len(tracker.points) == 25


def test_a_part_that_was_taken_is_not_sent_again_with_the_rest_of_its_record(
    tmp_path: Path, recorder: Recorder
) -> None:
    """Not every tracker keeps one copy of a point: neptune-scale would get it under a step of its own."""
    recorder.write(window(1))
    recorder.write(window(2))
    recorder.flush()
    tracker = ReplicaTracker(batch_size=2)
    down = TrackerUnavailableError("down")
    tracker.failures = iter([None, down, down, None, None, down])
    clock = Clock()
    shipper = forwarder(tmp_path, tracker, monotonic=clock)
    for _ in range(6):
        shipper.turn()
        clock.now += MAX_DELAY_S
    assert tracker.calls == ["send 2", "send 1", "send 1", "send 1", "send 2", "send 1", "send 1"]
    assert len(tracker.points) == 6
    known = read_cursor(cursor_path(tmp_path, tracker.name, 0))
    assert known is not None
    assert known.points == 6


def test_what_is_written_later_is_sent_later(tmp_path: Path, recorder: Recorder) -> None:
    """The forwarder follows the file, parts included, and sends nothing twice."""
    write(recorder, window(1))
    tracker = ReplicaTracker()
    forward = forwarder(tmp_path, tracker)
    forward.turn()
    forward.turn()
    write(recorder, window(2))
    forward.turn()
    recorder.close()
    again = Recorder(tmp_path, recorder.header)
    write(again, window(3))
    forward.turn()
    again.close()
    assert tracker.calls == ["send 3", "send 3", "send 3"]
    assert tracker.points == everything(tmp_path)


def test_a_torn_last_line_is_left_until_it_is_whole(tmp_path: Path, recorder: Recorder) -> None:
    """Half a line is no record; once its rest is written it is sent."""
    write(recorder, window(1), window(2))
    whole = recorder.path.read_bytes()
    torn = whole[:-20]
    recorder.path.write_bytes(torn)
    tracker = ReplicaTracker()
    forward = forwarder(tmp_path, tracker)
    forward.turn()
    assert {key[2] for key in tracker.points} == {10}
    recorder.path.write_bytes(whole)
    forward.turn()
    assert {key[2] for key in tracker.points} == {10, 20}


def test_an_outage_is_waited_out_with_growing_pauses(tmp_path: Path, recorder: Recorder) -> None:
    """Tries come 1, 2, 4, 8, 15, 15 s apart; after the outage every point arrives and the pauses start anew."""
    write(recorder, window(1))
    tracker, clock, problems = ReplicaTracker(), Clock(), Problems()
    tracker.failures = iter([TrackerUnavailableError("down")] * 6)
    forward = forwarder(tmp_path, tracker, problems=problems, monotonic=clock)
    tries = []
    while not tracker.points:
        before = len(tracker.calls)
        forward.turn()
        if len(tracker.calls) > before:
            tries.append(clock.now)
        clock.now += 0.5
    assert [b - a for a, b in itertools.pairwise(tries)] == [1, 2, 4, 8, MAX_DELAY_S, MAX_DELAY_S]
    assert tracker.points == everything(tmp_path)
    tracker.failures = iter([TrackerUnavailableError("down again")])
    write(recorder, window(2))
    forward.turn()
    clock.now += 1.0
    forward.turn()
    assert tracker.points == everything(tmp_path)
    assert problems.refused == problems.guarded == []


def test_a_refusal_stops_that_tracker_with_one_message(tmp_path: Path, recorder: Recorder) -> None:
    """The other tracker gets everything; the refused points are counted at the end."""
    write(recorder, window(1))
    refused, fine, problems = ReplicaTracker("refused"), ReplicaTracker("fine"), Problems()
    refused.failures = iter([TrackerError("401 who are you")])
    forward = forwarder(tmp_path, refused, fine, problems=problems)
    forward.turn()
    write(recorder, window(2))
    forward.turn()
    assert problems.refused == [("refused", "401 who are you")]
    assert refused.calls == ["send 3"]
    assert fine.points == everything(tmp_path)
    [left] = forward.close()
    assert (left.tracker, left.destination, left.points, left.page) == ("refused", "memory", 6, False)
    assert (refused.closed, fine.closed) == (1, 1)


def test_anything_unexpected_goes_through_the_guard_and_stops_that_tracker(tmp_path: Path, recorder: Recorder) -> None:
    """A bug in one tracker costs that tracker only."""
    write(recorder, window(1))
    broken, fine, problems = ReplicaTracker("broken"), ReplicaTracker("fine"), Problems()
    broken.failures = iter([ZeroDivisionError("bug")])
    forward = forwarder(tmp_path, broken, fine, problems=problems)
    forward.turn()
    forward.turn()
    assert problems.guarded == [("tracker broken", "ZeroDivisionError('bug')")]
    assert problems.refused == []
    assert len(broken.calls) == 1
    assert fine.points == everything(tmp_path)


def test_a_tracker_with_a_bug_is_still_let_go(tmp_path: Path, recorder: Recorder) -> None:
    """A guard that never calls a name again after a failure must not keep a run of ours from being ended."""
    write(recorder, window(1))
    broken, problems = ReplicaTracker("broken"), Problems()
    broken.failures = iter([ZeroDivisionError("bug")])
    forward = forwarder(tmp_path, broken, problems=problems)
    forward.turn()
    [left] = forward.close()
    assert left.points == 3
    assert broken.closed == 1


def test_trackers_of_one_name_are_told_apart(tmp_path: Path, recorder: Recorder) -> None:
    """Two loggers of one class each have a cursor, and one that fails does not stop the other."""
    write(recorder, window(1))
    first, second, problems = ReplicaTracker("csv"), ReplicaTracker("csv"), Problems()
    first.failures = iter([TrackerError("no")])
    forward = forwarder(tmp_path, first, second, problems=problems)
    forward.turn()
    write(recorder, window(2))
    forward.turn()
    assert second.points == everything(tmp_path)
    assert problems.refused == [("csv", "no")]
    assert [left.tracker for left in forward.close()] == ["csv"]
    forward = forwarder(tmp_path, first, second)
    forward.turn()
    assert first.points == second.points == everything(tmp_path)
    assert second.calls == ["send 3", "send 3"]


def test_a_dead_tracker_does_not_slow_the_others_down(tmp_path: Path, recorder: Recorder) -> None:
    """While one tracker is down, each turn still serves the other."""
    dead, fine, clock = ReplicaTracker("dead"), ReplicaTracker("fine"), Clock()
    dead.failures = iter(TrackerUnavailableError("down") for _ in range(10**6))
    forward = forwarder(tmp_path, dead, fine, monotonic=clock)
    for number in range(100):
        write(recorder, window(number))
        forward.turn()
        clock.now += 1.0
        assert fine.points == everything(tmp_path)
    assert len(dead.calls) < 12
    assert dead.points == {}


def test_another_process_goes_on_at_the_cursor(tmp_path: Path, recorder: Recorder) -> None:
    """A new forwarder for the same destination sends only what is new, and counts on."""
    write(recorder, window(1), window(2))
    first = ReplicaTracker()
    forwarder(tmp_path, first).turn()
    write(recorder, window(3))
    second = ReplicaTracker()
    assert points_left(tmp_path, 0, second) == 3
    forwarder(tmp_path, second).turn()
    assert {key[2] for key in second.points} == {30}
    cursor = json.loads((tmp_path / "cursor-replica.json").read_text())
    assert cursor == {
        "destination": "memory",
        "rank": 0,
        "part": 0,
        "offset": recorder.path.stat().st_size,
        "points": 9,
        "complete": False,
        "ours": False,
    }


@pytest.mark.parametrize("cursor", ["", "{", "[]", '{"destination": "memory"}', '{"destination": null, "rank": 0}'])
def test_an_unreadable_cursor_means_from_the_start(tmp_path: Path, recorder: Recorder, cursor: str) -> None:
    """Sending twice is better than losing."""
    write(recorder, window(1))
    (tmp_path / "cursor-replica.json").write_text(cursor)
    tracker = ReplicaTracker()
    forwarder(tmp_path, tracker).turn()
    assert tracker.points == everything(tmp_path)


def test_a_cursor_of_another_run_means_from_the_start(tmp_path: Path, recorder: Recorder) -> None:
    """The same recording can be delivered to a second run."""
    write(recorder, window(1))
    deliver(tmp_path, 0, ReplicaTracker(destination="run a"))
    other = ReplicaTracker(destination="run b")
    assert deliver(tmp_path, 0, other) == 3
    assert other.points == everything(tmp_path)


def test_ranks_have_cursors_of_their_own(tmp_path: Path, recorder: Recorder) -> None:
    """Delivering rank 1 does not move the cursor of rank 0."""
    write(recorder, window(1))
    other = Recorder(tmp_path, Header(run_id="test", rank=1, started_s=NOW))
    write(other, window(2), window(3))
    other.close()
    tracker = ReplicaTracker()
    assert [deliver(tmp_path, rank, tracker) for rank in (0, 1, 0, 1)] == [3, 6, 0, 0]


def test_deliver_reports_progress_and_raises_what_the_tracker_raises(tmp_path: Path, recorder: Recorder) -> None:
    """What arrived before the failure is not sent again."""
    write(recorder, *[window(i) for i in range(4)])
    tracker = ReplicaTracker(batch_size=6)
    tracker.failures = iter([None, TrackerUnavailableError("down")])
    progress: list[int] = []
    with pytest.raises(TrackerUnavailableError, match="down"):
        deliver(tmp_path, 0, tracker, progress=progress.append)
    assert progress == [6]
    assert deliver(tmp_path, 0, tracker, progress=progress.append) == 6
    assert progress == [6, 6]
    assert tracker.points == everything(tmp_path)


def test_deliver_says_when_there_is_no_recording(tmp_path: Path) -> None:
    """An empty folder is an error, not zero points."""
    with pytest.raises(RecordingError, match="no recording"):
        deliver(tmp_path, 0, ReplicaTracker())


def test_a_new_part_without_its_header_yet_is_waited_for(tmp_path: Path, recorder: Recorder) -> None:
    """The instant in which the recorder makes a new file must not stop a tracker."""
    write(recorder, window(1))
    (tmp_path / "rank0.0001.jsonl").touch()
    tracker, problems, clock = ReplicaTracker(), Problems(), Clock()
    forward = forwarder(tmp_path, tracker, problems=problems, monotonic=clock)
    forward.turn()
    (tmp_path / "rank0.0001.jsonl").unlink()
    clock.now += 1.0
    forward.turn()
    assert tracker.points == everything(tmp_path)
    assert problems.guarded == problems.refused == []


def test_a_page_comes_after_the_points_before_it_and_only_when_it_changed(tmp_path: Path, recorder: Recorder) -> None:
    """The newest page wins; an equal one is not sent again; a failed one is."""
    write(recorder, window(1))
    tracker, clock = ReplicaTracker(), Clock()
    tracker.failures = iter([None, TrackerUnavailableError("not now")])
    forward = forwarder(tmp_path, tracker, monotonic=clock)
    forward.show(page("old"))
    forward.show(page("new"))
    forward.turn()
    assert tracker.pages == []
    clock.now += 1.0
    forward.turn()
    forward.show(page("new"))
    forward.turn()
    assert tracker.calls == ["send 3", "show", "show"]
    assert tracker.pages == [page("new")]


def test_close_delivers_the_rest_and_the_final_page(tmp_path: Path, recorder: Recorder) -> None:
    """With trackers that answer, nothing is left; a second close changes nothing."""
    tracker = ReplicaTracker()
    forward = forwarder(tmp_path, tracker, start=True, interval_s=60.0)
    write(recorder, *[window(i) for i in range(500)])
    forward.show(page(final=True))
    assert forward.close(30.0) == ()
    assert forward.close(30.0) == ()
    assert tracker.points == everything(tmp_path)
    assert tracker.pages == [page(final=True)]
    assert tracker.closed == 1


def test_close_tries_again_until_the_tracker_is_back(tmp_path: Path, recorder: Recorder) -> None:
    """A tracker that comes back within the budget gets everything, although its last pause was long."""
    tracker = ReplicaTracker()
    tracker.failures = iter([TrackerUnavailableError("down")] * 7)
    clock = Clock()
    write(recorder, window(1))
    forward = forwarder(tmp_path, tracker, monotonic=clock, sleep=clock.sleep)
    for _ in range(5):
        clock.now += MAX_DELAY_S
        forward.turn()
    started = clock.now
    assert forward.close(10.0) == ()
    assert tracker.points == everything(tmp_path)
    assert clock.now - started <= 4.0


def test_close_gives_up_on_a_dead_tracker_and_says_what_is_left(tmp_path: Path, recorder: Recorder) -> None:
    """At the end of the budget the points and the page that were not taken are named."""
    dead, fine, clock = ReplicaTracker("dead"), ReplicaTracker("fine"), Clock()
    dead.failures = iter(TrackerUnavailableError("down") for _ in range(10**6))
    forward = forwarder(tmp_path, dead, fine, monotonic=clock, sleep=clock.sleep)
    write(recorder, *[step(i) for i in range(400)], window(1))
    forward.show(page(final=True))
    [left] = forward.close(10.0)
    assert (left.tracker, left.points, left.page) == ("dead", 403, True)
    assert fine.points == everything(tmp_path)
    assert clock.now <= 10.0
    assert (dead.closed, fine.closed) == (1, 1)


def started_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """The forwarder's threads; those of other tests may still be ending."""
    return [t for t in threading.enumerate() if t not in before and t.name.startswith("stallmeter-forwarder")]


@pytest.fixture
def hung() -> Iterator[HungTracker]:
    """Released and left by its thread before the folder goes."""
    before = set(threading.enumerate())
    tracker = HungTracker()
    yield tracker
    tracker.release.set()
    for thread in started_since(before):
        thread.join(30)


def test_a_hung_tracker_delays_neither_show_nor_close(tmp_path: Path, recorder: Recorder, hung: HungTracker) -> None:
    """A tracker that never returns costs its points, not the caller's time."""
    write(recorder, window(1), window(2))
    forward = forwarder(tmp_path, hung, start=True, interval_s=0.01, monotonic=lambda: 0.0)
    assert hung.entered.wait(30)
    for number in range(1000):
        forward.show(page(str(number)))
    [left] = forward.close(0.5)
    assert not hung.release.is_set()
    assert (left.tracker, left.points, left.page) == ("hung", 6, True)
    assert hung.closed == 0


def test_a_hung_tracker_does_not_delay_another(tmp_path: Path, recorder: Recorder, hung: HungTracker) -> None:
    """While the first never returns, the second gets each point, the final page and its end."""
    fine, before = ReplicaTracker("fine"), set(threading.enumerate())
    write(recorder, window(1))
    # By a clock that stands still there is time to count what is left, however busy the machine.
    forward = forwarder(tmp_path, hung, fine, start=True, interval_s=0.01, monotonic=lambda: 0.0)
    assert hung.entered.wait(30)
    write(recorder, window(2))
    forward.show(page(final=True))
    deadline = time.monotonic() + 60
    while not fine.pages and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fine.points == everything(tmp_path)
    [left] = forward.close(0.5)
    assert (left.tracker, left.points) == ("hung", 6)
    for thread in started_since(before):
        if thread.name.endswith("fine"):
            thread.join(30)
    assert (fine.pages, fine.closed) == ([page(final=True)], 1)


def test_each_tracker_has_a_daemon_thread_that_ends_with_close(tmp_path: Path, recorder: Recorder) -> None:
    """They can never keep a finished program alive."""
    before = set(threading.enumerate())
    forward = forwarder(tmp_path, ReplicaTracker("a"), ReplicaTracker("b"), start=True)
    threads = started_since(before)
    assert [t.name for t in threads] == ["stallmeter-forwarder-a", "stallmeter-forwarder-b"]
    assert all(thread.daemon for thread in threads)
    forward.close(30.0)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_without_trackers_there_is_no_thread(tmp_path: Path, recorder: Recorder) -> None:
    """Who forwards nothing pays nothing."""
    before = set(threading.enumerate())
    forward = forwarder(tmp_path, start=True)
    assert started_since(before) == []
    forward.show(page())
    assert forward.close() == ()


def test_a_cursor_that_cannot_be_written_does_not_stop_the_sending(tmp_path: Path, recorder: Recorder) -> None:
    """A full disk costs a second sending later, nothing else."""
    write(recorder, window(1))
    (tmp_path / "cursor-replica.json").mkdir()
    tracker, problems = ReplicaTracker(), Problems()
    forward = forwarder(tmp_path, tracker, problems=problems)
    forward.turn()
    assert tracker.points == everything(tmp_path)
    assert forward.close() == ()
    assert problems.guarded == []


@settings(deadline=None, max_examples=60)
@given(
    plan=st.lists(
        st.tuples(
            st.integers(0, 12),  # windows written
            st.lists(st.booleans(), max_size=6),  # which of the next calls fail
            st.booleans(),  # a new process
        ),
        max_size=12,
    ),
    batch_size=st.integers(1, 20),
)
def test_whatever_fails_each_point_is_there_once_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, list[bool], bool]], batch_size: int
) -> None:
    """For any pattern of outages and restarts, the replica equals the recording."""
    folder = tmp_path_factory.mktemp("plan")
    recorder = Recorder(folder, Header(run_id="test", started_s=NOW))
    tracker, clock = ReplicaTracker(batch_size=batch_size), Clock()
    forward = forwarder(folder, tracker, monotonic=clock)
    number = 0
    for windows, outcomes, restart in plan:
        for _ in range(windows):
            write(recorder, window(number), step(number))
            number += 1
        tracker.failures = iter([TrackerUnavailableError("down") if fails else None for fails in outcomes])
        if restart:
            forward = forwarder(folder, tracker, monotonic=clock)
        forward.turn()
        clock.now += 20.0
    tracker.failures = iter(())
    recorder.close()
    for _ in range(100):
        if not forward.turn():
            break
    assert tracker.points == everything(folder)
    assert forward.close() == ()
