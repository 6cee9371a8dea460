"""One record of options for `watch`, `Monitor` and the Lightning callback."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from pathlib import Path
from typing import Any

import pytest

import stallmeter
from stallmeter import api
from stallmeter.engine.options import OptionArguments, Options
from stallmeter.errors import SettingError
from stallmeter.lightning.callback import StallMonitorMixin
from stallmeter.rules import ALL_RULES

from ..conftest import ListTracker

NAMES = [field.name for field in dataclasses.fields(Options)]
TAKERS = [stallmeter.watch, stallmeter.Monitor, StallMonitorMixin]


def test_what_editors_complete_is_what_there_is() -> None:
    arguments = typing.get_type_hints(OptionArguments)
    assert list(arguments) == NAMES
    assert arguments == typing.get_type_hints(Options)
    assert not OptionArguments.__required_keys__


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.__name__)
def test_help_shows_each_option_with_its_default(taker: Any) -> None:
    shown = {
        name: parameter
        for name, parameter in inspect.signature(taker).parameters.items()
        if name not in ("loader", "stage")
    }
    assert {name: parameter.default for name, parameter in shown.items()} == {
        field.name: field.default for field in dataclasses.fields(Options)
    }
    function = taker if inspect.isfunction(taker) else taker.__init__
    hints = typing.get_type_hints(function, localns={"Iterable": typing.Iterable, "Literal": typing.Literal})
    assert {name: hints[name] for name in NAMES} == typing.get_type_hints(Options)


def test_the_reference_page_has_them_all() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "options.md"
    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    shown = {name.strip("| `"): default.strip("`") for name, default, _ in rows}
    assert shown.pop("rules") == "ALL_RULES"
    defaults = {field.name: repr(field.default).replace("'", '"') for field in dataclasses.fields(Options)}
    assert shown == {name: default for name, default in defaults.items() if name != "rules"}


def call(taker: Any, **options: Any) -> Any:
    return taker([1], **options) if taker is stallmeter.watch else taker(**options)


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.__name__)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("intervall_s", "did you mean 'interval_s'"),
        ("tracker", "did you mean 'trackers'"),
        ("zzz", "there are directory"),
    ],
)
def test_an_option_that_there_is_not(taker: Any, wrong: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"there is no option '{wrong}'; {said}"):
        call(taker, **{wrong: 1})


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.__name__)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"directory": 3}, "directory is 3; give a path"),
        ({"directory": ""}, "directory is ''; give a path"),
        ({"directory": b"runs"}, "directory is b'runs'; give a path"),
        ({"trackers": "neptun"}, "trackers is 'neptun'"),
        ({"rules": ["no rule"]}, "which has no check"),
        ({"rules": "no-workers"}, "rules is 'no-workers'; give a list of rules"),
        ({"rules": None}, "rules is None; give a list of rules"),
        ({"sources": 3}, "sources is 3; give a list of sources"),
        ({"sources": ["no source"]}, "which has no name, sample"),
        ({"hardware": "false"}, "hardware is 'false'; give True or False"),
        ({"workers": None}, "workers is None; give True or False"),
        ({"console": "no"}, "console is 'no'; give True or False"),
        ({"loop_looks": 0}, "loop_looks is 0; give True or False"),
        ({"interval_s": 0}, "interval_s is 0; give a number of seconds"),
        ({"interval_s": True}, "interval_s is True; give a number of seconds"),
        ({"period_s": "soon"}, "period_s is 'soon'"),
        ({"close_budget_s": -1}, "close_budget_s is -1"),
        ({"close_budget_s": float("inf")}, "close_budget_s is inf"),
        ({"close_budget_s": float("nan")}, "close_budget_s is nan"),
        ({"close_budget_s": None}, "close_budget_s is None"),
        ({"close_budget_s": True}, "close_budget_s is True"),
        ({"sync_probe_steps": 0.5}, "sync_probe_steps is 0.5"),
        ({"deep_batches": True}, "deep_batches is True; give a number of batches"),
        ({"deep_steps": 1001}, "deep_steps is 1001; give a number of steps"),
        ({"on_num_workers": 3}, "on_num_workers is 3; give 'report', 'apply'"),
        ({"on_num_workers": "apply", "workers": False}, "needs what workers=False switches off"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_alike(taker: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        call(taker, **options)


@pytest.mark.parametrize(("loader", "stage"), [(5, "train"), (None, "train"), ([1], "training")])
def test_what_cannot_be_watched_starts_no_run(
    loader: Any, stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_implicit", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError):
        stallmeter.watch(loader, stage=stage)
    assert api._implicit is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taker", [stallmeter.Monitor, StallMonitorMixin], ids=lambda taker: taker.__name__)
def test_what_is_given_without_a_name_is_refused_with_the_name_of_the_class(taker: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{taker.__name__} takes its options by name: .*\(directory='runs'\)$"):
        taker("runs")


def test_they_do_not_change_any_more() -> None:
    rules = list(ALL_RULES)
    options = Options(rules=rules)
    rules.clear()
    assert options.rules == ALL_RULES
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.console = False  # type: ignore[misc]


def test_watch_takes_them_with_its_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a later call says is checked, and does not hold."""
    monkeypatch.setattr(api, "_implicit", None)
    tracker = ListTracker()
    quiet: dict[str, Any] = {"hardware": False, "workers": False, "console": False}
    for folder in ("first", "second"):
        for _ in stallmeter.watch(range(3), directory=tmp_path / folder, trackers=tracker, **quiet):
            pass
    monitor = api._implicit
    assert monitor is not None
    monitor.close()
    assert monitor.folder is not None
    assert monitor.folder.parent == tmp_path / "first"
    assert monitor.window.ledger.record is not None
    assert monitor.window.ledger.record.steps == 6
    assert tracker.points


def test_the_monitors_surface_is_small() -> None:
    public = [name for name in dir(stallmeter.Monitor) if not name.startswith("_")]
    assert len(public) <= 15
    assert {"watch", "span", "log", "close", "finish", "verdict", "folder", "undelivered", "closed"} <= set(public)
