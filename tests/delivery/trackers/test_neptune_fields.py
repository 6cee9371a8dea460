"""A page as single values: one type per field, nothing where nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path

from stallmeter.delivery.trackers.neptune.fields import page_values
from stallmeter.records.interfaces import Page
from stallmeter.report.json import to_json
from stallmeter.report.model import read_history

from ...report.recordings import complete_run, write


def page(final: bool, **files: Path) -> Page:
    tags = {
        "stallmeter.primary": "no-workers",
        "stallmeter.data_wait_pct": "50.0",
        "stallmeter.num_workers": "2",
        "stallmeter.version": "1.2",
        "mine": "x",
    }
    return Page(tags=tags, headline="head", note="note", files=files, final=final)


def test_a_run_that_goes_on_has_its_verdict_and_tags() -> None:
    assert page_values(page(False)) == {
        "verdict": "head",
        "primary": "no-workers",
        "data_wait_pct": 50.0,
        "num_workers": 2,
        "version": "1.2",
    }


def test_the_final_page_has_the_ledger_and_the_advice(tmp_path: Path) -> None:
    document = {
        "wall_s": 30,
        "steps": 12,
        "coverage_pct": None,
        "ledger": {"data_wait": 3.5, "forward": 2},
        "primary": {"severity": "warning", "time_lost_s": 3, "confidence": 1},
        "num_workers": {"recommended": 4, "predicted_gain_pct": 56, "limited_by": "cpu"},
    }
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(document))
    found = page_values(page(True, **{"diagnosis.json": path}))
    assert {k: v for k, v in found.items() if k not in page_values(page(False))} == {
        "note": "note",
        "wall_s": 30.0,
        "steps": 12,
        "primary_severity": "warning",
        "primary_time_lost_s": 3.0,
        "primary_confidence": 1.0,
        "recommended_num_workers": 4,
        "predicted_gain_pct": 56.0,
        "limited_by": "cpu",
        "ledger/data_wait_s": 3.5,
        "ledger/forward_s": 2.0,
    }
    assert all(type(found[k]) is float for k in found if k.endswith(("_s", "_pct")))


def test_a_report_that_is_missing_or_broken_costs_only_its_own_fields(tmp_path: Path) -> None:
    broken = tmp_path / "diagnosis.json"
    broken.write_text("{")
    for files in ({}, {"diagnosis.json": tmp_path / "none"}, {"diagnosis.json": broken}):
        assert set(page_values(page(True, **files))) == {*page_values(page(False)), "note"}


def test_a_real_report_has_what_is_looked_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", complete_run())
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(to_json(read_history(folder).report())))
    found = page_values(page(True, **{"diagnosis.json": path}))
    assert {"wall_s", "steps", "coverage_pct", "primary_severity", "recommended_num_workers", "limited_by"} <= set(
        found
    )
    assert found["ledger/data_wait_s"]
