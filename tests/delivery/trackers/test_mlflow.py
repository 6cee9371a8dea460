"""The MLflow tracker against a real database, and against servers that answer wrongly or not at all."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.delivery.trackers.mlflow.note import BEGIN, END, NOTE_TAG, SECTION_BYTES, merge_note
from stallmeter.delivery.trackers.mlflow.tracker import VERDICT_TAGS
from stallmeter.errors import MissingPackageError, TrackerError, TrackerUnavailableError
from stallmeter.records.interfaces import Page, Point, Tracker
from stallmeter.report import markdown

from ...ports import free_port
from ...servers import FaultServer

mlflow = pytest.importorskip("mlflow")

NOW = 1_700_000_000.123


@pytest.fixture
def client(sqlite_uri: str) -> Any:
    return mlflow.MlflowClient(sqlite_uri)


@pytest.fixture
def run_id(client: Any) -> str:
    experiment = client.get_experiment_by_name("tests")
    return str(client.create_run(experiment.experiment_id).info.run_id)


@pytest.fixture
def tracker(sqlite_uri: str, run_id: str) -> MlflowTracker:
    return MlflowTracker(sqlite_uri, run_id)


def point(key: str = "data_wait_ms", value: float = 1.5, step: int = 3, group: str = "steps") -> Point:
    return Point(group, key, value, step, NOW + step)


def page(note: str = "**Too few workers.** Set it to 6.\n\nMore.", **changes: Any) -> Page:
    content: dict[str, Any] = {"tags": {"primary": "x"}, "headline": note, "note": note, "files": {}, "final": False}
    return Page(**{**content, **changes})


def history(client: Any, run_id: str, key: str) -> list[tuple[int, int, float]]:
    return [(m.step, m.timestamp, m.value) for m in client.get_metric_history(run_id, key)]


# ---------------------------------------------------------------------------------------------------------- points


def test_it_is_a_tracker(tracker: MlflowTracker) -> None:
    """The seam of the forwarder fits."""
    assert isinstance(tracker, Tracker)


def test_points_keep_their_key_step_value_and_millisecond(client: Any, tracker: MlflowTracker, run_id: str) -> None:
    """Steps go below stallmeter/, hardware below system/stallmeter/, each under its original time."""
    tracker.send([point(step=3), point(step=4, value=2.5), point("gpu0_util_pct", 31.0, 7, "hardware")])
    assert history(client, run_id, "stallmeter/data_wait_ms") == [
        (3, 1_700_000_003_123, 1.5),
        (4, 1_700_000_004_123, 2.5),
    ]
    assert history(client, run_id, "system/stallmeter/gpu0_util_pct") == [(7, 1_700_000_007_123, 31.0)]


def test_a_second_sending_leaves_one_copy(client: Any, tracker: MlflowTracker, run_id: str) -> None:
    """A replay after an outage adds nothing."""
    points = [point(step=step) for step in range(20)]
    tracker.send(points)
    tracker.send(points)
    MlflowTracker(tracker.tracking_uri, run_id).send(points[5:])
    assert len(history(client, run_id, "stallmeter/data_wait_ms")) == 20


def test_a_large_batch_of_which_a_part_has_arrived_is_completed(
    client: Any, tracker: MlflowTracker, run_id: str
) -> None:
    """Also with MLflow 2.10, which rejects such a batch of more than 100 points."""
    points = [point(f"m{i % 25}", step=i // 25) for i in range(500)]
    tracker.send(points[:300])
    tracker.send(points)
    assert [len(history(client, run_id, f"stallmeter/m{i}")) for i in range(25)] == [20] * 25


def test_a_bad_point_does_not_take_its_batch_with_it(
    client: Any, tracker: MlflowTracker, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow rejects a whole batch for one key; the others are delivered, with one warning that names the key."""
    bad = [point("50%", step=1), point("50%", step=2)]
    tracker.send([*[point(step=step) for step in range(40)], *bad, *[point("b", step=step) for step in range(40)]])
    assert len(history(client, run_id, "stallmeter/data_wait_ms")) == 40
    assert len(history(client, run_id, "stallmeter/b")) == 40
    [warning] = [r.getMessage() for r in caplog.records if r.name == "stallmeter"]
    assert "'stallmeter/50%'" in warning


@pytest.mark.parametrize("alone", [False, True])
def test_a_step_that_no_database_holds_does_not_keep_the_others_back(
    alone: bool, client: Any, tracker: MlflowTracker, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow fails inside for it, which is else a server in trouble."""
    good = [] if alone else [point(step=step) for step in range(40)]
    tracker.send([*good, point("far", step=2**70), *good])
    tracker.send([point("later")])
    assert len(history(client, run_id, "stallmeter/data_wait_ms")) == len(good)
    assert len(history(client, run_id, "stallmeter/later")) == 1
    [warning] = [r.getMessage() for r in caplog.records if r.name == "stallmeter"]
    assert "'stallmeter/far'" in warning
    assert str(2**70) in warning


@pytest.fixture
def failing() -> Iterator[set[str]]:
    """Keys of points at which MLflow fails inside when its database is to hold them; ``*`` is all of them.

    No word of the letters a to f: the ids of runs may hold it, and all of their points would fail.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    keys: set[str] = set()

    def fail(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        hit = "*" in keys or any(key in repr(parameters) for key in keys)
        if hit and statement.startswith("INSERT INTO metrics"):
            raise OverflowError("too large")

    event.listen(Engine, "before_cursor_execute", fail)
    yield keys
    event.remove(Engine, "before_cursor_execute", fail)


def test_a_point_at_which_mlflow_fails_is_left_out_where_it_takes_others(
    failing: set[str], client: Any, tracker: MlflowTracker, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing.add("wrong")
    good = [point(step=step) for step in range(40)]
    tracker.send([*good, point("wrong"), *[point("b", step=step) for step in range(40)]])
    assert len(history(client, run_id, "stallmeter/data_wait_ms")) == 40
    assert len(history(client, run_id, "stallmeter/b")) == 40
    [warning] = [r.getMessage() for r in caplog.records if r.name == "stallmeter"]
    assert "'stallmeter/wrong'" in warning


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("count", [1, 5, 300])
def test_an_mlflow_that_fails_at_every_point_is_an_outage(
    before: int,
    count: int,
    failing: set[str],
    client: Any,
    tracker: MlflowTracker,
    run_id: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It answers when it is asked for the run, and no point is dropped for it."""
    points = [point(step=step) for step in range(count)]
    tracker.send([point("a")] * before)
    failing.add("*")
    for _ in range(2):
        with pytest.raises(TrackerUnavailableError, match="too large"):
            tracker.send(points)
    failing.clear()
    tracker.send(points)
    assert len(history(client, run_id, "stallmeter/data_wait_ms")) == count
    assert not [r for r in caplog.records if r.name == "stallmeter"]


def test_a_deleted_run_is_a_refusal_not_a_bad_point(client: Any, tracker: MlflowTracker, run_id: str) -> None:
    """MLflow answers with the code of a bad point; no point may be dropped for it."""
    client.delete_run(run_id)
    with pytest.raises(TrackerError, match="deleted"):
        tracker.send([point()])
    with pytest.raises(TrackerError, match="deleted"):
        tracker.show(page())
    client.restore_run(run_id)
    tracker.send([point()])
    assert len(history(client, run_id, "stallmeter/data_wait_ms")) == 1


def test_an_unknown_run_is_a_refusal(sqlite_uri: str) -> None:
    """Trying again cannot help."""
    with pytest.raises(TrackerError, match="not found"):
        MlflowTracker(sqlite_uri, "0" * 32).send([point()])


# ------------------------------------------------------------------------------------------------------------ page


def test_a_page_sets_tags_and_note(client: Any, tracker: MlflowTracker, run_id: str) -> None:
    """Tags are searchable below stallmeter., and the note begins with the headline."""
    tracker.show(page(tags={"primary": "too-few-workers", "stallmeter.num_workers": "2"}))
    tags = client.get_run(run_id).data.tags
    assert tags["stallmeter.primary"] == "too-few-workers"
    assert tags["stallmeter.num_workers"] == "2"
    assert tags[NOTE_TAG] == f"{BEGIN}\n\n**Too few workers.** Set it to 6.\n\nMore.\n\n{END}"
    found = client.search_runs(
        [client.get_run(run_id).info.experiment_id], "tags.`stallmeter.primary` = 'too-few-workers'"
    )
    assert run_id in {run.info.run_id for run in found}


def test_a_tag_that_a_later_verdict_no_longer_says_is_taken_away(
    client: Any, tracker: MlflowTracker, run_id: str
) -> None:
    """Ours only, by this program or the one that syncs later; tags of a probe's page and of the user stay."""
    client.set_tag(run_id, "stallmeter.mine", "kept")
    early = {"primary": "x", "num_workers": "2", "num_workers_advised": "4", "predicted_speedup": "1.31"}
    tracker.show(page(tags={**early, "primary_ranks": "0,1"}))
    tracker.show(page(tags={"probe.headspace_pct": "3.0"}, note=""))
    assert client.get_run(run_id).data.tags["stallmeter.predicted_speedup"] == "1.31"
    delete = tracker._store.delete_tag

    def late(run: str, key: str) -> None:
        if key == "stallmeter.primary_ranks":
            client.delete_tag(run, key)
        delete(run, key)

    tracker._store.delete_tag = late  # type: ignore[method-assign]
    tracker.show(page(tags={"primary": "y", "num_workers": "2"}, final=True))
    tags = {k: v for k, v in client.get_run(run_id).data.tags.items() if k.startswith("stallmeter.")}
    assert tags == {
        "stallmeter.primary": "y",
        "stallmeter.num_workers": "2",
        "stallmeter.mine": "kept",
        "stallmeter.probe.headspace_pct": "3.0",
    }


def test_the_tags_of_a_verdict_are_known() -> None:
    """A new one has to be taken away, too, when a later verdict no longer says it."""
    said = set(re.findall(r'"(stallmeter\.\w+)"', Path(markdown.__file__).read_text(encoding="utf-8")))
    assert said == VERDICT_TAGS


def test_the_users_text_stays_and_his_edits_too(client: Any, tracker: MlflowTracker, run_id: str) -> None:
    """Only our section changes, wherever the user has moved it."""
    client.set_tag(run_id, NOTE_TAG, "# My run\n\nBaseline.")
    tracker.show(page("first verdict"))
    note = client.get_run(run_id).data.tags[NOTE_TAG]
    assert note == f"# My run\n\nBaseline.\n\n{BEGIN}\n\nfirst verdict\n\n{END}"
    client.set_tag(run_id, NOTE_TAG, note.replace("Baseline.", "Better baseline.") + "\n\nAnd a last word.")
    tracker.show(page("second verdict"))
    assert client.get_run(run_id).data.tags[NOTE_TAG] == (
        f"# My run\n\nBetter baseline.\n\n{BEGIN}\n\nsecond verdict\n\n{END}\n\nAnd a last word."
    )


def test_what_the_user_does_while_we_write_stays(
    client: Any, tracker: MlflowTracker, run_id: str, tmp_path: Path
) -> None:
    """The description and the tags that he edits while our files are being uploaded, and his tags of any name."""
    report = tmp_path / "report.md"
    report.write_text("x")
    upload, log = tracker._store.upload, tracker._store.log

    def edit(text: str) -> None:
        client.set_tag(run_id, NOTE_TAG, text + client.get_run(run_id).data.tags[NOTE_TAG])
        client.set_tag(run_id, "mine", text)

    def slow_upload(*args: Any) -> None:
        edit("During the upload. ")
        upload(*args)

    def slow_log(run: str, metrics: Any, tags: Any) -> None:
        if NOTE_TAG not in tags:
            edit("During the tags. ")
        log(run, metrics, tags)

    tracker._store.upload, tracker._store.log = slow_upload, slow_log  # type: ignore[method-assign]
    client.set_tag(run_id, "stallmeter.mine", "kept")
    tracker.show(page(files={"report.md": report}, final=True))
    tags = client.get_run(run_id).data.tags
    assert tags[NOTE_TAG].startswith(f"During the upload. During the tags. {BEGIN}")
    assert "Full report" in tags[NOTE_TAG]
    assert (tags["mine"], tags["stallmeter.mine"]) == ("During the upload. ", "kept")
    assert tags["stallmeter.primary"] == "x"


def test_files_are_uploaded_on_the_final_page_only(
    client: Any, tracker: MlflowTracker, run_id: str, tmp_path: Path
) -> None:
    """They stand below stallmeter/ under the names of the page, linked and shown in the note."""
    report, chart = tmp_path / "r-17.html", tmp_path / "phases.png"
    report.write_text("<p>report")
    chart.write_bytes(b"png")
    files = {"report.html": report, "phases.png": chart, "gone.csv": tmp_path / "gone.csv"}
    tracker.show(page(files=files))
    assert client.list_artifacts(run_id) == []
    tracker.show(page(files=files, final=True))
    assert {f.path for f in client.list_artifacts(run_id, "stallmeter")} == {
        "stallmeter/report.html",
        "stallmeter/phases.png",
    }
    downloaded = client.download_artifacts(run_id, "stallmeter/report.html", str(tmp_path))
    assert Path(downloaded).read_text() == "<p>report"
    run = client.get_run(run_id)
    lines = run.data.tags[NOTE_TAG].splitlines()
    link = f"[Full report](#/experiments/{run.info.experiment_id}/runs/{run_id}/artifacts/stallmeter/report.html)"
    assert lines[2] == f"**Too few workers.** Set it to 6. {link}"
    assert f"![phases](get-artifact?path=stallmeter/phases.png&run_uuid={run_id})" in lines
    tracker.show(page(files={"report.md": report}, final=True))
    lines = client.get_run(run_id).data.tags[NOTE_TAG].splitlines()
    assert lines[2] == f"**Too few workers.** Set it to 6. {link.replace('report.html', 'report.md')}"


def test_an_upload_that_does_not_end_gives_up_after_its_time(tracker: MlflowTracker, tmp_path: Path) -> None:
    """The verdict is there before the files; the upload is not begun a second time while it runs."""
    report = tmp_path / "report.html"
    report.write_text("x")
    tracker._upload_s = 0.05
    release, begun = threading.Event(), []

    def upload(*args: object) -> None:
        begun.append(args)
        release.wait(60)

    tracker._store.upload = upload  # type: ignore[method-assign]
    final = page(files={"report.html": report}, final=True)
    for _ in range(2):
        with pytest.raises(TrackerUnavailableError, match="still being uploaded"):
            tracker.show(final)
    release.set()
    tracker._upload_s = 30.0
    tracker.show(final)
    assert len(begun) == 1
    assert "Full report" in tracker._store.run(tracker.run_id).tags[NOTE_TAG]


def test_a_failed_upload_is_told_as_what_it_is(tracker: MlflowTracker, tmp_path: Path) -> None:
    """A file that the store refuses raises in the forwarder's thread, and is tried anew the next time."""
    report = tmp_path / "report.html"
    report.write_text("x")
    outcomes: list[Exception | None] = [TrackerUnavailableError("disk full"), ZeroDivisionError("bug"), None]

    def upload(*args: object) -> None:
        if error := outcomes.pop(0):
            raise error

    tracker._store.upload = upload  # type: ignore[method-assign]
    final = page(files={"report.html": report}, final=True)
    with pytest.raises(TrackerUnavailableError, match="disk full"):
        tracker.show(final)
    with pytest.raises(ZeroDivisionError):
        tracker.show(final)
    tracker.show(final)
    assert outcomes == []


# ------------------------------------------------------------------------------------------------------------ note


def test_a_note_without_user_text_is_our_section() -> None:
    """Nothing stands before it."""
    assert merge_note("", "verdict\n") == f"{BEGIN}\n\nverdict\n\n{END}"


def test_our_section_leaves_room_for_the_user() -> None:
    """The whole stays within MLflow's limit, ours within 4 kB, cut between lines."""
    mine = "x" * 7000
    note = merge_note(mine, "headline\n" + "line\n" * 2000)
    assert note.startswith(mine)
    assert len(note) <= 8000
    assert "headline\nline\n" in note
    assert "…" in note
    assert merge_note("x" * 7990, "headline") == "x" * 7990


def test_a_cut_code_block_is_closed() -> None:
    """Otherwise the rest of the page would be code."""
    note = merge_note("", "headline\n```python\n" + "line\n" * 2000 + "```\n")
    assert note.count("```") == 2
    assert len(note.encode()) <= SECTION_BYTES + len(f"{BEGIN}\n\n\n\n{END}")


@given(
    before=st.text(max_size=300),
    after=st.text(max_size=300),
    sections=st.lists(st.text("ab c\n|`*é…", min_size=1, max_size=6000).filter(str.strip), min_size=1, max_size=3),
    orphan=st.sampled_from(["", f"{BEGIN}\nmine", f"{END}\nmine"]),
)
def test_whatever_stands_in_a_note_stays(before: str, after: str, sections: list[str], orphan: str) -> None:
    """For any text of the user, even with a stray marker, many updates leave one section and his text as it was."""
    note = merge_note(before + orphan, sections[0]) + after
    for section in sections:
        note = merge_note(note, section)
    assert len(note) <= 8000
    assert note.startswith((before + orphan).rstrip())
    assert note.endswith(after)
    if not orphan:
        assert note.count(BEGIN) == note.count(END) == 1


# ------------------------------------------------------------------------------------------------------- which run


@pytest.mark.parametrize("namespace", ["lightning.pytorch", "pytorch_lightning"])
def test_the_run_of_a_lightning_logger_is_found(namespace: str, sqlite_uri: str, client: Any) -> None:
    """In both namespaces, subclasses too; other loggers are not mistaken for it."""
    loggers = pytest.importorskip(f"{namespace}.loggers")

    class MyLogger(loggers.MLFlowLogger):  # type: ignore[misc, name-defined]
        pass

    logger = MyLogger(experiment_name="tests", tracking_uri=sqlite_uri)
    tracker = MlflowTracker.from_logger(logger)
    assert tracker is not None
    tracker.send([point()])
    assert history(client, logger.run_id, "stallmeter/data_wait_ms") == [(3, 1_700_000_003_123, 1.5)]
    tracker.close()
    assert client.get_run(logger.run_id).info.status == "RUNNING"
    assert MlflowTracker.from_logger(loggers.CSVLogger("/nowhere")) is None


@pytest.mark.parametrize("run", [None, "0123"])
def test_a_rank_that_logs_nothing_has_no_tracker(
    run: str | None, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above rank 0 Lightning's loggers are dummies, even when the run is known."""
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    logger = loggers.MLFlowLogger(tracking_uri=sqlite_uri, run_id=run)
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    assert MlflowTracker.from_logger(logger) is None


def test_the_active_run_is_found(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in the thread that started it, and only if mlflow was imported by somebody."""
    assert MlflowTracker.from_active_run() is None
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(sqlite_uri)
    try:
        with mlflow.start_run() as run:
            tracker = MlflowTracker.from_active_run()
            assert tracker is not None
            assert (tracker.tracking_uri, tracker.run_id) == (sqlite_uri, run.info.run_id)
            tracker.send([point()])
            tracker.close()
            assert mlflow.active_run().info.run_id == run.info.run_id
            with monkeypatch.context() as patch:
                patch.delitem(sys.modules, "mlflow")
                assert MlflowTracker.from_active_run() is None
    finally:
        mlflow.set_tracking_uri(before)


def test_the_run_of_the_environment_is_found(sqlite_uri: str, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLFLOW_RUN_ID with MLFLOW_TRACKING_URI, as launchers set them."""
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    assert MlflowTracker.from_environment() is None
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(sqlite_uri)
    try:
        tracker = MlflowTracker.from_environment()
    finally:
        mlflow.set_tracking_uri(before)
    assert tracker is not None
    assert (tracker.tracking_uri, tracker.run_id) == (sqlite_uri, run_id)


def test_a_run_that_we_start_is_ended_by_us(sqlite_uri: str, client: Any) -> None:
    """With an end time; the experiment is made when missing and used again when there."""
    first = MlflowTracker.create_run(sqlite_uri, "made by us", run_name="one")
    second = MlflowTracker.create_run(sqlite_uri, "made by us")
    first.send([point()])
    second.end_status = "FAILED"
    for tracker in (first, second):
        assert client.get_run(tracker.run_id).info.status == "RUNNING"
        tracker.close()
        tracker.close()
    one, two = (client.get_run(t.run_id) for t in (first, second))
    assert (one.info.status, two.info.status) == ("FINISHED", "FAILED")
    assert one.info.end_time >= one.info.start_time
    assert one.info.run_name == "one"
    assert one.info.experiment_id == two.info.experiment_id
    assert first.destination.endswith(f"run {first.run_id}")


def test_an_experiment_that_we_make_shows_its_curves(sqlite_uri: str, client: Any) -> None:
    """MLflow 3 shows one without a kind as it thinks fit; one that somebody else made is theirs."""
    client.create_experiment("theirs", tags={"team": "vision"})
    tags = {}
    for name in ("shown by us", "theirs"):
        MlflowTracker.create_run(sqlite_uri, name).close()
        tags[name] = client.get_experiment_by_name(name).tags
    assert tags["shown by us"] == tags["shown by us"] | {"mlflow.experimentKind": "custom_model_development"}
    assert tags["theirs"] == tags["theirs"] | {"team": "vision"}
    assert "mlflow.experimentKind" not in tags["theirs"]


def test_a_deleted_experiment_is_named(sqlite_uri: str, client: Any) -> None:
    """MLflow's own answer would be a riddle."""
    client.delete_experiment(client.create_experiment("deleted"))
    with pytest.raises(TrackerError, match="'deleted' has been deleted"):
        MlflowTracker.create_run(sqlite_uri, "deleted")


def test_nothing_of_the_process_is_changed(sqlite_uri: str, tmp_path: Path) -> None:
    """No environment variable, no global tracking URI, no active run."""
    before = (dict(os.environ), mlflow.get_tracking_uri(), mlflow.active_run())
    report = tmp_path / "report.html"
    report.write_text("x")
    tracker = MlflowTracker.create_run(sqlite_uri, "tests")
    tracker.send([point()])
    tracker.show(page(files={"report.html": report}, final=True))
    tracker.close()
    assert (dict(os.environ), mlflow.get_tracking_uri(), mlflow.active_run()) == before


# ------------------------------------------------------------------------------------------- what can go wrong early


def test_a_folder_as_store_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow 3.14 refuses it: say what to pass instead."""
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    if tuple(int(part) for part in mlflow.__version__.split(".")[:2]) < (3, 14):
        pytest.skip("this MLflow takes a folder")
    for uri in (tmp_path.as_uri(), str(tmp_path)):
        with pytest.raises(TrackerError, match=r'tracking_uri="sqlite:///mlflow\.db"'):
            MlflowTracker(uri, "0" * 32)


def test_a_missing_package_is_named(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'stallmeter\[mlflow\]'"):
        MlflowTracker(sqlite_uri, "0" * 32)


def test_importing_the_module_does_not_import_mlflow() -> None:
    """It takes 1.4 s and 165 MB, which only those pay who use it."""
    code = "import sys, stallmeter.delivery.trackers.mlflow; print('mlflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_a_version_with_other_internals_is_served_through_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounded request is not public API: without it there is still a way."""
    from mlflow.utils import rest_utils

    monkeypatch.setattr(rest_utils, "http_request", lambda creds, endpoint, method: None)
    tracker = MlflowTracker("http://127.0.0.1:1", "0" * 32)
    assert type(tracker._store).__name__ == "_ClientStore"
    monkeypatch.delattr(rest_utils, "http_request")
    tracker = MlflowTracker("http://127.0.0.1:1", "0" * 32)
    assert type(tracker._store).__name__ == "_ClientStore"


@pytest.mark.parametrize("fault", ["drive", "database"])
def test_a_database_that_cannot_be_reached_is_tried_again(
    fault: str, sqlite_uri: str, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drive may come back: what could not be written is written then."""
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)  # 10 take MLflow 100 s
    drive = tmp_path / "drive"
    database = drive / "mlflow.db"
    if fault == "drive":
        drive.write_text("not mounted")
    else:
        database.mkdir(parents=True)
    tracker = MlflowTracker(f"sqlite:///{database}", run_id)
    with pytest.raises(TrackerUnavailableError):
        tracker.send([point()])
    if fault == "drive":
        drive.unlink()
        drive.mkdir()
    else:
        database.rmdir()
    shutil.copyfile(sqlite_uri.removeprefix("sqlite:///"), database)
    tracker.send([point()])
    assert len(history(mlflow.MlflowClient(tracker.tracking_uri), run_id, "stallmeter/data_wait_ms")) == 1


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mysql+pymysql://u:s3cretpw@h/x", "install it with: pip install pymysql"),
        ("postgresql+psycopg2://u:s3cretpw@h/x", "install it with: pip install psycopg2-binary"),
        ("mssql+foo://u:s3cretpw@h/x", "mssql://… without a driver"),
        ("postgresql+psycopg2://u:s3c@h:s3cretpw/x", "as %XX"),
    ],
)
def test_a_database_that_cannot_be_spoken_to_says_what_is_missing(
    uri: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is not installed, one that does not exist, a URI that is none."""
    for driver in ("pymysql", "psycopg2"):
        monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(TrackerError, match=re.escape(message)) as caught:
        MlflowTracker.create_run(uri)
    assert "cretpw" not in "".join(traceback.format_exception(caught.value))


class TestStoreOfFiles:
    """Of Amazon's kind, as a run may have it beside any tracking server."""

    @pytest.fixture
    def tracker(self, client: Any, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowTracker:
        pytest.importorskip("boto3")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        experiment = client.create_experiment(f"s3 {tmp_path}", artifact_location="s3://bucket/here")
        return MlflowTracker(sqlite_uri, client.create_run(experiment).info.run_id, upload_s=60)

    @pytest.fixture
    def final(self, tmp_path: Path) -> Page:
        (tmp_path / "report.md").write_text("x")
        return page(files={"report.md": tmp_path / "report.md"}, final=True)

    def test_without_credentials(self, tracker: MlflowTracker, final: Page) -> None:
        with pytest.raises(TrackerError, match="no credentials for the store of the run's files"):
            tracker.show(final)

    @pytest.mark.parametrize(("status", "error"), [(403, TrackerError), (503, TrackerUnavailableError)])
    def test_that_refuses_or_is_down(
        self, status: int, error: type[Exception], tracker: MlflowTracker, final: Page, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FaultServer(status, "") as server:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cretpw")
            monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://{server.address}")
            with pytest.raises(error, match=str(status)):
                tracker.show(final)


# ------------------------------------------------------------------------------------------ servers that do not work

RETRIED = [
    (500, '{"error_code": "INTERNAL_ERROR", "message": "boom"}'),
    (503, "<html>maintenance</html>"),
    (429, '{"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "slow down"}'),
    (408, ""),
    (
        400,
        '{"error_code": "BAD_REQUEST", "message": "(sqlite3.IntegrityError) UNIQUE constraint failed [SQL: INSERT"}',
    ),
]
REFUSED = [
    (401, "no", "MLFLOW_TRACKING_USERNAME"),
    (403, '{"error_code": "PERMISSION_DENIED", "message": "not yours"}', "not yours"),
    (404, '{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such run"}', "no such run"),
    (400, '{"error_code": "BAD_REQUEST", "message": "what is this"}', "what is this"),
    (400, '{"error_code": "BAD_REQUEST", "message": "(psycopg.DataError) [SQL: INSERT]"}', "DataError"),
    (404, "<html>nothing here</html>", "address of an MLflow server"),
    (200, "<html>please log in</html>", "address of an MLflow server"),
]


@pytest.mark.parametrize(("status", "body"), RETRIED)
def test_a_server_in_trouble_is_tried_again_later(status: int, body: str) -> None:
    """One request, no retries of MLflow's own; one that failed inside is asked for the run, too."""
    with FaultServer(status, body) as server:
        tracker = MlflowTracker(f"http://{server.address}", "0" * 32)
        with pytest.raises(TrackerUnavailableError, match=str(status)):
            tracker.send([point()])
        asked = ["GET /api/2.0/mlflow/runs/get"] if "INTERNAL_ERROR" in body else []
        found = [request.partition("?")[0] for request in server.requests]
        assert found == ["POST /api/2.0/mlflow/runs/log-batch", *asked]


@pytest.mark.parametrize(("status", "body", "message"), REFUSED)
def test_a_server_that_refuses_is_left_alone(status: int, body: str, message: str) -> None:
    """The message says what to do."""
    with FaultServer(status, body) as server:
        tracker = MlflowTracker(f"http://{server.address}", "0" * 32)
        with pytest.raises(TrackerError, match=message):
            tracker.send([point()])
        assert sum(request.startswith("POST") for request in server.requests) == 1


@pytest.mark.parametrize("body", ['{"detail": "ok"}', '{"experiment": [], "run": "x"}', "{}"])
def test_a_server_that_speaks_of_something_else_is_no_mlflow(body: str) -> None:
    with FaultServer(200, body) as server:
        uri = f"http://{server.address}"
        for call in (lambda: MlflowTracker.create_run(uri), lambda: MlflowTracker(uri, "0" * 32).show(page())):
            with pytest.raises(TrackerError, match="Is this the address of an MLflow server"):
                call()


def test_what_a_proxy_says_in_place_of_mlflow_is_an_outage() -> None:
    with FaultServer(200, '{"run": {"info": {}}}') as server:
        tracker = MlflowTracker(f"http://{server.address}", "0" * 32)
        tracker.show(page())
        server.body = '{"status": "maintenance"}'
        with pytest.raises(TrackerUnavailableError, match="answered without 'run'"):
            tracker.show(page())


def test_a_strange_answer_of_a_server_that_has_worked_is_an_outage() -> None:
    """A proxy's error page in between does not end the forwarding."""
    with FaultServer(200, "{}") as server:
        tracker = MlflowTracker(f"http://{server.address}", "0" * 32)
        tracker.send([point()])
        server.status, server.body = 404, "<html>default backend</html>"
        with pytest.raises(TrackerUnavailableError, match="404"):
            tracker.send([point()])


def test_a_server_that_never_answers_is_given_up_after_the_timeout() -> None:
    """Each request is made once, and ends."""
    with FaultServer(silent=True) as server:
        tracker = MlflowTracker(f"http://{server.address}", "0" * 32, timeout_s=(0.2, 0.2))
        started = time.monotonic()
        with pytest.raises(TrackerUnavailableError):
            tracker.send([point()])
        with pytest.raises(TrackerUnavailableError):
            tracker.show(page())
        assert time.monotonic() - started < 60  # MLflow's own client: 1,207 s
        assert len(server.requests) == 2


def test_a_run_is_not_created_on_a_dead_server() -> None:
    """It fails at once, where the user sees it."""
    with pytest.raises(TrackerUnavailableError):
        MlflowTracker.create_run(f"http://127.0.0.1:{free_port()}", "tests")


# --------------------------------------------------------------------------------------------------------- secrets

PASSWORD = "s3cret%2Fpw"


def _calls(uri: str) -> list[Callable[[], object]]:
    def tracker() -> MlflowTracker:
        return MlflowTracker(uri, "0" * 32)

    return [
        lambda: tracker().send([point()]),
        lambda: tracker().show(page()),
        lambda: MlflowTracker.create_run(uri, "tests"),
    ]


@pytest.mark.parametrize("fault", ["refused", "silent", "echo", "http401", "invalid"])
def test_a_password_in_the_uri_never_comes_out(
    fault: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in a message, a traceback, the log, the console or the destination."""
    monkeypatch.setitem(MlflowTracker.__init__.__kwdefaults__, "timeout_s", (0.3, 0.3))
    caplog.set_level(logging.DEBUG)
    echo = f"cannot serve http://user:{PASSWORD}@host/x, nor s3cret/pw"
    with FaultServer({"http401": 401}.get(fault, 500), echo, silent=fault == "silent") as server:
        address = {"refused": f"127.0.0.1:{free_port()}", "invalid": "127.0.0.1:notaport"}.get(fault, server.address)
        uri = f"http://user:{PASSWORD}@{address}"
        texts = [MlflowTracker(uri, "0" * 32).destination]
        for call in _calls(uri):
            with pytest.raises((TrackerError, TrackerUnavailableError)) as caught:
                call()
            texts += [str(caught.value), "".join(traceback.format_exception(caught.value))]
    out, err = capfd.readouterr()
    everything = "\n".join([*texts, out, err, caplog.text])
    assert texts[0].startswith("http://127.0.0.1")
    assert len(texts) == 7
    for secret in (PASSWORD, "s3cret/pw", "user:"):
        assert secret not in everything


def test_a_password_in_a_database_uri_never_comes_out(sqlite_uri: str) -> None:
    """Neither from the userinfo nor from the query."""
    uri = "postgresql://user:s3cretpw@db.internal:5432/mlflow?sslpassword=s3cretpw2"
    assert MlflowTracker(uri, "abc").destination == "postgresql://***@db.internal:5432/mlflow?*** run abc"
    assert MlflowTracker("postgresql://user@host/db", "abc").destination == "postgresql://user@host/db run abc"
    assert MlflowTracker("http://user:p@ss@host:80", "abc").destination == "http://host:80 run abc"
    assert MlflowTracker(sqlite_uri, "abc").destination == f"{sqlite_uri} run abc"
