"""How a function beside the model is named, how bad its share is, and what can be done about it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from ..records import CodeSpot
from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import Window
from ..workers.gains import Gain

GROWN, RISES = 1.25, 1.1
"""Times as long as early steps of an epoch that late ones must be: by the medians of all epochs, and in each of them;
our choice."""

LEAST_EPOCHS, LEAST_STEPS = 2, 12
"""Epochs, and known steps of each, that tell; our choice."""


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


@dataclass(frozen=True, slots=True)
class Growth:
    """Steps that take longer the later they come in an epoch, in each of the epochs."""

    early_s: float
    """Of a step of the first third of an epoch, without its wait for data; medians."""
    late_s: float
    """The same of the last third."""


def growth_in_epochs(window: Window) -> Growth | None:
    """Return by how much steps get longer within epochs; None where they do not in all of them, or too few are known.

    What is computed of all that an epoch has seen so far does: a score of all predictions, say.
    """
    epochs: defaultdict[int, list[float]] = defaultdict(list)
    for step in window.steps.steady or ():
        epochs[step.epoch].append(step.total_s - (step.data_wait_s or 0.0))
    known = [times for times in epochs.values() if len(times) >= LEAST_STEPS]
    ends = [(median(times[: len(times) // 3]), median(times[-(len(times) // 3) :])) for times in known]
    if len(ends) < LEAST_EPOCHS or any(late < RISES * early for early, late in ends):
        return None
    early_s, late_s = (median(each) for each in zip(*ends, strict=True))
    return Growth(early_s, late_s) if late_s >= GROWN * early_s else None


def rarer(spot: CodeSpot, gain: Gain, growth: Growth | None = None) -> tuple[Advice, ...]:
    """Return what can be done about a function that need not run in each step, or not here.

    Args:
        spot: The function.
        gain: Without it.
        growth: Of steps within an epoch, where it is this function's.
    """
    first = (
        Advice.of(
            f"Make it cheaper, or run it less often ({spot.file}:{spot.line}).",
            expect="Most of this time is saved.",
            limit="Less often not where the training needs it in each step, as it does a loss or a batch.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        )
        if growth is None
        else Advice.of(
            f"Collect sums of each batch, or compute it once an epoch ({spot.file}:{spot.line}).",
            expect=f"Steps take {1e3 * growth.early_s:.3g} ms early in an epoch, "
            f"{1e3 * growth.late_s:.3g} ms late in it.",
            limit="Where each step needs it, keep sums and counts instead of all values.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        )
    )
    return (
        first,
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
