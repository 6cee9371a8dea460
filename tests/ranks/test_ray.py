"""What Ray Train says of a worker, and which folder it may record into; `tests/ecosystem` asks a real one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.engine.options import Options
from stallmeter.engine.wiring import plain_run, this_rank
from stallmeter.errors import SettingError
from stallmeter.lightning.callback import StallMonitorMixin
from stallmeter.ranks import channels
from stallmeter.ranks.ray import RayWorker, ray_worker


class Storage:
    """Of Ray Train's second version."""

    def __init__(self, results: Path | str, session: Path, system: str = "local") -> None:
        self.storage_filesystem = SimpleNamespace(type_name=system)
        self.experiment_fs_path = str(results)
        self.local_working_directory = str(session / "artifacts" / "run")


class TrialStorage(Storage):
    """Of its first version: each trial has a folder of its own."""

    @property
    def trial_fs_path(self) -> str:
        return f"{self.experiment_fs_path}/trial"

    @property
    def trial_working_directory(self) -> str:
        return self.local_working_directory


class Context:
    def __init__(self, storage: Any, rank: int | None = 1, world_size: int | None = 4) -> None:
        self._storage, self._rank, self._world_size = storage, rank, world_size

    def get_world_rank(self) -> int | None:
        return self._rank

    def get_world_size(self) -> int | None:
        return self._world_size

    def get_local_world_size(self) -> int | None:
        return 2

    def get_experiment_name(self) -> str:
        return "run"

    def get_storage(self) -> Any:
        if self._storage is None:
            raise NotImplementedError
        return self._storage


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ray's folder on this node, into which it has moved the process."""
    found = tmp_path / "ray" / "session_2026-05-01"
    (found / "artifacts" / "run").mkdir(parents=True)
    monkeypatch.chdir(found / "artifacts" / "run")
    monkeypatch.delenv("STALLMETER_DIR", raising=False)
    return found


def install(monkeypatch: pytest.MonkeyPatch, context: Any) -> None:
    def get_context() -> Any:
        if context is None:
            raise RuntimeError("Ray Train function utilities not initialized.")
        return context

    runtime = SimpleNamespace(get_job_id=lambda: "07000000")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: runtime))
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=get_context))


def known() -> RayWorker:
    worker = ray_worker()
    assert worker is not None
    return worker


def test_a_worker(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Context(Storage(tmp_path / "results", session)))
    worker = known()
    assert (worker.rank, worker.world_size, worker.ranks_on_node) == (1, 4, 2)
    assert (worker.storage, worker.temporary) == (tmp_path / "results", session.resolve())
    assert worker.job == f"ray|07000000|{tmp_path / 'results'}"


def test_ray_knows_better_than_the_variables_of_who_started_its_cluster(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "16")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    assert this_rank() == (0, 16)
    install(monkeypatch, Context(Storage(tmp_path / "results", session)))
    assert this_rank() == (1, 4)


def test_ranks_without_a_store_find_each_other_by_rays_run(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_groups_store", lambda: None)
    install(monkeypatch, Context(Storage(tmp_path / "results", session)))
    first = channels.find_channels("a", directory=tmp_path, job=known().job, environ={})
    assert list(first) == ["files"]
    assert channels.find_channels("a", directory=tmp_path, environ={}) == {}


@pytest.mark.parametrize("context", [None, Context(None, None, None)], ids=["driver", "no session"])
def test_no_worker(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, context)
    assert ray_worker() is None
    monkeypatch.delitem(sys.modules, "ray.train")
    assert ray_worker() is None


def test_the_first_version_is_not_asked_where_it_would_warn(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class First(Context):
        __module__ = "ray.train"

        def get_world_rank(self) -> int | None:
            raise AssertionError("asked")

    install(monkeypatch, First(None))
    monkeypatch.setitem(sys.modules, "ray.train._internal.session", SimpleNamespace(get_session=lambda: None))
    assert ray_worker() is None


def test_a_trial_of_the_first_version(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Context(TrialStorage(tmp_path / "results", session)))
    assert known().storage == tmp_path / "results" / "trial"
    assert known().temporary == session.resolve()


def test_local_mode_moves_nobody(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Context(None, 0, 1))
    assert (known().storage, known().temporary) == (None, None)
    assert Options(directory="here").check_recordings() == Path("here").absolute()


# -- the folder for recordings ----------------------------------------------------------------------------------------


def test_results_are_where_recordings_go(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Context(Storage(tmp_path / "results", session)))
    assert Options().check_recordings() == tmp_path / "results" / "stallmeter"
    assert Options(directory=tmp_path / "else").check_recordings() == tmp_path / "else"
    monkeypatch.setenv("STALLMETER_DIR", str(tmp_path / "env"))
    assert Options().check_recordings() == tmp_path / "env"


def test_a_relative_folder_is_refused(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Context(Storage(tmp_path / "results", session)))
    said = (
        rf"^directory 'rec' would be '{session.resolve()}/artifacts/run/rec': Ray Train has moved this worker .* lost "
        rf"with the cluster\. Leave it out, and recordings go to '{tmp_path}/results/stallmeter', or give an absolute "
        r"path that all nodes share, in directory= or STALLMETER_DIR$"
    )
    with pytest.raises(SettingError, match=said):
        Options(directory="rec").check_recordings()
    with pytest.raises(SettingError, match=said):
        plain_run(Options(directory="rec", trackers=None))
    with pytest.raises(SettingError, match=said):
        StallMonitorMixin(directory="rec")
    monkeypatch.setenv("STALLMETER_DIR", "rec")
    with pytest.raises(SettingError, match=said):
        Options().check_recordings()
    with pytest.raises(SettingError, match="temporary storage"):  # the same folder, written out
        Options(directory=session / "artifacts" / "run" / "rec").check_recordings()


def test_a_program_that_has_moved_on_is_believed(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Context(Storage(tmp_path / "results", session)))
    monkeypatch.chdir(tmp_path)
    assert Options(directory="rec").check_recordings() == tmp_path / "rec"


def test_results_in_a_bucket(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Context(Storage("bucket/run", session, "s3")))
    with pytest.raises(SettingError, match=r"no folder for recordings: Ray Train's results go to 's3: bucket/run'"):
        Options().check_recordings()
    with pytest.raises(SettingError, match=r"lost with the cluster\. Give an absolute path"):
        Options(directory="rec").check_recordings()
    assert Options(directory=tmp_path).check_recordings() == tmp_path


def test_without_ray_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STALLMETER_DIR", raising=False)
    assert Options().check_recordings() == Path("stallmeter").absolute()
