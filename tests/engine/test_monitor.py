"""The monitor records what happens, survives what fails, and ends in time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import stallmeter
from stallmeter.delivery.choice import choose_trackers
from stallmeter.engine.monitor import Monitor
from stallmeter.engine.options import Options
from stallmeter.engine.wiring import MOST_WAITING, plain_run
from stallmeter.errors import SettingError
from stallmeter.recording import Reader
from stallmeter.records import (
    DeviceStep,
    Event,
    HostSample,
    LedgerRecord,
    StepRecord,
    UserMetrics,
    WindowRecord,
    WorkerBatch,
)
from stallmeter.records.rows import FIRST_STEPS, is_kept
from stallmeter.report.drawing import ChildDrawing
from stallmeter.rules import ALL_RULES
from stallmeter.window import Window

from ..conftest import FakeSource, FakeTime, ListTracker
from ..monitors import bare_monitor


def make(tmp_path: Path, **options: Any) -> Monitor:
    return bare_monitor(tmp_path, **{"close_budget_s": 60, "interval_s": 0.05, **options})


def by_hand(tmp_path: Path, fake_time: FakeTime, *sources: Any) -> Monitor:
    """A monitor that takes no tick of its own but the last."""
    return bare_monitor(tmp_path, interval_s=3600, sources=sources, now=fake_time)


def records(monitor: Monitor) -> list[Any]:
    return [x for x, _ in Reader(monitor.folder)]


def test_a_whole_run(tmp_path: Path, fake_time: FakeTime) -> None:
    tracker = ListTracker()
    source = FakeSource(samples=[HostSample(time_s=1.0, job_cpus=1.5)])
    plugins = {"sources": [source], "rules": ALL_RULES, "trackers": [tracker]}
    monitor = make(tmp_path, **plugins, draw=ChildDrawing, now=fake_time)
    for _ in monitor.watch(range(20)):
        fake_time.sleep(0.5)
        with monitor.span("forward"):
            fake_time.sleep(0.25)
    monitor.log({"loss": 2})
    monitor.close()
    assert monitor.finish()
    found = records(monitor)
    assert sum(isinstance(x, StepRecord) for x in found) == 20
    ledger = [x for x in found if isinstance(x, LedgerRecord)][-1]
    assert ledger.buckets["forward"] == pytest.approx(5)
    assert ledger.buckets["compute"] == pytest.approx(10)
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s)
    assert any(isinstance(x, UserMetrics) for x in found)
    assert any(isinstance(x, WindowRecord) and x.hardware["job_cpus"] == 1.5 for x in found)
    assert [x.name for x in found if isinstance(x, Event)] == ["end"]
    assert {p.key for p in tracker.points} >= {"step_time_ms", "data_wait_pct", "job_cpus", "user/loss"}
    assert [page.final for page in tracker.pages].count(True) == 1
    assert tracker.pages[-1].final
    names = {"report.html", "report.md", "phases.png", "diagnosis.json", "steps.csv"}
    assert set(tracker.pages[-1].files) == names
    assert all(path.is_file() for path in tracker.pages[-1].files.values())
    assert source.closed
    assert tracker.closed
    assert monitor.undelivered == ()
    monitor.close()


class Failing(FakeSource):
    def __init__(self, error: BaseException) -> None:
        super().__init__("failing")
        self.error = error
        self.asked = 0

    def sample(self, time_s: float) -> Sequence[Any]:
        self.asked += 1
        raise self.error


@dataclass(frozen=True, slots=True)
class Broken:
    id: ClassVar[str] = "broken"
    title: ClassVar[str] = "Broken"
    needs: ClassVar[tuple[str, ...]] = ()

    def check(self, window: Window) -> None:
        raise RuntimeError("http://me:s3cret@host is broken")


class Refusing(ListTracker):
    def send(self, points: Any) -> None:
        raise ValueError("nonsense")


def test_what_fails_is_named_once(tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture) -> None:
    source = Failing(ZeroDivisionError("no"))
    monitor = make(tmp_path, sources=[source], rules=[Broken()], trackers=[Refusing()], now=fake_time)
    for _ in monitor.watch(range(3)):
        fake_time.sleep(0.5)
    deadline = time.monotonic() + 30
    while source.asked < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    monitor.close()
    assert source.asked >= 2
    text = caplog.text
    assert text.count("source failing failed") == text.count("rule broken failed") == 1
    assert "s3cret" not in text
    assert sum(isinstance(x, StepRecord) for x in records(monitor)) == 3


class Hanging(FakeSource):
    def __init__(self) -> None:
        super().__init__("hanging")
        self.entered, self.release = threading.Event(), threading.Event()

    def sample(self, time_s: float) -> Sequence[Any]:
        self.entered.set()
        self.release.wait(60)
        return [HostSample(time_s=1.0)]


def test_the_users_numbers_are_not_changed(tmp_path: Path, fake_time: FakeTime) -> None:
    """From `log` to the recording and to the tracker; what is not finite is recorded only."""
    tracker = ListTracker()
    monitor = make(tmp_path, trackers=[tracker], now=fake_time)
    sent = {"lr": 2.5e-8, "tokens": 1234567.0, "third": 1 / 3, "large": float(2**53 + 1), "tiny": 5e-324}
    monitor.log({**sent, "large": 2**53 + 1, "nan": float("nan")})
    monitor.close()
    (recorded,) = (x.metrics for x in records(monitor) if isinstance(x, UserMetrics))
    assert repr(recorded) == repr({**sent, "nan": float("nan")})
    assert {p.key[5:]: p.value for p in tracker.points if p.key.startswith("user/")} == sent


def test_a_source_that_hangs_is_left_behind(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallmeter.engine.collector.HANG_S", 0.2)
    source = Hanging()
    monitor = make(tmp_path, sources=[source], now=fake_time)
    assert source.entered.wait(30)
    for _ in monitor.watch(range(5)):
        fake_time.sleep(0.5)
    monitor.close()
    source.release.set()
    assert monitor.run.collector.sampler.stop(30)
    assert caplog.text.count("source hanging failed and is switched off") == 1
    found = records(monitor)
    assert sum(isinstance(x, StepRecord) for x in found) == 5
    assert [x.name for x in found if isinstance(x, Event)] == ["source hanging switched off", "end"]
    assert not any(isinstance(x, HostSample) for x in found)


def test_a_keyboard_interrupt_is_not_swallowed(tmp_path: Path) -> None:
    monitor = make(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        monitor.run.guard("x", _interrupt)
    monitor.close()


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_fast_steps_are_sampled_with_every_outlier(tmp_path: Path, fake_time: FakeTime) -> None:
    monitor = by_hand(tmp_path, fake_time)
    for i, _ in enumerate(monitor.watch(range(30_000))):
        fake_time.sleep(5.0 if i in (7_001, 20_003) else 0.001)
        if i == 6_000:
            monitor.run.collector.tick()
    monitor.close()
    steps = [x for x in records(monitor) if isinstance(x, StepRecord)]
    assert {7_001, 20_003} <= {s.index for s in steps}
    assert 0 in {s.index for s in steps}
    ledger = [x for x in records(monitor) if isinstance(x, LedgerRecord)][-1]
    assert ledger.steps == 30_000
    assert ledger.recorded_steps == len(steps) < 10_000


def test_ranks_keep_the_same_steps_and_batches(tmp_path: Path) -> None:
    """However their ticks fall: two monitors that drain at different moments and rates keep comparable steps."""
    kept = []
    for ticks_every in (700, 1_100):
        now, source = FakeTime(), FakeSource()
        monitor = by_hand(tmp_path / str(ticks_every), now, source)
        for i, _ in enumerate(monitor.watch(range(7_700))):
            now.sleep(0.001)
            source.samples.append(WorkerBatch(worker=i % 4, time_s=float(i), wall_s=0.001, cpu_s=0.001))
            if i % ticks_every == ticks_every - 1:
                monitor.run.collector.tick()
        monitor.close()
        found = records(monitor)
        kept.append({x.index for x in found if isinstance(x, StepRecord)} - {7_699})  # alone in the last tick
        batches = [x for x in found if isinstance(x, WorkerBatch)]
        assert {x.worker for x in batches} == {0, 1, 2, 3}
        assert {x.time_s // 4 % 8 for x in batches} == {0.0}
    assert kept[1] < kept[0]
    assert all(i < FIRST_STEPS or is_kept(i, 8) for i in kept[0])
    assert set(range(FIRST_STEPS)) <= kept[1]


def test_batches_and_the_devices_part_are_recorded_as_steps_are(tmp_path: Path, fake_time: FakeTime) -> None:
    """The window sees all of them; the recording as many batches as steps, and the device's part of its own steps."""
    source = FakeSource()
    monitor = by_hand(tmp_path, fake_time, source)
    times = {"host_wait_s": 0.0, "host_idle_s": 0.0, "host_work_s": 0.001}
    for i, _ in enumerate(monitor.watch(range(10_000))):
        fake_time.sleep(0.001)
        source.samples += [
            WorkerBatch(worker=0, time_s=1.0, wall_s=0.001, cpu_s=0.001), DeviceStep(index=i, **times)
        ]  # fmt: skip
        if i % 1_000 == 999:
            monitor.run.collector.tick()
    monitor.close()
    found = records(monitor)
    steps = {x.index for x in found if isinstance(x, StepRecord)}
    assert steps - {9_999} == {i for i in range(10_000) if i < FIRST_STEPS or is_kept(i, 16)}
    assert sum(isinstance(x, WorkerBatch) for x in found) == 10_000 / 16
    timed = {x.index for x in found if isinstance(x, DeviceStep)}
    assert timed <= steps
    assert len(timed) >= 600
    assert len(monitor.window.workers.batches) == 10_000
    assert len(monitor.window.device.steps) > 9_900


def test_a_long_recording_is_thinned(tmp_path: Path, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow steps are all kept at first, then fewer and fewer."""
    monkeypatch.setattr("stallmeter.recording.writer.STEP_BYTES_LIMIT", 100_000)
    source = FakeSource()
    monitor = by_hand(tmp_path, fake_time, source)
    sizes = []
    for i, _ in enumerate(monitor.watch(range(20_000))):
        fake_time.sleep(0.01)
        source.samples.append(WorkerBatch(worker=0, time_s=1.0, wall_s=0.01, cpu_s=0.01))
        if i % 100 == 99:
            source.samples.append(HostSample(time_s=i / 100, job_cpus=1.0))
            monitor.run.collector.tick()
            sizes.append(monitor.run.output.recorder.total_bytes)
    monitor.close()
    found = records(monitor)
    for kind in (StepRecord, WorkerBatch):
        assert 200 <= sum(isinstance(x, kind) for x in found) < 5_000
    assert sizes[9] - sizes[0] > 10 * (sizes[-1] - sizes[-10])
    for kind in (HostSample, LedgerRecord):
        assert 200 / 16 <= sum(isinstance(x, kind) for x in found) < 100
    assert len(monitor.window.host.samples) == 200
    assert [x for x in found if isinstance(x, LedgerRecord)][-1].steps == 20_000


def test_bad_calls_name_the_fix(tmp_path: Path) -> None:
    monitor = make(tmp_path)
    with pytest.raises(SettingError, match="data_wait"):
        monitor.span("data_wait")
    with pytest.raises(SettingError, match="stage"):
        monitor.watch([], stage="test")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="loss"):
        monitor.log({"loss": "low"})  # type: ignore[dict-item]
    with pytest.raises(SettingError, match=r"give numbers by name"):
        monitor.log("loss")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="int"):
        monitor.watch(3)  # type: ignore[arg-type]
    monitor.close()


class Batches:
    """The old protocol of iteration, as that of a dataset of torch's that is iterated without a loader."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: int) -> int:
        if at >= len(self):
            raise IndexError(at)
        return at


class Unasked:
    """Must not be iterated before the loop does."""

    def __iter__(self) -> Any:
        raise AssertionError("iterated")


def test_what_python_iterates_by_is_accepted(tmp_path: Path) -> None:
    """Nothing is iterated to find out."""
    monitor = make(tmp_path)
    assert list(monitor.watch(Batches())) == [0, 1, 2]  # type: ignore[arg-type]
    monitor.watch(Unasked())
    monitor.close()
    assert sum(isinstance(record, StepRecord) for record in records(monitor)) == 3


def test_a_forked_child_never_closes_its_parents_run(tmp_path: Path) -> None:
    monitor = make(tmp_path)
    pid = os.fork()
    if pid == 0:
        monitor.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert not any(isinstance(x, Event) for x in records(monitor))
    monitor.close()
    assert sum(isinstance(x, Event) for x in records(monitor)) == 1


PLAIN = textwrap.dedent(
    """
    import os, signal, sys, time
    import stallmeter
    for number, _ in enumerate(stallmeter.watch(range(int(sys.argv[1])))):
        time.sleep(0.01)
    print("done", flush=True)
    """
)


def run_plain(tmp_path: Path, count: int, **options: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "STALLMETER_DIR": str(tmp_path / "rec")}
    return subprocess.Popen(
        [sys.executable, "-c", PLAIN, str(count)],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_the_minimum_is_one_line(tmp_path: Path) -> None:
    out, err = run_plain(tmp_path, 30).communicate(timeout=60)
    assert out == "done\n"
    assert "stallmeter report" in err
    (folder,) = (tmp_path / "rec").iterdir()
    assert sum(isinstance(x, StepRecord) for x, _ in Reader(folder)) == 30


@pytest.mark.long
def test_a_killed_run_leaves_a_readable_recording(tmp_path: Path) -> None:
    process = run_plain(tmp_path, 10_000)
    started = time.monotonic()
    while time.monotonic() - started < 60:
        files = list((tmp_path / "rec").rglob("rank0.*.jsonl"))
        if files and files[0].read_text().count('["ledger"') >= 3:
            break
        time.sleep(0.05)
    process.kill()
    killed_s = time.time()
    process.communicate(timeout=30)
    found = [x for x, _ in Reader(files[0].parent)]
    ledger = [x for x in found if isinstance(x, LedgerRecord)][-1]
    assert killed_s - ledger.time_s < 25  # one interval, and what a busy machine adds
    assert sum(isinstance(x, StepRecord) for x in found) > 20
    report = subprocess.run(
        [sys.executable, "-m", "stallmeter", "report", str(tmp_path / "rec"), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert report.returncode == 0, report.stderr
    assert '"coverage_pct"' in report.stdout


def test_importing_loads_the_standard_library_only() -> None:
    ours = "stallmeter, stallmeter.lightning, stallmeter.lightning.entry_points, stallmeter.records.interfaces"
    names = {}
    for modules in ("sys", f"sys, {ours}"):
        code = f"import {modules}; print(*{{m.partition('.')[0] for m in sys.modules}})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        names[modules] = set(done.stdout.split()) - sys.stdlib_module_names - {"stallmeter"}
    assert names["sys"] == names[f"sys, {ours}"]


def test_public_names() -> None:
    assert stallmeter.Monitor.__name__ == "Monitor"
    with pytest.raises(AttributeError):
        stallmeter.nothing  # noqa: B018


def test_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLMETER_DIR", str(tmp_path))
    assert Options().check_recordings() == tmp_path
    assert Options(directory="x").check_recordings() == Path("x").absolute()
    (tmp_path / "f").touch()
    with pytest.raises(SettingError, match="is a file"):
        Options(directory=tmp_path / "f").check_recordings()


def test_a_program_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording and its reports stand where the run was begun."""
    (tmp_path / "data").mkdir()
    monkeypatch.delenv("STALLMETER_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    with Monitor(trackers=None, hardware=False, loop_looks=False, console=False) as monitor:
        for _ in monitor.watch(range(5)):
            monkeypatch.chdir(tmp_path / "data")
    monitor.finish()
    (folder,) = (tmp_path / "stallmeter").iterdir()
    assert {"report.md", "diagnosis.json"} <= {file.name for file in folder.iterdir()}
    assert list((tmp_path / "data").iterdir()) == []


def test_a_folder_that_is_gone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STALLMETER_DIR", raising=False)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert Options().check_recordings() == Path("stallmeter")
    assert Options(directory=tmp_path).check_recordings() == tmp_path


def test_trackers_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    tracker = ListTracker()
    assert choose_trackers(tracker, (), 0) == (tracker,)
    assert choose_trackers([tracker], (), 0) == (tracker,)
    assert choose_trackers(tracker, (), 1) == ()
    assert choose_trackers(None, (), 0) == ()
    assert choose_trackers("auto", (), 0) == ()
    with pytest.raises(SettingError, match="trackers"):
        choose_trackers("neptun", (), 0)  # type: ignore[arg-type]


def test_a_run_that_is_only_looked_for_may_not_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``MLFLOW_RUN_ID`` may be left by a launcher, with MLflow installed elsewhere: the loop trains on."""
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with Monitor(directory=tmp_path, console=False) as monitor:
        assert list(monitor.watch([1, 2])) == [1, 2]
    assert monitor.run.trackers == ()
    assert [
        r.message
        for r in caplog.records
        if "finding the tracker failed" in r.message and "training goes on" in r.message
    ]


class Two:
    """A tensor of two values."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    __int__ = __float__


def test_what_is_no_number_is_refused(tmp_path: Path, fake_time: FakeTime) -> None:
    monitor = by_hand(tmp_path, fake_time)
    for value in ("1.5", None, Two(), 10**400):
        with pytest.raises(SettingError, match=r"log\(\) takes numbers; 'x' is"):
            monitor.log({"x": value})  # type: ignore[dict-item]
    for step in (2**63, -(2**70), float("nan"), float("inf"), "first", Two()):
        with pytest.raises(SettingError, match="whole number of at most 64 bits"):
            monitor.log({"x": 1.0}, step=step)  # type: ignore[arg-type]
    monitor.log({"x": 1}, step=3.0)  # type: ignore[arg-type]
    monitor.close()
    (found,) = (x for x in records(monitor) if isinstance(x, UserMetrics))
    assert (found.tracker_step, found.metrics) == (3, {"x": 1.0})


def test_what_is_logged_after_the_end_or_too_fast_is_named(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = by_hand(tmp_path, fake_time)
    for step in range(MOST_WAITING + 2):
        monitor.log({"x": 1.0}, step=step)
    monitor.close()
    for _ in range(2):
        monitor.log({"x": 1.0})
    assert sum("the oldest are lost" in record.message for record in caplog.records) == 1
    assert sum("call log() before close()" in record.message for record in caplog.records) == 1


def test_a_disk_that_is_full_for_a_while_loses_nothing(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = make(tmp_path, now=fake_time)
    recorder: Any = monitor.run.output.recorder
    failures: list[int] = []

    class Full:
        def write(self, data: bytes) -> int:
            failures.append(1)
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    file, recorder._file = recorder._file, Full()
    for _ in monitor.watch(range(5)):
        fake_time.sleep(0.5)
    deadline = time.monotonic() + 30
    while len(failures) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder._file = file
    monitor.close()
    assert caplog.text.count("cannot be written") == 1
    assert sum(isinstance(x, StepRecord) for x in records(monitor)) == 5


def test_a_monitor_that_costs_too_much_samples_less_and_says_so(tmp_path: Path, fake_time: FakeTime) -> None:
    """Steps, ledger and sources that overflow go on as before."""
    lazy, eager = CountingSource("lazy"), CountingSource("eager")
    eager.overflows = True
    monitor = by_hand(tmp_path, fake_time, lazy, eager)
    for _ in monitor.watch(range(200)):
        fake_time.sleep(1.0)
        monitor.run.collector.sampler.cpu_s += 0.02
        monitor.run.collector.tick()
    monitor.close()
    assert eager.asked == 201
    assert lazy.asked < 80
    said = [x.name for x in records(monitor) if isinstance(x, Event) and x.name.startswith("sampling every")]
    assert said[:2] == ["sampling every 7200 s", "sampling every 14400 s"]
    assert [x for x in records(monitor) if isinstance(x, LedgerRecord)][-1].steps == 200


class CountingSource:
    """Counts how often it is asked."""

    overflows = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0

    def sample(self, time_s: float) -> tuple[()]:
        self.asked += 1
        return ()

    def close(self) -> None:
        """Holds nothing."""


def test_a_server_that_does_not_answer_stops_no_training(tmp_path, monkeypatch, caplog):
    """The run was asked for: it is recorded, and a line says how to send it later."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with Monitor(trackers="mlflow", directory=tmp_path, console=False, hardware=False) as monitor:
        assert list(monitor.watch([1, 2, 3])) == [1, 2, 3]
    assert sum(isinstance(record, StepRecord) for record, _ in Reader(monitor.folder)) == 3
    assert "mlflow does not answer; the run is recorded, and can be sent later: stallmeter sync" in caplog.text


def test_what_may_be_discarded_asks_a_server_when_it_starts(tmp_path, monkeypatch, caplog):
    """It says the same then, in the same words."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    run = plain_run(
        Options(trackers="mlflow", directory=tmp_path, console=False, hardware=False), may_be_discarded=True
    )
    assert "does not answer" not in caplog.text
    run.start()
    run.close()
    assert "mlflow does not answer; the run is recorded, and can be sent later: stallmeter sync" in caplog.text


def test_a_folder_in_ones_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell has replaced the sign where the program or a service names the folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STALLMETER_DIR", "~/b")
    assert Options(directory="~/a").recordings == tmp_path / "a"
    assert Options().recordings == tmp_path / "b"
    assert Options(directory="~nobody-of-this-name/a").recordings == Path("~nobody-of-this-name/a")
