"""What the ranks of a job tell each other, with channels and a clock that are moved by hand."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from stallmeter.engine import job_watch
from stallmeter.engine.guard import Guard
from stallmeter.engine.job_watch import FAILED_WAIT_S, MOST_SHARE, WAIT_S, JobWatch
from stallmeter.engine.monitor import Monitor
from stallmeter.engine.sampler import Sampler
from stallmeter.machine.procfs import process_space
from stallmeter.ranks import posts
from stallmeter.ranks.channels import EXCHANGE_FOLDER, STALE_S, FolderChannel
from stallmeter.ranks.posts import FIRST_S, PERIOD_S, decode_post
from stallmeter.ranks.run_folder import Channel
from stallmeter.recording import Header, Reader, Recorder
from stallmeter.records import Event, LedgerRecord, StepRecord
from stallmeter.records.diagnosis import Diagnosis, Severity, Verdict
from stallmeter.records.steps import STANDS
from stallmeter.window import Window

from ..monitors import bare_monitor

BEGUN_S = 1_700_000_000.0


def verdict_of(rule: str, severity: Severity, lost_s: float = 0.0) -> Verdict:
    found = Diagnosis(
        rule=rule,
        severity=severity,
        title=rule,
        summary="",
        time_lost_s=lost_s,
        share_pct=10.0 * lost_s,
        confidence=0.9,
    )
    return Verdict(primary=found, diagnoses=(found,))


HEALTHY = verdict_of("compute-bound", Severity.INFO)
SLOW_DATA = verdict_of("no-workers", Severity.CRITICAL, 6.0)


@dataclass
class Box:
    """What lies between the ranks, and what went on there."""

    posts: dict[int, str] = field(default_factory=dict)
    fails: bool = False
    calls: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.get_ident())
        if self.fails:
            raise ConnectionError("nobody answers")


class FakeChannel:
    keeps_files = False

    def __init__(self, box: Box) -> None:
        self.box = box
        box.note("connect")

    def expect_posts(self) -> None:
        self.box.note("expect")

    def post(self, rank: int, text: str) -> bool:
        self.box.note("post")
        self.box.posts[rank] = text
        return True

    def is_posted(self, rank: int) -> bool:
        self.box.note("look")
        return rank in self.box.posts

    def take_post(self, rank: int) -> str | None:
        self.box.note("take")
        return self.box.posts.pop(rank, None)

    def end_posts(self, ranks: Any) -> None:
        self.box.note("end")
        self.box.posts.clear()


class Clock:
    def __init__(self) -> None:
        self.s = 0.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[float], None] = lambda s: None
        self.cpu_s = self.turn_cpu_s = 0.0

    def cpu(self) -> float:
        self.cpu_s += self.turn_cpu_s
        return self.cpu_s

    def __call__(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds
        self.slept.append(seconds)
        self.meanwhile(self.s)


@dataclass
class FakeRecorder:
    header: Header
    folder: Path | None = None


class Rank:
    """One rank of a job of several, at the clock of all."""

    def __init__(self, rank: int, box: Box, clock: Clock, *, world_size: int = 2, **about: Any) -> None:
        self.rank, self.clock = rank, clock
        self.events: list[Event] = []
        self.window = Window()
        header = {"run_id": "abcdef", "host": f"host{rank}", "pid": 1000 + rank, "started_s": BEGUN_S, **about}
        folder = header.pop("folder", None)
        self.recorder = FakeRecorder(Header(rank=rank, world_size=world_size, **header), folder)
        self.lines: Mapping[str, Callable[[], Channel]] = {"line": lambda: FakeChannel(box)}  # type: ignore[dict-item]
        self.watch = JobWatch(
            rank,
            world_size,
            lambda topic: self.lines,
            self.window,
            self.events.append,
            clock=clock,
            cpu=clock.cpu,
            sleep=clock.sleep,
        )
        self.index = 0

    def train(self, steps: int, *, late: bool, lost_s: float = 0.03) -> None:
        """Take steps in which rank 1 is late with its data, and rank 0 waits in its backward pass."""
        for record in steps_of(self.index, steps, late=late, lost_s=lost_s):
            self.watch.keep(record)
        self.index += steps
        self.window.append(ledger_of(self.index, late=late, lost_s=lost_s))

    def turn(self, own: Verdict = HEALTHY, ended: str | None = None) -> bool:
        """What the sampler thread does; returns whether it was time to."""
        due = self.watch.begin(self.recorder, own, ended)
        if due:
            self.watch.exchange()
            self.watch.judge()
        return due

    @property
    def silent(self) -> str:
        assert self.watch.report is not None
        return " ".join(self.watch.report.silent)


def steps_of(first: int, count: int, *, late: bool, lost_s: float) -> list[StepRecord]:
    wait, back = (lost_s, 0.002) if late else (0.001, lost_s + 0.001)
    return [
        StepRecord(
            index=index,
            epoch=0,
            optimizer_step=index + 1,
            tracker_step=index,
            samples=4,
            time_s=BEGUN_S + (index + 1) * (lost_s + 0.012),
            total_s=lost_s + 0.012,
            data_wait_s=wait,
            forward_s=0.01,
            backward_s=back,
            epoch_start=index == 0,
        )
        for index in range(first, first + count)
    ]


def ledger_of(steps: int, *, late: bool, lost_s: float) -> LedgerRecord:
    wall_s = steps * (lost_s + 0.012)
    wait = (lost_s if late else 0.001) * steps
    buckets = {"data_wait": wait, "forward": 0.01 * steps, "backward": wall_s - wait - 0.01 * steps}
    return LedgerRecord(time_s=BEGUN_S + wall_s, wall_s=wall_s, steps=steps, epochs=1, buckets=buckets)


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pair(box: Box, clock: Clock, **about: Any) -> tuple[Rank, Rank]:
    first, second = Rank(0, box, clock, **about), Rank(1, box, clock, **about)
    for rank in (first, second):
        rank.train(200, late=rank is second)
    return first, second


# -- the verdict -------------------------------------------------------------------------------------------------------


def test_rank_0_says_the_jobs_cause_at_the_end_of_a_short_run(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    clock.s = 1.0
    assert second.turn(SLOW_DATA, ended="end")
    assert first.turn(HEALTHY, ended="end")
    assert first.watch.judged is not None
    primary = first.watch.judged.verdict.primary
    assert primary is not None
    assert (primary.rule, primary.ranks) == ("no-workers", (1,))
    assert not clock.slept
    assert first.silent == ""
    assert not first.events


def test_rank_0_alone_does_not_say_that_nothing_is_wrong(box: Box, clock: Clock) -> None:
    first, _ = pair(box, clock)
    clock.s = FIRST_S
    assert first.turn()
    assert first.watch.judged is not None
    assert first.watch.judged.verdict.primary is None
    [abstained] = first.watch.judged.verdict.abstained
    assert (abstained.rule, abstained.missing) == ("compute-bound", ("the other ranks",))
    assert "Nothing is known of rank 1" in first.silent


def test_what_rank_0_finds_of_its_own_is_said_all_the_same(box: Box, clock: Clock) -> None:
    first, _ = pair(box, clock)
    assert first.turn(SLOW_DATA, ended="end")
    assert first.watch.judged is not None
    assert first.watch.judged.verdict == SLOW_DATA


# -- when --------------------------------------------------------------------------------------------------------------


def test_posts_come_early_at_first_and_then_twice_a_minute(box: Box, clock: Clock) -> None:
    _, second = pair(box, clock)
    posted = []
    for _ in range(300):
        clock.s += 1.0
        if second.turn():
            posted.append(clock.s)
    gaps = [b - a for a, b in itertools.pairwise(posted)]
    assert posted[0] == FIRST_S
    assert gaps == sorted(gaps)
    assert gaps[-1] == PERIOD_S
    assert len(posted) < 20
    assert box.calls.count("connect") == len(posted)


def test_a_rank_whose_folder_is_not_known_yet_says_nothing(box: Box, clock: Clock) -> None:
    _, second = pair(box, clock, run_id="")
    assert not second.turn(ended="end")
    assert not second.watch.begin(None, HEALTHY, "end")
    assert not box.calls


def test_all_of_it_happens_on_the_thread_that_samples(box: Box, clock: Clock) -> None:
    ranks = pair(box, clock)

    def tick() -> None:
        for rank in reversed(ranks):
            rank.turn(ended="end")

    sampler = Sampler(tick, 0.01)
    sampler.start()
    deadline = time.monotonic() + 30
    while "end" not in box.calls and time.monotonic() < deadline:
        for rank in ranks:
            rank.watch.report  # noqa: B018 - what reports read, from any thread
    sampler.stop(30)
    assert "end" in box.calls
    assert threading.get_ident() not in box.threads


def test_the_job_is_merged_anew_only_when_somebody_has_posted(
    box: Box, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = []
    assemble = job_watch.assemble
    monkeypatch.setattr(job_watch, "assemble", lambda views: merged.append(1) or assemble(views))
    first, second = pair(box, clock)
    clock.s = 5.0
    second.turn(SLOW_DATA)
    first.turn()
    for _ in range(10):
        clock.s += PERIOD_S
        first.train(10, late=False)
        first.turn()
    assert len(merged) == 1
    assert first.watch.judged is not None
    second.train(10, late=True)
    second.turn(SLOW_DATA)
    clock.s += PERIOD_S
    first.turn()
    assert len(merged) == 2


def test_a_turn_that_takes_long_comes_less_often(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    clock.s, clock.turn_cpu_s = PERIOD_S, 0.2
    second.turn(SLOW_DATA)
    first.turn()
    turns = 0
    for _ in range(1000):
        clock.s += 1.0
        turns += first.turn()
    assert 9 <= turns <= 1000 * MOST_SHARE / 0.2
    assert first.turn(ended="end")


def test_what_rank_0_keeps_is_bounded(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    for _ in range(6):
        clock.s += PERIOD_S
        for rank in (second, first):
            rank.train(2000, late=rank is second)
            rank.turn(SLOW_DATA if rank is second else HEALTHY)
    assert all(len(view.steps) <= job_watch.MERGED_STEPS // 2 + 8 for view in first.watch._views.values())
    assert list(first.watch._views[1].steps.index) == sorted(first.watch._views[1].steps.index)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_rank_0_waits_for_one_that_ends_a_moment_later(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    clock.meanwhile = lambda s: 0.5 <= s < 0.55 and second.turn(SLOW_DATA, ended="end")
    assert first.turn(ended="end")
    assert 0.5 <= clock.s < 1.0
    assert first.watch.judged is not None
    assert first.watch.judged.verdict.primary is not None
    assert first.watch.judged.verdict.primary.ranks == (1,)
    assert box.calls[-1] == "end"
    assert not first.events


@pytest.mark.parametrize(("ended", "most_s"), [("end", WAIT_S), ("exception: RuntimeError", FAILED_WAIT_S)])
def test_rank_0_waits_no_longer_and_names_who_is_missing(box: Box, clock: Clock, ended: str, most_s: float) -> None:
    first, second = pair(box, clock, world_size=3)
    clock.s = 10.0
    second.turn(SLOW_DATA)
    first.turn(ended=ended)
    assert 10.0 + most_s <= clock.s < 10.0 + most_s + 0.1
    [event] = first.events
    assert (event.name, event.detail) == ("ranks without a last word", "rank 1, 2")
    assert "Rank 1 sent no last word" in first.silent
    assert "200" in first.silent
    assert "Nothing is known of rank 2" in first.silent
    assert first.watch.job is not None
    assert first.watch.job.missing == (2,)
    assert not first.watch.job.died


def test_nobody_is_waited_for_who_never_posted_in_a_long_run(box: Box, clock: Clock) -> None:
    first, _ = pair(box, clock)
    clock.s = PERIOD_S + 1
    first.turn(ended="end")
    assert not clock.slept


def test_nobody_is_waited_for_who_cannot_be_reached(box: Box, clock: Clock) -> None:
    first, _ = pair(box, clock)
    first.lines = {}
    first.turn(ended="end")
    assert not clock.slept
    assert "Nothing is known of rank 1" in first.silent


def test_a_rank_that_ends_after_rank_0_says_nothing_on_stderr(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    first.turn(ended="end")
    box.fails = True
    assert second.turn(ended="end")


def test_a_post_that_failed_is_sent_with_the_next(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    clock.s, box.fails = 5.0, True
    with pytest.raises(ConnectionError):
        second.turn()
    box.fails = False
    second.train(50, late=True)
    clock.s += PERIOD_S
    second.turn()
    first.turn()
    assert list(first.watch._views[1].steps.index) == list(range(250))


def test_a_post_that_nobody_took_is_repeated_by_the_next(box: Box, clock: Clock) -> None:
    """Rank 0 looks when it is time to for it: of two posts between two looks it sees one."""
    first, second = pair(box, clock)
    for taken in (False, True, False, False):
        clock.s += PERIOD_S
        second.train(30, late=True)
        second.turn()
        if taken:
            first.turn()
    sent = decode_post(box.posts[1].encode())
    assert list(sent.steps.index) == list(range(260, 320))
    first.turn(ended="end")
    assert list(first.watch._views[1].steps.index) == list(range(320))


def test_posts_stay_small(box: Box, clock: Clock) -> None:
    _, second = pair(box, clock)
    for _ in range(4):
        clock.s += PERIOD_S
        second.train(2000, late=True)
        second.turn()
        assert len(box.posts[1]) <= 12_000


@pytest.mark.parametrize("when", ["from the beginning", "while it waits"])
def test_a_store_that_is_gone_leaves_what_is_known(box: Box, clock: Clock, when: str) -> None:
    first, second = pair(box, clock)
    clock.s = 10.0
    second.turn(SLOW_DATA)
    first.turn()

    def fail(_: float) -> None:
        box.fails = True

    clock.meanwhile = fail
    box.fails = when == "from the beginning"
    first.turn(ended="end")
    assert "could not be reached" in first.events[0].detail
    assert first.watch.judged is not None
    assert first.watch.judged.verdict.primary is not None
    assert first.watch.judged.verdict.primary.ranks == (1,)


def test_a_store_that_hangs_is_given_up_and_the_job_judged(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    clock.s = 10.0
    second.turn(SLOW_DATA)
    first.turn()
    let_go = threading.Event()
    told: list[Event] = []
    guard = Guard(told.append)
    hung = FakeChannel(box)
    hung.take_post = lambda rank: let_go.wait(60) and None  # type: ignore[method-assign, assignment, return-value]
    first.lines = {"line": lambda: hung}  # type: ignore[dict-item]
    judged: list[Any] = []

    def last() -> None:
        if first.watch.begin(first.recorder, HEALTHY, "end"):
            guard.ask("the other ranks", first.watch.exchange, again=True)
            first.watch.judge()
            judged.append(first.watch.judged)

    sampler = Sampler(lambda: None, 3600, last=last)
    sampler.start()
    assert not sampler.stop(0.3)
    assert guard.abandon()
    sampler.restart()
    assert sampler.stop(30)
    let_go.set()
    [verdict] = judged
    assert verdict.verdict.primary.ranks == (1,)
    assert [event.name for event in told] == ["the other ranks switched off"]


def test_posts_of_another_version_are_left(box: Box, clock: Clock) -> None:
    first, _ = pair(box, clock)
    box.posts[1] = "not a post"
    clock.s = PERIOD_S + 1
    first.turn(ended="end")
    assert "Nothing is known of rank 1" in first.silent


# -- one folder for all ------------------------------------------------------------------------------------------------


def record(folder: Path, header: Header, *, steps: int, ended: str | None, verdict: Verdict | None) -> None:
    recorder = Recorder(folder, header)
    for step in steps_of(0, steps, late=True, lost_s=0.03):
        recorder.write(step)
    recorder.write(ledger_of(steps, late=True, lost_s=0.03))
    if ended is not None:
        recorder.write(Event(time_s=BEGUN_S, name="end", detail=ended))
    if verdict is not None:
        recorder.write(verdict)
    recorder.close()


def gone_process() -> int:
    """Return the number of a process that has ended and was waited for."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_the_others_recordings_tell_what_they_did_not_post(box: Box, clock: Clock, tmp_path: Path) -> None:
    first, second = pair(box, clock, folder=tmp_path)
    record(tmp_path, second.recorder.header, steps=200, ended="end", verdict=SLOW_DATA)
    first.turn(ended="end")
    assert not clock.slept
    assert first.watch.judged is not None
    assert first.watch.judged.verdict.primary is not None
    assert (first.watch.judged.verdict.primary.rule, first.watch.judged.verdict.primary.ranks) == ("no-workers", (1,))
    assert first.silent == ""


def test_a_recording_whose_last_verdict_is_on_its_way_is_waited_for(box: Box, clock: Clock, tmp_path: Path) -> None:
    first, second = pair(box, clock, folder=tmp_path)
    record(tmp_path, second.recorder.header, steps=200, ended="end", verdict=None)
    first.turn(ended="end")
    assert sum(clock.slept) >= WAIT_S
    assert first.silent == "", "its end is recorded"


@pytest.mark.parametrize("runs", [True, False])
def test_a_rank_that_died_is_named_with_its_last_step_and_not_waited_for(
    box: Box, clock: Clock, tmp_path: Path, runs: bool
) -> None:
    here = {"host": socket.gethostname(), "process_space": process_space(), "started_s": time.time()}
    about = {**here, "pid": os.getpid() if runs else gone_process(), "folder": tmp_path}
    first, second = pair(box, clock, **about)
    record(tmp_path, second.recorder.header, steps=123, ended=None, verdict=None)
    first.turn(ended="exception: RuntimeError")
    assert first.watch.job is not None
    died = [view.rank for view in first.watch.job.died]
    if runs:
        assert died == []
        assert sum(clock.slept) >= FAILED_WAIT_S
        assert "Rank 1 sent no last word" in first.silent
    else:
        assert died == [1]
        assert not clock.slept
        assert first.silent == "Rank 1 died, while others went on. Last known step: 123."


def test_a_rank_that_posts_its_last_words_and_is_gone_has_not_died(box: Box, clock: Clock) -> None:
    """Its post comes after rank 0 has looked for it, and before it looks for the process."""
    here = {"host": socket.gethostname(), "process_space": process_space(), "pid": gone_process()}
    first, second = pair(box, clock, **here)
    second.turn(SLOW_DATA)
    clock.s = 10.0
    second.turn(SLOW_DATA)
    first.turn()
    line = FakeChannel(box)
    take, looks = line.take_post, []

    def take_late(rank: int) -> str | None:
        looks.append(rank)
        text = take(rank)
        if len(looks) == 1:
            second.turn(SLOW_DATA, ended="end")
        return text

    line.take_post = take_late  # type: ignore[method-assign]
    first.lines = {"line": lambda: line}  # type: ignore[dict-item]
    first.turn(ended="exception: RuntimeError")
    assert looks == [1, 1]
    assert first.watch.job is not None
    assert not first.watch.job.died
    assert not first.events


def test_a_rank_that_dies_in_the_middle_is_named_once_its_last_word_had_time_to_come(box: Box, clock: Clock) -> None:
    here = {"host": socket.gethostname(), "process_space": process_space(), "pid": gone_process()}
    first, second = pair(box, clock, **here)
    clock.s = 10.0
    second.turn(SLOW_DATA)
    said = []
    for _ in range(2):
        clock.s += PERIOD_S
        first.turn()
        said.append(first.silent)
    assert said == ["", "Rank 1 died, while others went on. Last known step: 200."]


def test_a_process_of_another_container_is_not_asked_for(box: Box, clock: Clock, tmp_path: Path) -> None:
    about = {"host": socket.gethostname(), "process_space": "another", "pid": gone_process(), "folder": tmp_path}
    first, second = pair(box, clock, **about)
    record(tmp_path, second.recorder.header, steps=123, ended=None, verdict=None)
    first.turn(ended="exception: RuntimeError")
    assert first.watch.job is not None
    assert not first.watch.job.died
    assert "Rank 1 sent no last word" in first.silent


def test_a_rank_that_goes_silent_in_the_middle_is_named(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    clock.s = 10.0
    second.turn(SLOW_DATA)
    first.turn()
    assert first.silent == ""
    for _ in range(5):
        clock.s += PERIOD_S
        first.turn()
    assert first.silent == "Rank 1 went silent. Last known step: 200."
    assert first.watch.job is not None
    assert not first.watch.job.died


# -- ranks without a store ---------------------------------------------------------------------------------------------


def test_ranks_without_a_store_leave_no_files(clock: Clock, tmp_path: Path) -> None:
    first, second = pair(Box(), clock)
    lines = {"files": lambda: FolderChannel(tmp_path / EXCHANGE_FOLDER / "posts")}
    first.lines = second.lines = lines
    clock.s = 5.0
    assert second.turn(SLOW_DATA)
    assert not (tmp_path / EXCHANGE_FOLDER).exists(), "rank 0 would not remove it"
    first.turn()
    clock.s += PERIOD_S
    second.turn(SLOW_DATA)
    clock.s += PERIOD_S
    first.turn()
    assert first.watch.job is not None
    assert len(first.watch.job.ranks) == 2
    assert len(first.watch.job.ranks[1].steps) == 200, "what could not be posted at first is not lost"
    assert (tmp_path / EXCHANGE_FOLDER / "posts").is_dir()
    first.turn(ended="end")
    assert second.turn(ended="end")
    assert not list(tmp_path.iterdir())


def test_a_signal_leaves_no_files_either(clock: Clock, tmp_path: Path) -> None:
    first, _ = pair(Box(), clock)
    first.lines = {"files": lambda: FolderChannel(tmp_path / EXCHANGE_FOLDER / "posts")}
    clock.s = 5.0
    first.turn()
    assert (tmp_path / EXCHANGE_FOLDER / "posts").is_dir()
    first.watch.leave()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_job_left_is_removed_by_the_next(tmp_path: Path) -> None:
    old, other = tmp_path / "old", tmp_path / "other"
    for folder in (old, other):
        FolderChannel(folder).expect_posts()
        FolderChannel(folder).post(1, "text")
    os.utime(old, (time.time() - 2 * STALE_S,) * 2)
    FolderChannel(tmp_path / "new").expect_posts()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "other"]
    assert FolderChannel(other).take_post(1) == "text"


def test_headers_tell_processes_apart() -> None:
    header = Header(run_id="a", started_s=time.time(), host=socket.gethostname(), pid=os.getpid())
    assert job_watch.is_running(replace(header, process_space=process_space()))
    assert job_watch.is_running(replace(header, process_space="another")) is None
    assert job_watch.is_running(replace(header, host="another", process_space=process_space())) is None


# -- in a run ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Why the run ended, for each time that the other ranks were asked; those of a job of srun's that has no store."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    seen: list[str | None] = []
    exchange = JobWatch.exchange

    def noting(watch: JobWatch) -> None:
        assert watch._turn is not None
        seen.append(watch._turn.ended)
        exchange(watch)

    monkeypatch.setattr(JobWatch, "exchange", noting)
    monkeypatch.setattr(posts, "FIRST_S", 0.0)
    return seen


def running(folder: Path, exchanged: list[str | None]) -> Monitor:
    monitor = bare_monitor(folder, rank=0, world_size=2, interval_s=0.02)
    deadline = time.monotonic() + 30
    while not exchanged and time.monotonic() < deadline:
        time.sleep(0.01)
    return monitor


def test_a_signal_waits_for_no_other_rank(tmp_path: Path, exchanged: list[str | None]) -> None:
    monitor = running(tmp_path, exchanged)
    monitor.abort("exception: SIGTERMException", signalled=True)
    assert monitor.finish()
    assert set(exchanged) == {None}
    assert not (tmp_path / EXCHANGE_FOLDER).exists()


def test_the_end_of_a_run_names_who_is_missing(
    tmp_path: Path, exchanged: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "WAIT_S", 0.1)
    monitor = running(tmp_path, exchanged)
    monitor.close()
    assert exchanged[-1] == "end"
    assert monitor.folder is not None
    [event] = [r for r, _ in Reader(monitor.folder) if isinstance(r, Event) and r.name.startswith("ranks without")]
    assert event.detail == "rank 1"
    whole = json.loads((monitor.folder / "ranks.json").read_text())
    assert whole["job"]["missing"] == [1]
    assert "Nothing is known of rank 1" in (monitor.folder / "report.md").read_text()


def test_where_ranks_stand_is_told_with_those_first_that_no_other_is_with(box: Box, clock: Clock) -> None:
    ranks = [Rank(number, box, clock, world_size=3) for number in range(3)]
    for rank in ranks:
        rank.train(40, late=rank.rank == 1)
        where = "compute: load, train.py:7 (time.sleep)" if rank.rank == 1 else "backward: main, train.py:9"
        at_s = BEGUN_S + 100.0
        rank.watch.keep(Event(time_s=at_s, name=STANDS, detail=f"for {30 + rank.rank} s in {where}"))
    clock.s += 60.0
    for rank in reversed(ranks):
        assert rank.turn(ended="exception: RuntimeError")
    report = ranks[0].watch.report
    assert report is not None
    assert report.silent[-2:] == (
        "Rank 1 stood for 31 s in compute: load, train.py:7 (time.sleep). Last known step: 40.",
        "Ranks 0 and 2 stood for 32 s in backward: main, train.py:9. Last known steps: 40, 40.",
    )


def test_a_rank_that_went_on_does_not_stand(box: Box, clock: Clock) -> None:
    first, second = pair(box, clock)
    for rank in (first, second):
        rank.watch.keep(Event(time_s=BEGUN_S - 5.0, name=STANDS, detail="for 31 s in backward"))
        rank.train(40, late=rank is second)
    clock.s += 60.0
    for rank in (second, first):
        assert rank.turn(ended="exception: RuntimeError")
    assert "stood" not in first.silent
