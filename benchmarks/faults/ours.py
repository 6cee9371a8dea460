"""stallmeter as the tool under test."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Any

from stallmeter.records.diagnosis import Verdict
from stallmeter.report.model import read_history
from stallmeter.rules.evaluation import diagnose
from stallmeter.window import Window

from .signals import read

INTERVAL_S = 0.5
"""Runs last seconds here; at the default of 1 s there would be few samples."""


class Stallmeter:
    """Watches one fit with the real callback."""

    def __init__(self, folder: Path) -> None:
        # Chosen by what is imported, so it must come after Lightning.
        from stallmeter.lightning.unified import StallMonitor

        self.callback = StallMonitor(
            directory=folder, trackers=None, hardware=True, console=False, interval_s=INTERVAL_S
        )
        self.callbacks = [self.callback]

    def result(self) -> dict[str, Any]:
        """Return what it said, and the signals on which it said it."""
        monitor = self.callback.monitor
        assert monitor is not None
        monitor.finish()  # or its page would be drawn beside the next run
        return {**described(monitor.window, monitor.verdict), "recording": str(monitor.folder)}


def reevaluated(folder: Path) -> dict[str, Any]:
    """Return what today's rules say about a recording of an earlier run."""
    window = read_history(folder).window
    return {**described(window, diagnose(window)), "recording": str(folder)}


def described(window: Window, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict and its window as plain data."""
    ledger = window.ledger.record
    return {
        "primary": plain(verdict.primary),
        "diagnoses": plain(verdict.diagnoses),
        "abstained": plain(verdict.abstained),
        "num_workers": plain(verdict.num_workers),
        "coverage_pct": window.ledger.coverage_pct,
        "ledger": {} if ledger is None else dict(ledger.buckets),
        "callbacks": {} if ledger is None else dict(ledger.callbacks),
        "logging": {} if ledger is None else dict(ledger.logging),
        "signals": read(window),
    }


def plain(value: Any) -> Any:
    """Return records as dicts and lists."""

    def of(record: Any) -> Any:
        if isinstance(record, Enum):
            return record.value
        return dataclasses.asdict(record)

    return json.loads(json.dumps(value, default=of))
