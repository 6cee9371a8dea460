"""How a function beside the model is named, how bad its share is, and what can be done about it."""

from __future__ import annotations

from ..records import CodeSpot
from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import Window
from ..workers.gains import Gain


def called(spot: CodeSpot) -> str:
    """Return the function; what it calls of a library where it has the model called as well, and is no helper."""
    return spot.calls[0] if spot.calls and spot.trains else spot.function


def named(spot: CodeSpot) -> str:
    """Return the function that the training calls, and which one in it takes the most."""
    if called(spot) != spot.function:
        return f"{called(spot)}, called by {spot.function},"
    return spot.function if spot.within in ("", spot.function) else f"{spot.within}, most of it {spot.function},"


def severity(share_pct: float, warn_pct: float, critical_pct: float) -> Severity:
    """Return how bad a share is: information below the one threshold, critical from the other one on."""
    if share_pct < warn_pct:
        return Severity.INFO
    return Severity.CRITICAL if share_pct >= critical_pct else Severity.WARNING


def rarer(spot: CodeSpot, gain: Gain) -> tuple[Advice, ...]:
    """Return what can be done about a function that need not run in each step, or not here."""
    return (
        Advice.of(
            f"Make it cheaper, or run it less often ({spot.file}:{spot.line}).",
            expect="Most of this time is saved.",
            limit="Less often not where the training needs it in each step, as it does a loss or a batch.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
        Advice.of(
            "Move work that needs no current weights, such as plots and files, into a thread.",
            limit="Only while there are CPUs for it.",
        ),
    )


def earlier(spot: CodeSpot, gain: Gain, *, dataset: bool) -> tuple[Advice, ...]:
    """Return what can be done about a function that makes a batch, with a dataset or in a loop that asks none."""
    # One advice and no order: where all CPUs are busy a worker would only take them from the steps.
    if dataset:
        do = "move it into the dataset"
        expect = "Most of this time is saved; in the dataset, workers do it beside the steps."
        limit = "In the dataset only while there are CPUs for it; with num_workers=0 the loop still does it."
    else:
        do = "have other processes do it"
        expect = "Most of this time is saved; other processes do it beside the steps."
        limit = "In other processes only while there are CPUs for it, and where it needs no current weights."
    return (
        Advice.of(
            f"Make it cheaper, or {do} ({spot.file}:{spot.line}).",
            expect=expect,
            limit=limit,
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
    )


def informs(
    rule: str,
    window: Window,
    spot: CodeSpot,
    *,
    lost_s: float,
    place_pct: float,
    culprit: str,
    title: str,
    summary: str,
    evidence: tuple[Evidence, ...],
    advice: tuple[Advice, ...],
) -> Diagnosis:
    """Tell, as information, of what may have to be done, and perhaps at less cost."""
    return Diagnosis(
        rule=rule,
        severity=Severity.INFO,
        title=title,
        summary=summary,
        time_lost_s=lost_s,
        share_pct=window.ledger.share_pct(lost_s) or 0.0,
        confidence=0.7,
        culprit=culprit,
        location=Location.of(spot, place_pct),
        evidence=evidence,
        advice=advice,
    )
