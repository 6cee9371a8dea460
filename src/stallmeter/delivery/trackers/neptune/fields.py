"""What a run's page says as single values, for trackers that show a run as a tree of fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ....records.interfaces import Page

Value = str | int | float

_TAGS: Mapping[str, Callable[[str], Value]] = {
    "stallmeter.primary": str,
    "stallmeter.data_wait_pct": float,
    "stallmeter.num_workers": int,
    "stallmeter.version": str,
}
TAG_FIELDS = frozenset(key.rpartition(".")[2] for key in _TAGS)
"""Fields that a later page may lack: the verdict of a run that goes on may change to one without them."""

_REPORT = {
    "wall_s": ("wall_s",),
    "steps": ("steps",),
    "coverage_pct": ("coverage_pct",),
    "primary_severity": ("primary", "severity"),
    "primary_time_lost_s": ("primary", "time_lost_s"),
    "primary_confidence": ("primary", "confidence"),
    "recommended_num_workers": ("num_workers", "recommended"),
    "predicted_gain_pct": ("num_workers", "predicted_gain_pct"),
    "limited_by": ("num_workers", "limited_by"),
}


def page_values(page: Page) -> dict[str, Value]:
    """Return the fields of a page: verdict and tags, and on the final page the note, ledger and advice too.

    A field has one type for ever, as such trackers demand; what was not measured has no field.
    """
    found: dict[str, Value] = {"verdict": page.headline}
    found.update({key.rpartition(".")[2]: kind(page.tags[key]) for key, kind in _TAGS.items() if key in page.tags})
    if page.final:
        found["note"] = page.note
        found.update(_report_values(page))
    return found


def _report_values(page: Page) -> dict[str, Value]:
    try:
        report = json.loads(page.files["diagnosis.json"].read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError):
        return {}
    found = {name: _at(report, path) for name, path in _REPORT.items()}
    ledger = report.get("ledger") or {}
    found.update({f"ledger/{bucket}_s": seconds for bucket, seconds in ledger.items()})
    return {name: _typed(name, value) for name, value in found.items() if value is not None}


def _at(report: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        report = report.get(name) if isinstance(report, dict) else None
    return report


def _typed(name: str, value: Value) -> Value:
    return float(value) if name.endswith(("_s", "_pct", "_confidence")) else value
