"""A rule, source or tracker that raises, hangs or returns nonsense is named once; the rest goes on."""

from __future__ import annotations

import functools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stallmeter.engine import sampler
from stallmeter.engine.guard import Guard
from stallmeter.engine.monitor import Monitor
from stallmeter.recording import Reader
from stallmeter.records import Event, HostSample, LedgerRecord, NetworkSample, StepRecord, SyncCalls
from stallmeter.records.checks import sound_diagnosis, sound_samples
from stallmeter.records.diagnosis import Advice, Diagnosis, Evidence, Severity
from stallmeter.records.interfaces import Point
from stallmeter.report.json import to_json
from stallmeter.report.markdown import to_markdown
from stallmeter.report.model import Report, read_history
from stallmeter.report.page.facts import events
from stallmeter.report.text import to_text
from stallmeter.window import Window

from ..children import our_threads
from ..conftest import FakeSource, FakeTime, ListTracker
from ..monitors import bare_monitor

HUGE = "x" * 10_000_000
SOUND: dict[str, Any] = {
    "rule": "odd",
    "severity": Severity.WARNING,
    "title": "Odd",
    "summary": "Odd.",
    "time_lost_s": 0.5,
    "share_pct": 5.0,
    "confidence": 0.5,
}


class Odd:
    """A rule that does what a test says."""

    id: ClassVar[str] = "odd"
    title: ClassVar[str] = "Odd"
    needs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    def check(self, window: Window) -> Any:
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


class Fine(Odd):
    id = "fine"
    title = "Fine"


class OddSource(FakeSource):
    """A source that does what a test says."""

    def __init__(self, answer: Any) -> None:
        super().__init__("odd")
        self.answer = answer
        self.asked = 0

    def sample(self, time_s: float) -> Any:
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Silent:
    """Waits until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        self.release.wait(60)


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.release.set()


def diagnosis(**other: Any) -> Diagnosis:
    return Diagnosis(**{**SOUND, **other})


class Bench:
    """One run: five steps, a sound rule, a sound source, a sound tracker, and what is put beside them."""

    def __init__(self, folder: Path, now: FakeTime, caplog: pytest.LogCaptureFixture) -> None:
        self.folder, self.now, self.caplog = folder, now, caplog
        self.rule = Fine(diagnosis(rule="fine"))
        self.source = FakeSource("sound", [HostSample(time_s=1.0, job_cpus=1.5)])
        self.tracker = ListTracker("sound")

    def start(
        self,
        rules: Sequence[Any] = (),
        sources: Sequence[Any] = (),
        trackers: Sequence[Any] = (),
        budget_s: float = 20,
        interval_s: float = 0.02,
        loop_looks: bool = False,
    ) -> Monitor:
        return bare_monitor(
            self.folder,
            loop_looks=loop_looks,
            close_budget_s=budget_s,
            interval_s=interval_s,
            rules=[*rules, self.rule],
            sources=[*sources, self.source],
            trackers=[*trackers, self.tracker],
            now=self.now,
        )

    def train(self, monitor: Monitor, steps: int = 5) -> None:
        for _ in monitor.watch(range(steps)):
            self.now.sleep(1.0)

    def run(self, **plugins: Any) -> Report:
        monitor = self.start(**plugins)
        self.train(monitor)
        monitor.close()
        return self.check(monitor)

    def check(self, monitor: Monitor, steps: int = 5) -> Report:
        """What is sound worked, whatever happened beside it."""
        assert monitor.folder is not None
        found = [r for r, _ in Reader(monitor.folder)]
        assert sum(isinstance(r, StepRecord) for r in found) == steps
        assert [r.job_cpus for r in found if isinstance(r, HostSample)] == [1.5]
        assert [r for r in found if isinstance(r, LedgerRecord)][-1].steps == steps
        assert self.source.closed
        report = read_history(monitor.folder).report()
        assert report.verdict.primary == self.rule.answer
        assert report.ended == "end"
        assert self.tracker.closed
        assert self.tracker.pages[-1].final
        assert "job_cpus" in {p.key for p in self.tracker.points}
        return report

    def run_once(self, **plugins: Any) -> Report:
        """As `run`; sources and rules are asked only when it ends."""
        return self.run(interval_s=3600, **plugins)

    def is_named_once(self, report: Report, name: str, outcome: str = "switched off", again: bool = False) -> None:
        verb = "failed and is tried again" if again else outcome
        warning = f"stallmeter: {name} {'failed and is ' if outcome == 'switched off' else ''}{verb};"
        assert self.caplog.text.count(warning) == 1
        assert [r.levelname for r in self.caplog.records if name in r.getMessage()] == ["WARNING"]
        said = f"{name} {outcome}"
        assert [e.name for e in events(report)] == [said]
        assert " ".join(to_text(report, width=500).split()).count(said) == 1
        assert to_markdown(report).count(said) == 1
        assert json.dumps(to_json(report)).count(said) == 1


@pytest.fixture
def bench(tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture) -> Bench:
    return Bench(tmp_path, fake_time, caplog)


NO_DIAGNOSES = {
    "raises": ZeroDivisionError("no"),
    "raises what cannot be printed": Unprintable(),
    "exits": SystemExit(3),
    "a number": 7,
    "a text": "data stall",
    "a list": [diagnosis()],
    "a class": Diagnosis,
    "severity is a text": diagnosis(severity="critical"),
    "no time lost": diagnosis(time_lost_s=None),
    "nan": diagnosis(time_lost_s=float("nan")),
    "infinite": diagnosis(share_pct=float("inf")),
    "negative": diagnosis(time_lost_s=-1.0),
    "too sure": diagnosis(confidence=50),
    "bytes": diagnosis(title=b"Odd"),
    "evidence of the wrong kind": diagnosis(evidence=({"name": "x"},)),
    "evidence without a value": diagnosis(evidence=(Evidence("x", None, "s"),)),  # type: ignore[arg-type]
    "advice without words": diagnosis(advice=(Advice(None),)),  # type: ignore[arg-type]
    "advice that is a text": diagnosis(advice="use more workers"),
    "a huge text": diagnosis(summary=HUGE),
    "a thousand pieces of advice": diagnosis(advice=(Advice("x"),) * 5000),
}


@pytest.mark.parametrize("answer", NO_DIAGNOSES.values(), ids=NO_DIAGNOSES)
def test_a_rule_that_raises_or_returns_nonsense(bench: Bench, answer: Any) -> None:
    rule = Odd(answer)
    report = bench.run_once(rules=[rule])
    bench.is_named_once(report, "rule odd", "failed", again=True)
    assert rule.asked == 1
    assert [d.rule for d in report.verdict.diagnoses] == ["fine"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("needs", ("no_such_signal",)), ("needs", None), ("needs", (3,)), ("check", "not callable")],
    ids=str,
)
def test_a_rule_that_is_none(bench: Bench, name: str, value: Any) -> None:
    rule = Odd(None)
    monitor = bench.start(rules=[rule], interval_s=3600)
    setattr(rule, name, value)  # what is none from the beginning is refused there
    bench.train(monitor)
    monitor.close()
    bench.is_named_once(bench.check(monitor), "rule odd", "failed", again=True)


STEP = StepRecord(
    index=0, epoch=0, optimizer_step=0, tracker_step=0, samples=1, time_s=1.0, total_s=1.0, data_wait_s=0.0
)
WRONG_PART = NetworkSample(name="e", received_bytes_per_s="many", sent_bytes_per_s=1)  # type: ignore[arg-type]
NO_SAMPLES = {
    "raises": OSError(5, "broken"),
    "raises what cannot be printed": Unprintable(),
    "exits": SystemExit("enough"),
    "a number": 7,
    "a text": "busy",
    "a mapping": {"job_cpus": 1.0},
    "holds None": [None],
    "holds a mapping": [{"time_s": 1.0}],
    "holds a class": [HostSample],
    "holds a step": [STEP],
    "a number as a text": [HostSample(time_s=1.0, job_cpus="1.5")],  # type: ignore[arg-type]
    "no time": [HostSample(time_s=None)],  # type: ignore[arg-type]
    "nan": [HostSample(time_s=1.0, job_cpus=float("nan"))],
    "infinite": [HostSample(time_s=1.0, job_cpus=float("inf"))],
    "too large": [HostSample(time_s=1.0, job_rss_bytes=10**400)],
    "a wrong part": [HostSample(time_s=1.0, network=(WRONG_PART,))],
    "a wrong mapping": [SyncCalls(time_s=1.0, first_step=1, steps=1, calls={1: 2})],  # type: ignore[dict-item]
    "a huge text": [Event(time_s=1.0, name="x", detail=HUGE)],
    "no end": lambda: iter(lambda: HostSample(time_s=1.0), None),
    "an iterator that raises": lambda: (1 / 0 for _ in range(3)),
}


@pytest.mark.parametrize("answer", NO_SAMPLES.values(), ids=NO_SAMPLES)
def test_a_source_that_raises_or_returns_nonsense(bench: Bench, answer: Any) -> None:
    source = OddSource(answer)
    bench.is_named_once(bench.run_once(sources=[source]), "source odd", "failed", again=True)
    assert source.asked == 1
    assert source.closed


def test_a_source_that_cannot_be_closed(bench: Bench) -> None:
    class Stuck(FakeSource):
        def close(self) -> None:
            raise OSError("stuck")

    bench.is_named_once(bench.run(sources=[Stuck("odd")]), "source odd", "failed")


class OddTracker(ListTracker):
    """Fails in one method, or has one attribute that is nonsense."""

    def __init__(self, where: str, value: Any = None) -> None:
        super().__init__("odd")
        self.where = where
        if where in ("name", "destination", "batch_size"):
            setattr(self, where, value)

    def send(self, points: Sequence[Point]) -> None:
        self._fail("send")

    def show(self, page: Any) -> None:
        self._fail("show")

    def close(self) -> None:
        super().close()
        self._fail("close")

    def _fail(self, where: str) -> None:
        if self.where in (where, "everywhere"):
            raise ValueError("http://me:s3cret@host says no")


@pytest.mark.parametrize(
    ("where", "value"),
    [("send", None), ("show", None), ("everywhere", None), ("batch_size", None), ("batch_size", "many")],
)
def test_a_tracker_that_raises_or_makes_no_sense(bench: Bench, where: str, value: Any) -> None:
    tracker = OddTracker(where, value)
    bench.is_named_once(bench.run(trackers=[tracker]), "tracker odd")
    assert tracker.closed
    assert "s3cret" not in bench.caplog.text


def test_a_tracker_that_cannot_be_closed(bench: Bench) -> None:
    bench.is_named_once(bench.run(trackers=[OddTracker("close")]), "tracker odd", "failed")


def test_a_tracker_that_cannot_be_opened(bench: Bench) -> None:
    class Shy(ListTracker):
        @property
        def destination(self) -> str:
            raise ConnectionError("no")

        @destination.setter
        def destination(self, value: str) -> None:
            pass

    bench.is_named_once(bench.run(trackers=[Shy("odd")]), "tracker odd")


# -- what fails and may work again -------------------------------------------------------------------------------------


def polls_with(bench: Bench, failing: Callable[[int], bool], polls: int, level: int = 1) -> tuple[list[int], Report]:
    """At which polls a source was asked that fails at some of its calls, and the report."""
    asked: list[int] = []
    poll = [0]

    def answer() -> Sequence[Any]:
        asked.append(poll[0])
        if failing(len(asked) - 1):
            raise OSError(24, "Too many open files")
        return ()

    monitor = bench.start(sources=[OddSource(answer)], interval_s=3600)
    bench.train(monitor)
    for poll[0] in range(polls):
        monitor.run.collector._limiter.level = level
        monitor.run.collector.tick()
    poll[0] = -1
    monitor.close()
    return asked, bench.check(monitor)


def test_a_source_that_fails_is_asked_again_ever_later_and_then_switched_off(bench: Bench) -> None:
    asked, report = polls_with(bench, lambda call: True, 40)
    assert asked == [0, 1, 3, 7, 15]
    assert [e.name for e in events(report)] == ["source odd failed", "source odd switched off"]
    assert "Too many open files" in to_text(report, width=500)
    assert bench.caplog.text.count("source odd") == 1


def test_a_passing_error_costs_a_source_little(bench: Bench) -> None:
    asked, report = polls_with(bench, lambda call: call in (3, 4), 12)
    assert asked == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, -1]
    bench.is_named_once(report, "source odd", "failed", again=True)


def test_only_failures_in_a_row_count(bench: Bench) -> None:
    """Four of them, a success, and so on: it is asked to the end."""
    asked, report = polls_with(bench, lambda call: call % 5 != 4, 64)
    assert len(asked) >= 20
    bench.is_named_once(report, "source odd", "failed", again=True)


def test_a_poll_in_which_a_source_is_not_due_is_no_success(bench: Bench) -> None:
    """Where watching costs too much, sources are asked less often."""
    asked, report = polls_with(bench, lambda call: True, 40, level=2)
    assert asked == [0, 2, 6, 14, 30]
    assert [e.name for e in events(report)] == ["source odd failed", "source odd switched off"]


def test_a_rule_that_cannot_bear_one_window_judges_the_next(bench: Bench) -> None:
    answers = iter([ZeroDivisionError("no")])

    def answer() -> Any:
        for error in answers:
            raise error
        return diagnosis(title="Odd after all", time_lost_s=0.1)

    rule = Odd(answer)
    monitor = bench.start(rules=[rule], interval_s=3600)
    bench.train(monitor)
    for _ in range(2):
        monitor.run.collector._next_verdict_s = 0.0
        monitor.run.collector.tick()
    assert [d.rule for d in monitor.verdict.diagnoses] == ["fine", "odd"]
    monitor.close()
    report = bench.check(monitor)
    assert rule.asked == 3
    assert [d.rule for d in report.verdict.diagnoses] == ["fine", "odd"]
    bench.is_named_once(report, "rule odd", "failed", again=True)


# -- what hangs -------------------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("kind", ["rules", "sources"])
def test_what_hangs_in_the_middle_of_a_run(
    bench: Bench, silent: Silent, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread goes on without it, long before the end."""
    monkeypatch.setattr(sampler, "PATIENCE_S", 0.3)
    odd = Odd(silent) if kind == "rules" else OddSource(silent)
    monitor = bench.start(**{kind: [odd]})
    bench.train(monitor)
    assert silent.entered.wait(60)
    name = f"{kind[:-1]} odd"
    wait_for(lambda: name in bench.caplog.text)
    wait_for(lambda: [e for e in monitor.window.events if e.name == f"{name} switched off"] != [])
    before = monitor.window.ledger.record
    wait_for(lambda: monitor.window.ledger.record is not before)
    silent.release.set()
    monitor.close()
    bench.is_named_once(bench.check(monitor), name)
    assert odd.asked == 1


@pytest.mark.parametrize("kind", ["rules", "sources"])
def test_what_hangs_at_the_end(bench: Bench, silent: Silent, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a rule that is asked for the first time when the run ends: the program's own thread never asks it."""
    monkeypatch.setattr("stallmeter.engine.collector.HANG_S", 1.0)
    odd = Odd(silent) if kind == "rules" else OddSource(silent)
    monitor = bench.start(**{kind: [odd]})
    bench.train(monitor)
    monitor.close()
    assert not silent.release.is_set()
    bench.is_named_once(bench.check(monitor), f"{kind[:-1]} odd")
    assert odd.asked == 1
    size = sum(f.stat().st_size for f in monitor.folder.glob("*.jsonl"))  # type: ignore[union-attr]
    silent.release.set()
    wait_for(lambda: not our_threads("stallmeter-sampler"))
    assert size == sum(f.stat().st_size for f in monitor.folder.glob("*.jsonl"))  # type: ignore[union-attr]


def test_a_source_that_hangs_when_it_is_closed(bench: Bench, silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clinging(FakeSource):
        def close(self) -> None:
            silent()

    monkeypatch.setattr("stallmeter.engine.collector.HANG_S", 1.0)
    monitor = bench.start(sources=[Clinging("odd")])
    bench.train(monitor)
    monitor.close()
    assert not silent.release.is_set()
    bench.is_named_once(bench.check(monitor), "source odd")


def test_everything_hangs(bench: Bench, silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes, and the ledger and the steps are there."""
    monkeypatch.setattr("stallmeter.engine.collector.HANG_S", 0.2)
    monkeypatch.setattr("stallmeter.engine.collector.GIVE_UP_S", 0.9)
    rules = [type(f"Odd{i}", (Odd,), {"id": f"odd-{i}"})(silent) for i in range(30)]
    monitor = bench.start(rules=rules, sources=[OddSource(silent)], budget_s=1)
    bench.train(monitor)
    monitor.close()
    assert not silent.release.is_set()
    assert monitor.folder is not None
    report = read_history(monitor.folder).report()
    assert (report.steps, report.recorded_steps) == (5, 5)
    assert report.ended == "end"
    assert 1 <= len(events(report)) < 10
    assert len({e.name for e in events(report)}) == len(events(report))


def test_a_tracker_that_hangs(bench: Bench, silent: Silent) -> None:
    """It is named at the end, when its time is over, and the other one gets everything."""

    class Hung(ListTracker):
        def send(self, points: Sequence[Point]) -> None:
            silent()

    monitor = bench.start(trackers=[Hung("odd")], budget_s=3)
    bench.train(monitor)
    monitor.close()
    assert not silent.release.is_set()
    assert [u.tracker for u in monitor.undelivered] == ["odd"]
    assert not monitor.finish()
    bench.is_named_once(bench.check(monitor), "tracker odd", "does not answer")
    # `sync` knows nothing of a tracker of the program's own.
    assert "points did not reach memory; they are in " in bench.caplog.text
    assert "stallmeter sync" not in bench.caplog.text


def test_a_tracker_that_hangs_for_long_is_named_while_the_run_goes_on(
    bench: Bench, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets everything once it answers again."""
    monkeypatch.setattr("stallmeter.engine.collector.TRACKER_HANG_S", 0.5)

    class Hung(ListTracker):
        def send(self, points: Sequence[Point]) -> None:
            silent()
            super().send(points)

    tracker = Hung("odd")
    monitor = bench.start(trackers=[tracker])
    bench.train(monitor)
    wait_for(lambda: "tracker odd does not answer" in bench.caplog.text)
    silent.release.set()
    monitor.close()
    assert monitor.undelivered == ()
    bench.is_named_once(bench.check(monitor), "tracker odd", "does not answer")
    assert sorted(map(str, tracker.points)) == sorted(map(str, bench.tracker.points))


# -- our own parts ----------------------------------------------------------------------------------------------------

PARTS = {
    "_take_steps": "taking the steps",
    "_read_ledger": "the ledger",
    "_close_period": "the period",
    "_evaluate": "the verdict",
    "_limit_overhead": "the cost of sampling",
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_our_own_that_fails_once_is_tried_again(
    bench: Bench, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = bench.start()
    bench.train(monitor)
    collector = monitor.run.collector
    whole = getattr(collector, part)
    failures = iter([True])

    def flaky(*args: Any) -> Any:
        if next(failures, False):
            raise KeyError("a bug")
        return whole(*args)

    monkeypatch.setattr(collector, part, flaky)
    collector._next_verdict_s = collector._period_ends_s = 0.0
    wait_for(lambda: PARTS[part] in bench.caplog.text)
    monitor.close()
    bench.is_named_once(bench.check(monitor), PARTS[part], "failed")


def test_no_thread_can_be_had(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monitor = bench.start(loop_looks=True)
    bench.train(monitor)
    monitor.close()
    monkeypatch.undo()
    assert monitor.folder is not None
    report = read_history(monitor.folder).report()
    assert (report.steps, report.ended) == (5, "end")
    names = ["the look into the loop switched off", "forwarding switched off", "starting to sample switched off"]
    assert [e.name for e in events(report)] == names


def test_a_console_that_is_gone(
    bench: Bench, tmp_path: Path, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        flush = write

    monitor = bare_monitor(tmp_path, console=True, now=fake_time)
    for _ in monitor.watch(range(3)):
        fake_time.sleep(1.0)
    monkeypatch.setattr("sys.stderr", Gone())
    monkeypatch.setattr("logging.raiseExceptions", False)
    monitor.close()
    monkeypatch.undo()
    assert monitor.folder is not None
    assert read_history(monitor.folder).report().ended == "end"


def test_what_is_sound_passes() -> None:
    whole = diagnosis(evidence=[Evidence("x", 1, "s", 2.0, "here")], advice=(Advice("do", 5),), culprit=None)
    assert sound_diagnosis(whole) is whole
    assert sound_diagnosis(None) is None
    assert sound_samples(None) == ()
    samples = [HostSample(time_s=1, network=(NetworkSample(name="e", received_bytes_per_s=1, sent_bytes_per_s=0),))]
    assert sound_samples(iter(samples)) == tuple(samples)


class Late(Exception):
    """A limit of the program's."""


def _late(number: int, frame: object) -> None:
    raise Late


class _Handles:
    def __call__(self, number: int, frame: object) -> None:
        raise Late

    def late(self, number: int, frame: object) -> None:
        raise Late


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signals")
@pytest.mark.parametrize("handler", [_late, _Handles(), _Handles().late, functools.partial(_late)])
@pytest.mark.parametrize("ways", ["__call__", "attempt", "retry", "keep_trying"])
def test_what_the_programs_handler_of_a_signal_raises_is_the_programs(handler: Any, ways: str) -> None:
    """It came in our code by chance: nothing of ours has failed, and nothing is switched off."""
    told: list[Event] = []
    call = getattr(Guard(told.append), ways)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Late):
            call("a part", lambda: signal.raise_signal(signal.SIGUSR1))
        assert call("a part", lambda: 3) == 3
        assert told == []
        assert call("a part", lambda: Severity("nothing")) is None
        assert [event.name for event in told] != []
    finally:
        signal.signal(signal.SIGUSR1, before)
