"""From a diagnosis to the place in the code: the function that holds most of the time that was looked at."""

from __future__ import annotations

from dataclasses import replace

from ..records import CodeLook
from ..records.diagnosis import Diagnosis, Evidence, Location
from ..window import Window

IN_WORKERS = frozenset({"cold-cache", "fetch-stall", "no-workers", "prep-stall", "slow-batches", "too-few-workers"})
"""Rules whose seconds are spent where batches are made."""

IN_BUCKET = {
    "checkpoint-stall": "checkpoint",
    "compute-bound": "steps",
    "host-sync": "steps",
    "launch-bound": "steps",
    "low-utilization": "steps",
    "slow-callback": "callbacks",
    "slow-logging": "logging",
    "step-outliers": "long steps",
    "validation-heavy": "validation",
}
"""Rules whose seconds are those of one bucket of the loop's thread, or of all the steps' own work."""

SAMPLES = "samples"
"""The method of looks at the training thread."""

LEAST_SAMPLES = 16
"""With fewer samples of the stack a share is not known to 25 points, two standard errors."""

LEAST_PCT = 20.0
"""A function with a smaller share is not where the time goes."""


def located(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """Return the diagnosis with its place in the code, where a look found one."""
    look = _look(diagnosis, window)
    if look is None or not look.spots or not look.wall_s:
        return diagnosis
    spot = look.spots[0]
    share_pct = 100.0 * spot.wall_s / look.wall_s
    if share_pct < LEAST_PCT or (look.method == SAMPLES and look.seen < LEAST_SAMPLES):
        return diagnosis
    call = spot.calls[0] if spot.calls else None
    place = Location(file=spot.file, line=spot.line, function=spot.function, share_pct=share_pct, call=call)
    return replace(diagnosis, location=place, evidence=(*diagnosis.evidence, *_evidence(look)))


def _evidence(look: CodeLook) -> tuple[Evidence, ...]:
    """Say how the place was found; looks into workers are told of by their own rules."""
    if look.method != SAMPLES:
        return ()
    return (Evidence("samples of the training thread's stack, for the place", float(look.seen), "samples"),)


def _look(diagnosis: Diagnosis, window: Window) -> CodeLook | None:
    rule = diagnosis.rule
    if rule in IN_WORKERS:
        return window.code.at("workers")
    if rule == "slow-start":
        in_steps = (window.ledger.warmup_s or 0.0) > (window.ledger.start_s or 0.0)
        return window.code.at("startup", "warmup" if in_steps else "start")
    if rule == "step-time-drift":
        grown = window.steps.drift
        return None if grown is None else window.code.at("loop", grown.bucket, diagnosis.culprit or "")
    bucket = IN_BUCKET.get(rule)
    if bucket is None:
        return None
    named = bucket in ("callbacks", "logging")  # a culprit elsewhere is no part of the bucket
    return window.code.at("loop", bucket, (diagnosis.culprit or "") if named else "")
