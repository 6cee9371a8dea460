"""Shows a result on the page of the run that the user has."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..errors import TrackerUnavailableError
from ..records.interfaces import Page, Point, Tracker
from ..records.redaction import redact
from .result import ProbeResult, Rate
from .show import headline, render

T = TypeVar("T")

TRIES = 4
WAIT_S = 1.0

_log = logging.getLogger("stallmeter")


@contextmanager
def closing(tracker: Tracker) -> Iterator[Tracker]:
    """Close a tracker at the end, with a warning where it cannot be."""
    try:
        yield tracker
    finally:
        try:
            tracker.close()
        except Exception as exc:  # noqa: BLE001 - a tracker may be the user's own
            _log.warning("stallmeter: %s could not be closed: %s", tracker.destination, redact(str(exc)))


def forward(result: ProbeResult, trackers: Sequence[Tracker]) -> None:
    """Send metrics below ``stallmeter/probe/``, tags, ``probe.json`` and ``probe.md`` to each tracker.

    A tracker that fails is named in a warning: the result is worth more than its copy.
    """
    with tempfile.TemporaryDirectory(prefix="stallmeter-probe-") as folder:
        page = _page(result, Path(folder))
        for tracker in trackers:
            _try(tracker, list(points(result, time.time())), page)


def points(result: ProbeResult, time_s: float) -> Iterator[Point]:
    """Return the result's metrics; the sweeps are curves over the number that was swept.

    Args:
        result: What was found.
        time_s: Unix time of the measurement.
    """

    def point(key: str, value: float | None, step: int = 0) -> Iterator[Point]:
        if value is not None:
            yield Point("steps", f"probe/{key}", float(f"{value:.4g}"), step, time_s)

    for name in ("free_data", "free_compute", "together"):
        rate: Rate | None = getattr(result, name)
        if rate is not None:
            yield from point(f"{name}_samples_per_s", rate.samples_per_s)
            yield from point(f"{name}_step_time_ms", 1e3 * rate.step_time_s)
    yield from point("headspace_pct", result.headspace_pct)
    yield from point("measured_gain_pct", result.measured_gain_pct)
    for workers in result.workers:
        yield from _curve("num_workers", workers.num_workers, workers.measured, workers.predicted_step_time_s, time_s)
    for size in result.batch_sizes:
        yield from _curve("batch_size", size.batch_size, size.measured, size.predicted_step_time_s, time_s)


def _curve(over: str, at: int, measured: Rate | None, predicted_s: float | None, time_s: float) -> Iterator[Point]:
    values = {
        f"step_time_ms_by_{over}": 1e3 * measured.step_time_s if measured else None,
        f"samples_per_s_by_{over}": measured.samples_per_s if measured else None,
        f"predicted_step_time_ms_by_{over}": 1e3 * predicted_s if predicted_s is not None else None,
    }
    for key, value in values.items():
        if value is not None:
            yield Point("steps", f"probe/{key}", float(f"{value:.4g}"), at, time_s)


def _page(result: ProbeResult, folder: Path) -> Page:
    files = {"probe.json": folder / "probe.json", "probe.md": folder / "probe.md"}
    files["probe.json"].write_text(render(result, "json"), encoding="utf-8")
    files["probe.md"].write_text(render(result, "markdown"), encoding="utf-8")
    tags = {}
    if result.headspace_pct is not None:
        tags["stallmeter.probe.headspace_pct"] = f"{result.headspace_pct:.1f}"
    if result.recommended_num_workers is not None:
        tags["stallmeter.probe.num_workers"] = str(result.recommended_num_workers)
    # Without a note: the run's description belongs to its verdict.
    return Page(tags=tags, headline=headline(result), note="", files=files, final=True)


def _try(tracker: Tracker, found: Sequence[Point], page: Page) -> None:
    try:
        _send(tracker, found, page)
    except Exception as exc:  # noqa: BLE001 - a tracker may be the user's own
        _log.warning("stallmeter: the probe's result did not reach %s: %s", tracker.destination, redact(str(exc)))


def _send(tracker: Tracker, found: Sequence[Point], page: Page) -> None:
    for start in range(0, len(found), tracker.batch_size):
        _patiently(tracker.send, found[start : start + tracker.batch_size])
    _patiently(tracker.show, page)
    deliver = getattr(tracker, "deliver", None)
    if deliver is not None:  # a mailbox that is emptied on the thread that may use the logger: this one
        deliver()


def _patiently(call: Callable[[T], None], what: T) -> None:
    """Try again what may work a moment later, for example a file that is still being uploaded."""
    for _ in range(TRIES - 1):
        with suppress(TrackerUnavailableError):
            call(what)
            return
        time.sleep(WAIT_S)
    call(what)
