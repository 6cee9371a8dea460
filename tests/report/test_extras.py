"""Reports with optional packages: each on its own, and none at the cost of another."""

from __future__ import annotations

import logging

import pytest

from stallmeter.errors import MissingPackageError
from stallmeter.report import drawing, extras
from stallmeter.report.files import DRAWN, complete_reports, report_files
from stallmeter.report.model import read_history

from .recordings import complete_run, write


def write_all(folder, failed: list[str]) -> dict[str, bool]:
    """Write the extras with a guard like the monitor's and return what is there."""

    def guard(name, call, *args):
        try:
            return call(*args)
        except Exception:
            failed.append(name)
            return None

    files = report_files(folder, 0)
    extras.write_extras(read_history(folder), files, guard)
    return {name: files[name].is_file() for name in extras.MAKERS}


def absent(history, _=None):
    raise MissingPackageError("plotly", "report", "it")


def broken(history, _=None):
    raise ValueError("broken")


def test_both_are_written(tmp_path, caplog):
    """With everything installed there is a page and a picture, and nothing to say."""
    caplog.set_level(logging.INFO, "stallmeter")
    assert write_all(write(tmp_path, complete_run()), []) == {"report.html": True, "phases.png": True}
    assert caplog.text == ""
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(("name", "other"), [("report.html", "phases.png"), ("phases.png", "report.html")])
def test_a_missing_package_is_said_once(tmp_path, monkeypatch, caplog, name, other):
    """One info line with the command to install it; the other file is written."""
    caplog.set_level(logging.INFO, "stallmeter")
    monkeypatch.setattr(extras, "MAKERS", {**extras.MAKERS, name: absent})
    failed: list[str] = []
    assert write_all(write(tmp_path, complete_run()), failed) == {name: False, other: True}
    assert failed == []
    assert [r.levelname for r in caplog.records] == ["INFO"]
    assert name in caplog.text
    assert "pip install 'stallmeter[report]'" in caplog.text


@pytest.mark.parametrize(("name", "other"), [("report.html", "phases.png"), ("phases.png", "report.html")])
def test_a_failure_costs_only_itself(tmp_path, monkeypatch, name, other):
    """What fails is named; the other file is written."""
    monkeypatch.setattr(extras, "MAKERS", {**extras.MAKERS, name: broken})
    failed: list[str] = []
    assert write_all(write(tmp_path, complete_run()), failed) == {name: False, other: True}
    assert failed == [name]


def test_the_table_of_steps_is_written_though_the_others_fail(tmp_path, monkeypatch):
    """What takes long is made file by file, and the first error is raised once all were tried."""
    monkeypatch.setattr(extras, "MAKERS", dict.fromkeys(extras.MAKERS, broken))
    folder = write(tmp_path, complete_run())
    with pytest.raises(ValueError, match="broken"):
        drawing.main([str(folder), "0", *DRAWN])
    assert (folder / "steps.csv").is_file()
    assert not (folder / "report.html").exists()


def test_a_picture_is_made_only_where_it_is_asked_for(tmp_path):
    folder = write(tmp_path, complete_run())
    one = drawing.ChildDrawing(folder, 0, picture=False)
    assert set(one.files) == {"report.html", "steps.csv"}
    while not one.wait(1.0):
        pass
    assert all(path.is_file() for path in one.files.values())
    assert not (folder / "phases.png").exists()


def test_what_a_tracker_lacks_is_made_and_nothing_else_made_anew(tmp_path):
    """As the picture of a run that had no tracker."""
    folder = write(tmp_path, complete_run())
    history = read_history(folder)
    (folder / "report.html").write_text("page")
    files = complete_reports(folder, 0, history, history.report())
    assert set(files) == {"report.html", "report.md", "phases.png", "diagnosis.json", "steps.csv"}
    assert all(path.is_file() for path in files.values())
    assert (folder / "report.html").read_text() == "page"
