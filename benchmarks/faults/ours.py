"""stallmeter as the tool under test, with the settings that a user gets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Any

from stallmeter.records.diagnosis import Verdict
from stallmeter.report.model import read_history
from stallmeter.rules.evaluation import diagnose
from stallmeter.window import Window


class Stallmeter:
    """Watches one program with the real callback, or with the real monitor in a plain loop."""

    def __init__(self, folder: Path, loop: str) -> None:
        from stallmeter.engine import wiring

        # Page and pictures are not the subject, and would be drawn beside the next run.
        wiring.start_drawing = lambda: None
        options: Any = {"directory": folder, "trackers": None, "console": False}
        self.callbacks: list[Any] = []
        self._plain: Any = None
        if loop == "lightning":
            # Chosen by what is imported, so it must come after Lightning.
            from stallmeter.lightning.unified import StallMonitor

            self.callbacks.append(StallMonitor(**options))
        else:
            from stallmeter import Monitor

            self._plain = Monitor(**options)

    def watch(self, loader: Iterable[Any], stage: Any = "train") -> Iterable[Any]:
        """Wrap what a plain loop iterates over."""
        return self._plain.watch(loader, stage=stage)

    def span(self, bucket: str, name: str | None = None) -> AbstractContextManager[Any]:
        """Name what a plain loop does."""
        return self._plain.span(bucket, name)

    def result(self) -> dict[str, Any]:
        """Return what it said."""
        monitor = self._plain or self.callbacks[0].monitor
        assert monitor is not None
        monitor.close()
        monitor.finish()
        return {**described(monitor.window, monitor.verdict), "recording": str(monitor.folder)}


def reevaluated(folder: Path) -> dict[str, Any]:
    """Return what today's rules say about a recording of an earlier run."""
    window = read_history(folder).window
    return described(window, diagnose(window))


def described(window: Window, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict and its ledger as plain data."""
    ledger = window.ledger.record
    return {
        "primary": plain(verdict.primary),
        "diagnoses": plain(verdict.diagnoses),
        "abstained": plain(verdict.abstained),
        "num_workers": plain(verdict.num_workers),
        "coverage_pct": window.ledger.coverage_pct,
        "ledger": {} if ledger is None else dict(ledger.buckets),
    }


def plain(value: Any) -> Any:
    """Return records as dicts and lists."""

    def of(record: Any) -> Any:
        if isinstance(record, Enum):
            return record.value
        return dataclasses.asdict(record)

    return json.loads(json.dumps(value, default=of))
