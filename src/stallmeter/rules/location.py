"""From a diagnosis to the place in the code: the function that holds most of the time that was looked at."""

from __future__ import annotations

from dataclasses import replace

from ..records import CodeLook
from ..records.diagnosis import Diagnosis, Location
from ..window import Window

IN_WORKERS = frozenset({"cold-cache", "fetch-stall", "no-workers", "prep-stall", "slow-batches", "too-few-workers"})
"""Rules whose seconds are spent where batches are made."""

IN_BUCKET = {
    "checkpoint-stall": "checkpoint",
    "slow-callback": "callbacks",
    "slow-logging": "logging",
    "validation-heavy": "validation",
}
"""Rules whose seconds are those of one bucket of the loop's thread."""

LEAST_PCT = 20.0
"""A function with a smaller share is not where the time goes."""


def located(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """Return the diagnosis with its place in the code, where a look found one."""
    look = _look(diagnosis, window)
    if look is None or not look.spots or not look.wall_s:
        return diagnosis
    spot = look.spots[0]
    share_pct = 100.0 * spot.wall_s / look.wall_s
    if share_pct < LEAST_PCT:
        return diagnosis
    call = spot.calls[0] if spot.calls else None
    place = Location(file=spot.file, line=spot.line, function=spot.function, share_pct=share_pct, call=call)
    return replace(diagnosis, location=place)


def _look(diagnosis: Diagnosis, window: Window) -> CodeLook | None:
    if diagnosis.rule in IN_WORKERS:
        return window.code.at("workers")
    bucket = IN_BUCKET.get(diagnosis.rule)
    return None if bucket is None else window.code.at("loop", bucket, diagnosis.culprit or "")
