"""What trackers get of a recording: finite values under keys that all of them take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from ..records import Record, StepRecord, UserMetrics, WindowRecord
from ..records.diagnosis import Verdict
from ..records.interfaces import Point
from ..records.rows import FIRST_STEPS

KEY_BYTES = 230
"""Longest key in UTF-8: MLflow takes 250 characters with the prefix that the tracker adds, and in its store of files a
part of the key is the name of a file, of 255 bytes at most."""

HAS_POINTS = re.compile(rb'\["(?:window"|log"|step",1?\d?\d,)')
"""Matches the beginning of the lines that hold points; the others need not be decoded."""

_NOT_IN_KEY = re.compile(r"[^\w./ -]+")
"""Letters and digits of every script stay: MLflow's own pattern is the same."""

_IN_WORDS = str.maketrans({"@": "_at_", "%": "_pct_", "=": "_eq_", "<": "_lt_", ">": "_gt_", "+": "_plus_"})
"""``recall@1`` and ``recall_1`` are two metrics."""


def points_of(record: Record | Verdict) -> list[Point]:
    """Return what trackers get of a record: finite values under keys that all of them take.

    Windows give their step and hardware metrics, the first 200 steps give step time and data wait in ms, both with 4
    significant digits, and the user's own metrics go below ``user/`` as they are. All other records stay in the
    recording.
    """
    match record:
        case WindowRecord():
            return [
                *_points("steps", record.metrics.items(), record.tracker_step, record.time_s),
                *_points("hardware", record.hardware.items(), record.tracker_step, record.time_s),
            ]
        case StepRecord() if record.index < FIRST_STEPS:
            times = {
                "first_steps/step_time_ms": record.step_time_s * 1e3,
                "first_steps/data_wait_ms": record.data_wait_s * 1e3,
            }
            return _points("steps", times.items(), record.tracker_step, record.time_s)
        case UserMetrics():
            own = ((f"user/{key}", value) for key, value in record.metrics.items())
            return _points("steps", own, record.tracker_step, record.time_s, _exact)
        case _:
            return []


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _exact(value: float) -> float:
    return float(value)


def _points(
    group: str,
    metrics: Iterable[tuple[str, float]],
    step: int,
    time_s: float,
    number: Callable[[float], float] = _rounded,
) -> list[Point]:
    return [
        Point(group, clean, sent, step, time_s)
        for key, value in metrics
        if (sent := _finite(value, number)) is not None and (clean := _clean_key(key))
    ]


def _finite(value: float, number: Callable[[float], float]) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    try:
        found = number(value)
    except OverflowError:  # an int beyond the range of float
        return None
    return found if math.isfinite(found) else None


def _clean_key(key: str) -> str:
    text = re.sub(r"\.{2,}", ".", _NOT_IN_KEY.sub("_", key.translate(_IN_WORDS)))
    parts = (part.strip() for part in text.split("/"))
    whole = "/".join(part for part in parts if part.strip("."))
    return whole.encode()[:KEY_BYTES].decode(errors="ignore").rstrip("/ ")
