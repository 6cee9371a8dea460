"""The functions beside the model, and what each takes of the steps' own work."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from ..records import CodeLook, CodeSpot
from ..records.code import EPOCH_STARTS
from ..records.packages import NO_MODEL
from .ledger import LedgerSignals
from .steps import StepSignals

LONG = 3.0
"""What a step takes beyond so many medians is looked into as a long one's; `stallmeter.sources.stacks.sampler`."""

RARE = 0.05
"""Of the steps; up to this share long ones are exceptions, as in `stallmeter.rules.step_outliers`."""

WORK = ("h2d", "forward", "backward", "optimizer", "loop", "compute")
"""Buckets of the steps' own work, of which looks into steps tell the shares. First steps have looks of their own."""


@dataclass(frozen=True, slots=True)
class BesideModel:
    """A function of the user's that is no part of the model, with all that it calls."""

    spot: CodeSpot
    """What holds the most of it, of the look that saw the most of that: the function, or one that it calls."""
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
    between_s: float = 0.0
    """Of `seconds`, from the call of a step's model until it had its gradients."""
    model_s: float = 0.0
    """Of the model in all steps, the backward pass left out."""
    gradients_s: float = 0.0
    """Of the backward pass in all steps."""
    interpreting_s: float = 0.0
    """Of `seconds`, as far as looks found it between two instructions of Python's."""

    def times(self, factor: float) -> BesideModel:
        """Return the same with so many times the seconds."""
        names = [one.name for one in fields(self) if one.name == "seconds" or one.name.endswith("_s")]
        return replace(self, **{name: factor * getattr(self, name) for name in names})


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


@dataclass(frozen=True, slots=True)
class BesideEpochs:
    """A function of the user's that the loop's thread is in where an epoch begins, or between two."""

    spot: CodeSpot
    bucket: str
    """``worker_startup`` where an epoch begins, ``other`` between two."""
    seconds: float
    """In the whole run."""
    share_pct: float
    """Of all that was looked at there."""
    samples: int
    """Looks that met it, about."""

    @property
    def begins(self) -> bool:
        """Whether it is in where an epoch begins."""
        return self.bucket == EPOCH_STARTS


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluations of the model in the midst of the steps."""

    spot: CodeSpot
    """The function that takes the most of them."""
    seconds: float
    """Of all."""
    share_pct: float
    """Of these, in that function."""
    samples: int
    """Looks that met them, about."""


@dataclass(frozen=True, slots=True)
class WithinModel:
    """A function of the user's that a module of theirs calls, with all that it calls but other modules.

    Or a method of such a module, with what it calls itself of libraries that hold no model (`CodeSpot.trains`).
    """

    spot: CodeSpot
    seconds: float
    """In all steps."""
    share_of_steps_pct: float
    """Of the steps' own work."""
    samples: int
    """Looks that met it, about."""
    interpreting_s: float
    """Of `seconds`, as far as looks found it between two instructions of Python's."""

    untrained_s: float = 0.0
    """Of `seconds`, where the model records no gradients."""

    @property
    def package(self) -> str:
        """Package without a model or a loss in which it spends most of its time; empty where there is none."""
        return self.spot.package if self.spot.package in NO_MODEL else ""


@dataclass(frozen=True, slots=True)
class AutogradFunctions:
    """Autograd functions of the user's own: what their forward and their backward take."""

    spot: CodeSpot
    """The function that takes the most of it."""
    seconds: float
    """In all steps."""
    share_pct: float
    """Of these, in that function."""
    samples: int
    """Looks that met them, about."""


@dataclass(frozen=True, slots=True)
class WeightPenalties:
    """Penalties on weights that steps compute beside their loss, without their gradients."""

    spot: CodeSpot | None
    """The function that holds the most of them; None where none was seen."""
    seconds: float
    """In all steps."""
    share_of_steps_pct: float
    """Of the steps' own work, in that function."""
    samples: int
    """Looks that met them, about."""
    model_s: float
    """Of the model in all steps, the backward pass left out."""
    gradients_s: float
    """Of the backward pass in all steps."""


@dataclass(frozen=True, slots=True)
class RepeatedDerivatives:
    """Derivatives that steps ask for one input at a time."""

    spot: CodeSpot | None
    """The function that asks so for the most of them; None where none does."""
    seconds: float
    """That would be spared in all steps if it asked once for each output; the backward pass left out."""
    samples: int
    """Looks that met what would be spared, about."""
    derivatives_s: float
    """Of all derivatives in all steps."""
    backward_s: float
    """Of the backward pass in all steps."""


Parts = Sequence[tuple[CodeLook, float]]
"""Looks into the steps that saw something, each with the seconds of the steps' own work that it stands for."""

_Function = tuple[str, ...]
"""What tells a function from others: `CodeSpot.key`."""


def parts_of_steps(usual: CodeLook | None, long: CodeLook | None, steps: StepSignals, ledger: LedgerSignals) -> Parts:
    """Part the steps' own work among two looks; nothing where nobody looked, or the steps are not known.

    A look stands for the time of its kind: what steps take up to three medians, and what long ones take beyond. The
    latter counts where long steps are a pattern, and no exceptions.

    Args:
        usual: Into steps of usual length.
        long: Into long ones; None where nobody looked.
        steps: Of the run.
        ledger: Of the run.
    """
    record, body = ledger.record, steps.body_s
    if usual is None or record is None or body is None:
        return ()
    beyond_s = _beyond_s(steps, record.steps, body.median)
    return _seen((usual, max(0.0, work_s(ledger) - beyond_s[0])), (long, beyond_s[1]))


def before_model(parts: Parts) -> BeforeModel | None:
    """Return what the steps do before they call their model; None where nothing is known of the steps.

    Args:
        parts: The looks told of that alone.
    """
    found = _largest(parts, lambda look: look.spots)
    if found is None:
        return BeforeModel(None, 0.0, 0.0, 0) if parts else None
    return BeforeModel(found.spot, found.spot_s, found.seconds, found.samples)


def evaluation(
    usual: CodeLook | None, long: CodeLook | None, steps: StepSignals, ledger: LedgerSignals
) -> Evaluation | None:
    """Return what evaluates the model in the midst of the steps, by the function that takes the most of that.

    Long steps count however rare they are: it is what they are for.

    Args:
        usual: Into steps of usual length.
        long: Into long ones; None where nobody looked.
        steps: Of the run.
        ledger: Of the run.
    """
    found_long = steps.outliers(LONG)
    if ledger.record is None:
        return None
    excess_s = 0.0 if found_long is None else found_long.excess_s
    parts = _seen((usual, max(0.0, work_s(ledger) - excess_s)), (long, excess_s))
    found = _largest(parts, lambda look: look.evaluated)
    if found is None:
        return None
    return Evaluation(found.spot, found.seconds, 100.0 * found.spot_s / found.seconds, found.samples)


def within_model(parts: Parts, ledger: LedgerSignals) -> tuple[WithinModel, ...]:
    """Return the functions that modules of the user's call, what takes the most first.

    Args:
        parts: Looks into the steps.
        ledger: Of the run.
    """
    seconds, own_s = _seconds(parts, lambda look: look.in_modules), work_s(ledger)
    found = []
    for key in sorted(seconds, key=lambda key: (-seconds[key], key)) if own_s > 0 else ():
        seen = [(look, part_s, spot) for look, part_s in parts for spot in look.in_modules if spot.key == key]
        found.append(
            WithinModel(
                spot=max((spot for _, _, spot in seen), key=lambda spot: spot.wall_s),
                seconds=seconds[key],
                share_of_steps_pct=min(100.0, 100.0 * seconds[key] / own_s),
                samples=round(math.fsum(spot.wall_s / look.wall_s * look.seen for look, _, spot in seen)),
                interpreting_s=math.fsum(spot.interpreting_s / look.wall_s * part_s for look, part_s, spot in seen),
                untrained_s=math.fsum(spot.untrained_s / look.wall_s * part_s for look, part_s, spot in seen),
            )
        )
    return tuple(found)


def weight_penalties(parts: Parts, ledger: LedgerSignals) -> WeightPenalties | None:
    """Return what penalties on weights take; None where nobody looked into the steps.

    Args:
        parts: Looks into the steps.
        ledger: Of the run.
    """
    own_s = work_s(ledger)
    if not parts or own_s <= 0:
        return None
    model_s, gradients_s = _model_and_gradients_s(parts)
    found = _largest(parts, lambda look: look.penalties)
    if found is None:
        return WeightPenalties(None, 0.0, 0.0, 0, model_s, gradients_s)
    share_pct = min(100.0, 100.0 * found.spot_s / own_s)
    return WeightPenalties(found.spot, found.seconds, share_pct, found.samples, model_s, gradients_s)


def repeated_derivatives(parts: Parts) -> RepeatedDerivatives | None:
    """Return what derivatives that are asked for one at a time take; None where nobody looked into the steps.

    Args:
        parts: Looks into the steps.
    """
    if not parts:
        return None
    found = _largest(parts, lambda look: look.derivatives)
    derivatives_s = math.fsum(look.derivatives_s / look.wall_s * part_s for look, part_s in parts)
    backward_s = max(0.0, _model_and_gradients_s(parts)[1] - derivatives_s)
    if found is None:
        return RepeatedDerivatives(None, 0.0, 0, derivatives_s, backward_s)
    return RepeatedDerivatives(found.spot, found.seconds, found.samples, derivatives_s, backward_s)


def autograd_functions(parts: Parts) -> AutogradFunctions | None:
    """Return what autograd functions of the user's own take; None where none was seen.

    Args:
        parts: Looks into the steps.
    """
    found = _largest(parts, lambda look: look.functions)
    if found is None:
        return None
    return AutogradFunctions(found.spot, found.seconds, 100.0 * found.spot_s / found.seconds, found.samples)


def beside_model(parts: Parts, ledger: LedgerSignals) -> tuple[BesideModel, ...] | None:
    """Return the functions beside the model, what takes the most first; None where nothing was seen.

    Args:
        parts: Looks into the steps.
        ledger: Of the run.
    """
    before = _seconds(parts, lambda look: look.before)
    apart = _seconds(parts, lambda look: look.apart)
    after = _seconds(parts, lambda look: look.after)
    between = _seconds(parts, lambda look: look.between)
    model_s, gradients_s = _model_and_gradients_s(parts)
    seconds: dict[_Function, float] = defaultdict(float)
    seen: dict[_Function, list[tuple[float, CodeSpot]]] = defaultdict(list)
    samples: dict[_Function, float] = defaultdict(float)
    interpreting: dict[_Function, float] = defaultdict(float)
    for look, part_s in parts:
        later = {spot.key: spot for spot in look.after}
        largest = later | {
            spot.key: spot for spot in look.beside if spot.key not in later or later[spot.key].wall_s < spot.wall_s
        }
        for key, spot in largest.items():
            share = spot.wall_s / look.wall_s
            seconds[key] += share * part_s
            interpreting[key] += spot.interpreting_s / look.wall_s * part_s
            seen[key].append((share * part_s, spot))
            samples[key] += share * look.seen
    own_s = work_s(ledger)
    if not seconds or own_s <= 0:
        return None
    largest_first = sorted(seconds, key=lambda key: (seconds[key], key), reverse=True)
    spots = {key: max(seen[key], key=lambda one: one[0])[1] for key in largest_first}
    groups: dict[tuple[str, ...], list[_Function]] = defaultdict(list)
    for key, spot in spots.items():
        groups[(spot.within,) if spot.within else key].append(key)

    def total(of: Mapping[_Function, float], keys: Sequence[_Function]) -> float:
        return math.fsum(of.get(key, 0.0) for key in keys)

    found = [
        BesideModel(
            spot=spots[keys[0]],
            seconds=total(seconds, keys),
            share_of_steps_pct=min(100.0, 100.0 * total(seconds, keys) / own_s),
            samples=round(total(samples, keys)),
            before_s=total(before, keys),
            apart_s=total(apart, keys),
            after_s=total(after, keys),
            between_s=total(between, keys),
            model_s=model_s,
            gradients_s=gradients_s,
            interpreting_s=total(interpreting, keys),
        )
        for keys in groups.values()
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _seen(*parts: tuple[CodeLook | None, float]) -> Parts:
    """Return the parts whose looks saw something."""
    return [(look, part_s) for look, part_s in parts if look is not None and look.wall_s > 0]


def _model_and_gradients_s(parts: Parts) -> tuple[float, float]:
    """Return the seconds of the model and of its gradients in all steps."""
    return (
        math.fsum(look.model_s / look.wall_s * part_s for look, part_s in parts),
        math.fsum(look.gradients_s / look.wall_s * part_s for look, part_s in parts),
    )


class _Largest(NamedTuple):
    """Of some of the spots of looks the one whose function takes the most."""

    spot: CodeSpot
    spot_s: float
    seconds: float
    """Of all of them."""
    samples: int
    """Looks that met any, about."""


def _largest(parts: Parts, spots: Callable[[CodeLook], Sequence[CodeSpot]]) -> _Largest | None:
    seconds = _seconds(parts, spots)
    if not any(seconds.values()):  # nothing was seen, or the ledger has booked nothing of it yet
        return None
    largest = max(seconds, key=lambda key: (seconds[key], key))
    found = [(look, spot) for look, _ in parts for spot in spots(look)]
    return _Largest(
        spot=next(spot for _, spot in found if spot.key == largest),
        spot_s=seconds[largest],
        seconds=math.fsum(seconds.values()),
        samples=round(sum(spot.wall_s / look.wall_s * look.seen for look, spot in found)),
    )


def _seconds(parts: Parts, spots: Callable[[CodeLook], Sequence[CodeSpot]]) -> dict[_Function, float]:
    """Return the seconds of the steps' own work that functions hold, by some of the spots of looks."""
    seconds: dict[_Function, float] = defaultdict(float)
    for look, part_s in parts:
        for spot in spots(look):
            seconds[spot.key] += spot.wall_s / look.wall_s * part_s
    return seconds


def work_s(ledger: LedgerSignals) -> float:
    """Return the seconds of the steps' own work, of the first ones left out."""
    record = ledger.record
    return 0.0 if record is None else math.fsum(record.buckets.get(name, 0.0) for name in WORK)


def _beyond_s(steps: StepSignals, count: int, median_s: float) -> tuple[float, float]:
    """Return what long steps take beyond three medians: of all of them, and where they are no exceptions."""
    found = steps.outliers(LONG)
    if found is None:
        return 0.0, 0.0
    beyond_s = max(0.0, found.excess_s - (LONG - 1.0) * median_s * found.count)
    return beyond_s, beyond_s if found.count > RARE * count else 0.0
