"""What the callbacks of all frameworks share, with a framework that does nothing."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.engine.adapter import Adapter, own_trackers
from stallmeter.engine.lazily import imports
from stallmeter.engine.options import Options, set_unasked, unasked
from stallmeter.errors import MissingPackageError, SettingError


class InProgress:
    """Notes how it was closed."""

    def __init__(self) -> None:
        self.monitor: Any = SimpleNamespace(name="its monitor")
        self.closed: list[tuple[str, BaseException | None]] = []

    def close(self, reason: str, exception: BaseException | None = None) -> None:
        self.closed.append((reason, exception))


class Callback(Adapter):
    def begin(self) -> InProgress:
        self._training = training = InProgress()
        return training

    def end(self) -> None:
        self._finish("end")

    def run(self, work: Any) -> None:
        with self._ended_by_exception():
            work()


def test_one_training_after_the_other(tmp_path: Path) -> None:
    callback = Callback(directory=tmp_path)
    assert callback.monitor is None
    first = callback.begin()
    assert callback.monitor is first.monitor
    callback.end()
    callback.end()
    assert first.closed == [("end", None)]
    assert callback.monitor is first.monitor
    second = callback.begin()
    assert callback.monitor is second.monitor


def test_an_exception_passes_through_and_ends_it(tmp_path: Path) -> None:
    callback = Callback(directory=tmp_path)
    training = callback.begin()
    with pytest.raises(ZeroDivisionError) as raised:
        callback.run(lambda: 1 / 0)
    assert training.closed == [("exception: ZeroDivisionError", raised.value)]


def test_a_copy_is_a_fresh_one(tmp_path: Path) -> None:
    callback = Callback(directory=str(tmp_path))
    callback.begin()
    assert pickle.loads(pickle.dumps(callback)).monitor is None


def test_options_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean 'trackers'"):
        Callback(tracker=None)  # type: ignore[call-arg]
    with pytest.raises(SettingError):
        Callback(directory=tmp_path, interval_s=-1)


def test_a_second_one_names_what_of_it_does_not_hold(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, same = Callback(directory=tmp_path), Callback(directory=tmp_path)
    other, unasked_for = Callback(directory=tmp_path / "other", console=False), Callback()
    several = [first, same, other, unasked_for]
    assert [one._is_second(several, Callback) for one in several * 2] == [False, True, True, True] * 2
    assert caplog.messages == [
        "stallmeter: the training has a Callback already, which records; this one's directory, console does not hold"
    ]


def test_what_is_measured_unasked_has_the_options_that_were_chosen(tmp_path: Path) -> None:
    chosen = Options(directory=tmp_path, trackers=None, interval_s=2.0)
    set_unasked(chosen)
    try:
        assert unasked() is chosen
        assert Options(**chosen.given()) == chosen
    finally:
        set_unasked(None)
    assert unasked() == Options()


def test_the_frameworks_own_runs_are_asked_for_where_nothing_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)

    def none_wanted() -> list[object]:
        raise AssertionError

    assert own_trackers(Options(trackers=None), 0, none_wanted) == ()
    assert own_trackers(Options(), 1, lambda: [None]) == ()


def test_a_room_imports_what_it_needs_when_it_is_used() -> None:
    find = imports("stallmeter.engine", "Adapter", "adapter", "json", "nothing")
    assert find("Adapter") is Adapter
    with pytest.raises(AttributeError, match=r"'stallmeter\.engine' has no attribute 'other'"):
        find("other")
    missing = imports("stallmeter.engine", "Adapter", "adapter", "no_such_package", "extra")
    with pytest.raises(MissingPackageError, match=r"stallmeter\[extra\]"):
        missing("Adapter")
