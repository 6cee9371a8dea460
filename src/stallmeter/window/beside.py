"""The functions beside the model, and what each takes of the steps' own work."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from ..records import CodeLook, CodeSpot
from .ledger import LedgerSignals
from .steps import StepSignals

LONG = 3.0
"""What a step takes beyond so many medians is looked into as a long one's; `stallmeter.sources.stacks.sampler`."""

RARE = 0.05
"""Of the steps; up to this share long ones are exceptions, as in `stallmeter.rules.step_outliers`."""

WORK = ("h2d", "forward", "backward", "optimizer", "loop", "compute", "warmup")
"""Buckets of the steps' own work."""


@dataclass(frozen=True, slots=True)
class BesideModel:
    """A function of the user's that is no part of the model."""

    spot: CodeSpot
    """Of the look that saw the most of it."""
    seconds: float
    """In all steps."""
    share_of_steps_pct: float
    """Of the steps' own work."""
    samples: int
    """Looks that met it, about."""
    before_s: float = 0.0
    """Of `seconds`, before a step called its model."""
    apart_s: float = 0.0
    """Of `before_s`, before a call that holds both the model and its gradients."""
    after_s: float = 0.0
    """Of `seconds`, once a step had its gradients."""


@dataclass(frozen=True, slots=True)
class BeforeModel:
    """What steps do before they call their model: who asks no loader makes its batches there, or awaits them."""

    spot: CodeSpot | None
    """The function that holds the most of it; None where there is nothing of it."""
    spot_s: float
    """In all steps, as far as that function holds it."""
    seconds: float
    """In all steps."""
    samples: int
    """Looks that met it, about."""


def before_model(
    usual: CodeLook, long: CodeLook | None, steps: StepSignals, ledger: LedgerSignals
) -> BeforeModel | None:
    """Return what the steps do before they call their model; None where nothing is known of the steps.

    Args:
        usual: Into steps of usual length.
        long: Into long ones; None where nobody looked.
        steps: Of the run.
        ledger: Of the run.
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    spots: dict[tuple[str, str], CodeSpot] = {}
    samples = 0.0
    parts = _parts(usual, long, steps, ledger)
    for look, part_s in parts:
        for spot in look.spots:
            key = spot.file, spot.function
            seconds[key] += spot.wall_s / look.wall_s * part_s
            samples += spot.wall_s / look.wall_s * look.seen
            spots.setdefault(key, spot)
    largest = max(seconds, key=lambda key: (seconds[key], key), default=None)
    if largest is None:
        return BeforeModel(None, 0.0, 0.0, 0) if parts else None
    return BeforeModel(spots[largest], seconds[largest], math.fsum(seconds.values()), round(samples))


def beside_model(
    usual: CodeLook, long: CodeLook | None, steps: StepSignals, ledger: LedgerSignals
) -> tuple[BesideModel, ...] | None:
    """Return the functions beside the model, what takes the most first; None where nothing was seen.

    A look stands for the time of its kind: what steps take up to three medians, and what long ones take beyond. The
    latter counts where long steps are a pattern, and no exceptions.

    Args:
        usual: Into steps of usual length.
        long: Into long ones; None where nobody looked.
        steps: Of the run.
        ledger: Of the run.
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    before: dict[tuple[str, str], float] = defaultdict(float)
    apart: dict[tuple[str, str], float] = defaultdict(float)
    after: dict[tuple[str, str], float] = defaultdict(float)
    seen: dict[tuple[str, str], list[tuple[float, CodeSpot]]] = defaultdict(list)
    samples: dict[tuple[str, str], float] = defaultdict(float)
    for look, part_s in _parts(usual, long, steps, ledger):
        later = {(spot.file, spot.function): spot for spot in look.after}
        largest = later | {
            key: spot
            for spot in look.beside
            if (key := (spot.file, spot.function)) not in later or later[key].wall_s < spot.wall_s
        }
        for key, spot in largest.items():
            share = spot.wall_s / look.wall_s
            seconds[key] += share * part_s
            seen[key].append((share * part_s, spot))
            samples[key] += share * look.seen
        for parts_s, spots in ((before, look.before), (apart, look.apart), (after, look.after)):
            for spot in spots:
                parts_s[spot.file, spot.function] += spot.wall_s / look.wall_s * part_s
    work_s = _work_s(ledger)
    if not seconds or work_s <= 0:
        return None
    return tuple(
        BesideModel(
            spot=max(seen[key], key=lambda one: one[0])[1],
            seconds=seconds[key],
            share_of_steps_pct=min(100.0, 100.0 * seconds[key] / work_s),
            samples=round(samples[key]),
            before_s=before[key],
            apart_s=apart[key],
            after_s=after[key],
        )
        for key in sorted(seconds, key=lambda key: (seconds[key], key), reverse=True)
    )


def _parts(
    usual: CodeLook, long: CodeLook | None, steps: StepSignals, ledger: LedgerSignals
) -> list[tuple[CodeLook, float]]:
    """Return the looks that saw something, each with the seconds of the steps' own work that it stands for."""
    record, body = ledger.record, steps.body_s
    if record is None or body is None:
        return []
    beyond_s = _beyond_s(steps, record.steps, body.median)
    parts = [(usual, max(0.0, _work_s(ledger) - beyond_s[0])), (long, beyond_s[1])]
    return [(look, part_s) for look, part_s in parts if look is not None and look.wall_s > 0]


def _work_s(ledger: LedgerSignals) -> float:
    record = ledger.record
    return 0.0 if record is None else math.fsum(record.buckets.get(name, 0.0) for name in WORK)


def _beyond_s(steps: StepSignals, count: int, median_s: float) -> tuple[float, float]:
    """Return what long steps take beyond three medians: of all of them, and where they are no exceptions."""
    found = steps.outliers(LONG)
    if found is None:
        return 0.0, 0.0
    beyond_s = max(0.0, found.excess_s - (LONG - 1.0) * median_s * found.count)
    return beyond_s, beyond_s if found.count > RARE * count else 0.0
