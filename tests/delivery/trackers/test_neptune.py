"""The Neptune 1.x client: read back from its offline files, sent to a server on loopback, hung, closed and imitated."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallmeter import Monitor
from stallmeter.delivery.choice import check_trackers, choose_trackers
from stallmeter.delivery.delivery import deliver
from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.delivery.trackers.neptune import NeptuneScaleTracker, NeptuneTracker
from stallmeter.errors import MissingPackageError, SettingError, TrackerError, TrackerUnavailableError
from stallmeter.records.interfaces import Tracker

from .neptune_recordings import expected, page, point, record
from .neptune_servers import PROJECT, Neptune1Server

neptune = pytest.importorskip("neptune")
QUIET: dict[str, Any] = {
    **{f"capture_{what}": False for what in ("stdout", "stderr", "hardware_metrics", "traceback")},
    "git_ref": False,
    "source_files": [],
}


@pytest.fixture(scope="module", autouse=True)
def _http_on_loopback() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
        yield


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEPTUNE_API_TOKEN", "NEPTUNE_PROJECT", "NEPTUNE_MODE", "NEPTUNE_CUSTOM_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)  # the client writes to ./.neptune


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Neptune1Server]:
    with Neptune1Server() as found:
        monkeypatch.setenv("NEPTUNE_API_TOKEN", found.token)
        monkeypatch.setenv("NEPTUNE_PROJECT", PROJECT)
        yield found


def offline_run(module: Any = neptune, **options: Any) -> Any:
    return module.init_run(mode="offline", **QUIET, **options)


def operations(run: Any) -> list[dict[str, Any]]:
    """What the client's offline files of a stopped run say."""
    processor = run._op_processor
    folder = processor.data_path if hasattr(processor, "data_path") else processor._operation_storage.data_path  # 1.8
    text = "".join(p.read_text() for p in sorted(Path(folder).glob("data-*.log")))
    decoder, position, found = json.JSONDecoder(), 0, []
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        item, position = decoder.raw_decode(text, position)
        found.append(item["obj"])
    return found


def series(found: list[dict[str, Any]]) -> dict[str, list[tuple[float, float, float]]]:
    points: dict[str, list[tuple[float, float, float]]] = {}
    for operation in found:
        if operation["type"] == "LogFloats":
            path = "/".join(operation["path"])
            points.setdefault(path, []).extend((v["step"], v["value"], v["ts"]) for v in operation["values"])
    return points


def floored(points: dict[str, list[tuple[float, float, float]]]) -> dict[str, list[tuple[int, float, float]]]:
    for steps in ([step for step, _, _ in each] for each in points.values()):
        assert all(a < b for a, b in itertools.pairwise(steps)), "Neptune takes growing steps only"
    return {path: [(int(step), value, time_s) for step, value, time_s in each] for path, each in points.items()}


# -- what arrives -----------------------------------------------------------------------------------------------------


def test_offline_files_hold_what_the_recording_holds(tmp_path: Path) -> None:
    folder = record(tmp_path / "rec")
    run = offline_run()
    tracker = NeptuneTracker(run)
    assert isinstance(tracker, Tracker)
    assert tracker.destination.startswith("neptune offline run in /")
    assert deliver(folder, 0, tracker) == 601
    run.stop()
    assert floored(series(operations(run))) == expected(folder)


def test_the_real_client_delivers_everything_once(server: Neptune1Server, tmp_path: Path) -> None:
    folder = record(tmp_path / "rec")
    run = neptune.init_run(**QUIET)
    tracker = NeptuneTracker(run)
    assert tracker.destination == f"neptune run {PROJECT}/PRO-1"
    deliver(folder, 0, tracker)
    tracker.show(page(tmp_path / "files"))
    tracker.close()
    assert run.get_state() == "started"
    run.stop()
    for path, points in expected(folder).items():
        arrived = server.run.series(path)
        assert [(int(step), value, ms / 1000) for step, value, ms in arrived] == points
    assert set(server.run.tags()) == {"stallmeter", "stallmeter:no-workers"}
    assert server.run.files["stallmeter/report.html|html"] == b"<h1>report</h1>"
    assert set(server.run.files) == {"stallmeter/report.html|html", "stallmeter/steps.csv|csv"}
    values = server.run.values()
    assert values["stallmeter/summary/verdict"] == "Data wait 50 %: set num_workers=2"
    assert values["stallmeter/summary/data_wait_pct"] == 50.0


def test_a_run_of_ours_is_opened_late_synchronous_and_silent(server: Neptune1Server, tmp_path: Path) -> None:
    folder = record(tmp_path / "rec", windows=20)
    tracker = NeptuneTracker.open_run(run_id="my-id")
    assert server.requests == []
    assert tracker.destination == f"neptune://{PROJECT} run my-id"
    deliver(folder, 0, tracker)
    assert [len(server.run.series(path)) for path in expected(folder)] == [20, 20, 20, 20, 1]
    assert not [path for path in server.run.paths("logFloats") if not path.startswith("stallmeter/")]
    measured = [o["path"] for o in server.run.operations if o["path"].startswith("monitoring/")]
    always = ("hostname", "pid", "tid")  # 1.8 writes these whatever it is told
    assert not [path for path in measured if path.rpartition("/")[2] not in always]
    run = tracker._run
    tracker.close()
    assert run.get_state() == "stopped"


def test_sending_again_after_a_failure_doubles_nothing(tmp_path: Path) -> None:
    run = offline_run()

    class Flaky:
        """The third series fails once."""

        failures = 1

        def __getitem__(self, path: str) -> Any:
            if path.endswith("/c") and self.failures:
                self.failures -= 1
                raise ConnectionError("reset")
            return run[path]

    tracker = NeptuneTracker(Flaky())
    points = [point(key, float(step), step // 2) for step in range(4) for key in "abc"]
    with pytest.raises(TrackerUnavailableError, match="reset"):
        tracker.send(points)
    tracker.send([*points, point("a", 9.0, 9)])
    run.stop()
    found = series(operations(run))
    assert [value for _, value, _ in found["stallmeter/a"]] == [0.0, 1.0, 2.0, 3.0, 9.0]
    assert [value for _, value, _ in found["stallmeter/c"]] == [0.0, 1.0, 2.0, 3.0]


def test_a_path_that_is_something_else_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = offline_run()
    run["stallmeter/user/lr"] = "a text"
    tracker = NeptuneTracker(run)
    tracker.send([point("user/lr", 1.0, 1), point("data_wait_ms", 2.0, 1)])
    tracker.send([point("user/lr", 1.0, 2), point("data_wait_ms", 2.0, 0)])
    run.stop()
    assert series(operations(run)) == {"stallmeter/data_wait_ms": [(1, 2.0, 1_700_000_001.0)]}
    assert sum("is left out there" in message for message in caplog.messages) == 2


def test_a_run_that_takes_nothing_is_given_up() -> None:
    run = offline_run()
    run["stallmeter"] = "a text"
    with pytest.raises(TrackerError, match="takes no series below 'stallmeter/'"):
        NeptuneTracker(run).send([point("a", 1.0, 1), point("b", 1.0, 1)])
    run.stop()


# -- the page ---------------------------------------------------------------------------------------------------------


def test_only_what_changed_is_written_and_tags_are_added_at_the_end(tmp_path: Path) -> None:
    run = offline_run(tags=["mine"])
    run["sys/tags"].add("also mine")
    tracker = NeptuneTracker(run, base_namespace="/perf/input/")
    for _ in range(2):
        tracker.show(page(tmp_path / "files", final=False))
    before = len(operations_so_far(run))
    tracker.show(page(tmp_path / "files"))
    run.stop()
    found = operations(run)
    assert before == len([o for o in found if "summary" in o["path"]]) - 1  # the note comes with the final page
    assert not [o for o in found if o["type"] in ("RemoveStrings", "ClearStringSet")]
    tags = [v for o in found if o["type"] == "AddStrings" and o["path"] == ["sys", "tags"] for v in o["values"]]
    assert {"mine", "also mine", "stallmeter", "stallmeter:no-workers"} <= set(tags)
    uploads = {"/".join(o["path"]): Path(o["file_path"]).name for o in found if o["type"] == "UploadFile"}
    assert uploads == {"perf/input/report.html": "report.html", "perf/input/steps.csv": "steps.csv"}


def test_a_field_that_a_later_page_lacks_is_deleted(tmp_path: Path) -> None:
    """Those of ours only; one that somebody has deleted meanwhile is no error."""
    for namespace in (None, "training"):
        run = offline_run()
        run["stallmeter/summary/mine"] = "x"
        home = run if namespace is None else run[namespace]
        tracker = NeptuneTracker(home)
        early = page(tmp_path / "files", final=False)
        tracker.show(early)
        home.pop("stallmeter/summary/num_workers")
        for _ in range(2):
            tracker.show(dataclasses.replace(early, tags={"stallmeter.data_wait_pct": "1.0"}, final=True))
        tracker.show(early)
        run.stop()
        deleted = [o["path"][-1] for o in operations(run) if o["type"] == "DeleteAttribute"]
        assert deleted == ["num_workers", "primary"]
        assert [o["value"] for o in operations(run) if o["path"][-1] == "primary" and "value" in o] == 2 * [
            "no-workers"
        ]


def operations_so_far(run: Any) -> list[dict[str, Any]]:
    run._op_processor.flush()
    return [o for o in operations(run) if "summary" in o["path"]]


def test_a_namespace_of_a_run_is_taken(tmp_path: Path) -> None:
    run = offline_run()
    tracker = NeptuneTracker(run["training"])
    tracker.send([point("a", 1.0, 1)])
    tracker.show(page(tmp_path / "files"))
    run.stop()
    found = operations(run)
    assert list(series(found)) == ["training/stallmeter/a"]
    assert [o["path"] for o in found if o["type"] == "AddStrings"] == [["sys", "tags"]]


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_stopped_run_is_an_error_for_good() -> None:
    run = offline_run()
    run.stop()
    with pytest.raises(TrackerError, match="Inactive") as caught:
        NeptuneTracker(run).send([point("a", 1.0, 1)])
    assert "\x1b" not in str(caught.value)


def test_a_server_that_refuses_the_token(server: Neptune1Server) -> None:
    server.refuses_with = 401
    tracker = NeptuneTracker.open_run()
    with pytest.raises(TrackerError) as caught:
        tracker.send([point("a", 1.0, 1)])
    assert server.token not in str(caught.value)


def test_a_token_without_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_API_TOKEN", "bad")
    tracker = NeptuneTracker.open_run(PROJECT)
    with pytest.raises(TrackerError, match="NeptuneInvalidApiToken"):
        tracker.send([point("a", 1.0, 1)])
    tracker.close()


def test_a_server_without_a_token_is_refused() -> None:
    with pytest.raises(TrackerError, match="NEPTUNE_API_TOKEN"):
        NeptuneTracker.open_run(PROJECT, offline=False)


def test_a_missing_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"stallmeter\[neptune\]"):
        NeptuneTracker.open_run()


class HungRun:
    """Takes a call and does not answer before it is released."""

    def __init__(self) -> None:
        self.asked, self.release = threading.Event(), threading.Event()
        self.stopped = False

    def __getitem__(self, path: str) -> HungRun:
        return self

    def __setitem__(self, path: str, value: object) -> None:
        self.extend()

    def extend(self, *args: object, **kwargs: object) -> None:
        self.asked.set()
        self.release.wait(60)

    def sync(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def stop(self, **kwargs: object) -> None:
        self.stopped = True


def loop(folder: Path, tracker: Any, during: Callable[[], None], **options: Any) -> tuple[Monitor, int, float]:
    """Two hundred steps, ``during`` after the first hundred. Return the monitor, its steps, and the time to close."""
    monitor = Monitor(
        directory=folder, trackers=tracker, console=False, hardware=False, workers=False, interval_s=0.05, **options
    )
    for number, _ in enumerate(monitor.watch([[0] * 4] * 200)):
        if number == 100:
            during()
    began = time.monotonic()
    monitor.close()
    return monitor, monitor.run.clock.index, time.monotonic() - began


def test_a_hung_client_delays_no_step_and_the_end_by_its_budget(tmp_path: Path) -> None:
    run = HungRun()
    try:
        monitor, steps, close_s = loop(tmp_path / "rec", run, lambda: assert_soon(run.asked.is_set), close_budget_s=1.0)
        assert steps == 200
        assert close_s < 8.0
        (left,) = monitor.undelivered
        assert left.points > 0
        assert not run.stopped
    finally:
        run.release.set()
        let_go()


def test_a_server_that_hangs_delays_nothing_either(server: Neptune1Server, tmp_path: Path) -> None:
    """An asynchronous run of the user's: its client keeps what it was given and delivers when the server is back."""
    run = neptune.init_run(**QUIET)
    server.hangs.set()
    try:
        monitor, steps, close_s = loop(tmp_path / "rec", run, lambda: None, close_budget_s=2.0)
        assert steps == 200
        assert close_s < 9.0
        assert monitor.undelivered == ()
    finally:
        server.hangs.clear()
    run.stop()
    wanted = expected(monitor.folder) if monitor.folder else {}
    assert wanted
    assert {path: len(server.run.series(path)) for path in wanted} == {path: len(each) for path, each in wanted.items()}


def test_a_hung_server_of_a_run_of_ours(server: Neptune1Server, tmp_path: Path) -> None:
    server.hangs.set()
    try:
        monitor, steps, close_s = loop(
            tmp_path / "rec", "neptune", lambda: assert_soon(lambda: bool(server.requests)), close_budget_s=1.0
        )
        assert steps == 200
        assert close_s < 8.0
        (left,) = monitor.undelivered
        assert left.destination.startswith(f"neptune://{PROJECT} run stallmeter-")
    finally:
        server.hangs.clear()
        let_go()


def let_go() -> None:
    """Wait for the forwarder's thread that was left behind in a client."""
    for thread in threading.enumerate():
        if thread.name == "stallmeter-forwarder-neptune":
            thread.join(30)


def assert_soon(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- which run --------------------------------------------------------------------------------------------------------


def test_a_run_given_is_chosen_and_never_stopped(tmp_path: Path) -> None:
    run = offline_run()
    (tracker,) = choose_trackers(run, (), 0)
    assert isinstance(tracker, NeptuneTracker)
    assert choose_trackers(run, (), 1) == ()
    both = choose_trackers([run, tracker], (), 0)
    assert [type(one) for one in both] == [NeptuneTracker, NeptuneTracker]
    tracker.close()
    assert run.get_state() == "started"
    run.stop()


@pytest.mark.parametrize("wrong", [3, "wandb", object(), {"a": 1}, [None], ["wandb"], neptune])
def test_other_things_are_refused(wrong: Any) -> None:
    with pytest.raises(SettingError, match="'neptune', 'neptune-scale'"):
        check_trackers(wrong)


def test_a_name_in_a_list_is_refused_with_the_fix() -> None:
    with pytest.raises(SettingError, match="a name is given alone: trackers='neptune'"):
        check_trackers(["neptune"])


def test_by_name_a_run_is_opened_offline_unless_the_environment_names_a_server(
    server: Neptune1Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (online,) = choose_trackers("neptune", (), 0)
    assert online.destination.startswith(f"neptune://{PROJECT} run ")
    monkeypatch.delenv("NEPTUNE_API_TOKEN")
    (offline,) = choose_trackers("neptune", (), 0)
    assert str(Path.cwd() / ".neptune" / "offline") in offline.destination
    run = offline._run  # type: ignore[attr-defined]
    offline.close()
    assert run.get_state() == "stopped"
    assert server.requests == []


class NeptuneLogger:
    """As Lightning had it until 2.6.1."""

    def __init__(self, run: Any, prefix: str = "training") -> None:
        self._run_instance, self._prefix = run, prefix

    @property
    def experiment(self) -> Any:
        return self._run_instance

    run = experiment

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        raise AssertionError("metrics go straight to the run")


@pytest.mark.parametrize("asked", ["auto", "neptune"])
def test_the_run_of_a_neptune_logger_is_found(asked: Any) -> None:
    class Mine(NeptuneLogger):
        pass

    run = offline_run()
    (tracker,) = choose_trackers(asked, [Mine(run)], 0)
    assert isinstance(tracker, NeptuneTracker)
    tracker.send([point("a", 1.0, 1), point("job_cpus", 1.0, 1, "hardware")])
    tracker.close()
    assert run.get_state() == "started"
    run.stop()
    assert list(series(operations(run))) == ["training/stallmeter/a", "training/stallmeter/hardware/job_cpus"]


def test_a_neptune_logger_on_another_rank_is_silent() -> None:
    class DummyExperiment:
        def __getitem__(self, index: int) -> object:
            return self

    assert NeptuneTracker.from_logger(NeptuneLogger(DummyExperiment())) is None
    assert NeptuneTracker.from_logger(object()) is None


def test_the_other_trackers_do_not_take_it() -> None:
    run = offline_run()
    assert not NeptuneScaleTracker.accepts(run)
    assert MlflowTracker.from_logger(NeptuneLogger(run)) is None
    run.stop()


def test_a_successor_with_the_same_interface(tmp_path: Path) -> None:
    minfx = pytest.importorskip("minfx.neptune_v2")
    folder = record(tmp_path / "rec", windows=30)
    run = offline_run(minfx)
    (tracker,) = choose_trackers(run, (), 0)
    assert isinstance(tracker, NeptuneTracker)
    assert tracker.destination.startswith("minfx offline run in ")
    deliver(folder, 0, tracker)
    tracker.show(page(tmp_path / "files"))
    tracker.close()
    run.stop()
    found = operations(run)
    assert floored(series(found)) == expected(folder)
    assert {o["type"] for o in found} >= {"AssignString", "AddStrings", "UploadFile"}
    with pytest.raises(TrackerError, match="Inactive"):
        tracker.send([point("a", 1.0, 1)])


def test_a_run_that_takes_no_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Plain:
        """The least that a successor may have."""

        def __init__(self) -> None:
            self.values: dict[str, Any] = {}

        def __getitem__(self, path: str) -> Any:
            return Field(self.values.setdefault(path, []))

        def __setitem__(self, path: str, value: Any) -> None:
            self.values[path] = value

        def sync(self) -> None: ...

        def wait(self) -> None: ...

    class Field:
        def __init__(self, values: list[Any]) -> None:
            self.values = values

        def extend(self, values: list[float], *, steps: list[float], timestamps: list[float]) -> None:
            self.values.extend(zip(steps, values, timestamps, strict=True))

        def add(self, tags: list[str]) -> None:
            self.values.extend(tags)

        def upload(self, path: str) -> None:
            raise NotImplementedError

    run = Plain()
    (tracker,) = choose_trackers(run, (), 0)
    tracker.send([point("a", 1.0, 1)])
    tracker.show(page(tmp_path / "files"))
    assert run.values["stallmeter/a"] == [(1, 1.0, 1_700_000_001.0)]
    assert run.values["sys/tags"] == ["stallmeter", "stallmeter:no-workers"]
    assert sum("takes no files" in message for message in caplog.messages) == 1
