"""Weights that are made of others are made anew at each use, several times in one forward pass.

**What it means.** `torch.nn.utils.parametrize`, as of `orthogonal` or `weight_norm`, makes a weight of others whenever
it is read. A recurrent cell that is called for each time step makes the same weight each time, and gradients are passed
back through each of these.

**Evidence.** `spent.tensors.made_weights`: in one step, how many such weights there are, how often one was made, how
many forward passes there were, and which part of the time in modules went into making them. `spent.bucket_s`: seconds
in which the steps compute, without the optimizer.

**Advice.** `with torch.nn.utils.parametrize.cached():` around the forward pass, in which each is made once.

**When it is wrong.** Where a weight changes with each use by design, as `spectral_norm` makes it in training. That the
backward pass takes the same part is a guess. Beside a device, and of a model that is compiled, nothing is said.

**References.** PyTorch's documentation of `torch.nn.utils.parametrize.cached`, and its tutorial on parametrizations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records import MadeWeights as Found
from ..records.diagnosis import Advice, Diagnosis, Evidence
from ..window import Window
from ..workers.gains import gain_without
from .functions import severity
from .rule import COMPUTES, threshold

MOST_PASSES = 4
"""Forward passes in a step, at the most, that need their weights each: more calls are those of a cell. Our choice."""

OF_THE_SHARE = (0.4, 0.8, 1.3)
"""Least, usual and most that is saved, as multiples of the forward pass's part: the backward may take less or more of
it. Our choice; 0.67 was measured, of one program."""

MOST_SAVED = 0.95
"""Part of the computing that is saved at the most: more is not believed."""


def in_vain(found: Found) -> float:
    """Return the part (0 to 1) of the makings that are of a weight that was there already."""
    needed = found.weights * min(max(1, found.passes), MOST_PASSES)
    return max(0.0, 1.0 - needed / found.made) if found.made else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeWeights:
    """Fires when much of the computing makes weights that were made in the same forward pass before."""

    id: ClassVar[str] = "made-weights"
    title: ClassVar[str] = "Weights are made anew at each use"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "spent.tensors.made_weights")
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "ledger.wall_s")

    in_vain_pct: float = threshold(50.0, "%", "Of the times that one is made; our choice")
    warn_pct: float = threshold(10.0, "%", "Of the training's time; our choice: worth a line of code")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what is made in vain with the thresholds."""
        found = window.spent.tensors.made_weights
        computed_s = window.spent.bucket_s(*COMPUTES)
        if found is None or not found.weights or not computed_s or window.device.pace_s is not None:
            return None
        part = in_vain(found)
        if 100.0 * part < self.in_vain_pct:
            return None
        least, usual, most = (min(MOST_SAVED, times * part * found.share) for times in OF_THE_SHARE)
        lost_s = usual * computed_s
        pct = window.ledger.training_share_pct(lost_s)
        if pct is None or pct < self.warn_pct:
            return None
        gain = gain_without(window, lost_s, least=least / usual, most=most / usual)
        each = found.made / found.weights
        return Diagnosis(
            rule=self.id,
            severity=severity(pct, self.warn_pct, self.critical_pct),
            title=self.title,
            summary=f"In a step weights of {found.kind} are made {each:.0f} times each, "
            f"which is {100.0 * found.share:.0f} % of the time in modules.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            culprit=found.kind or None,
            evidence=(
                Evidence("made although they were there", 100.0 * part, "%", self.in_vain_pct, "our choice"),
                Evidence("makings of weights, share of the time in modules", 100.0 * found.share, "%"),
                Evidence("steps compute, the optimizer left out", computed_s, "s"),
            ),
            advice=(
                Advice.of(
                    "Call the model within torch.nn.utils.parametrize.cached().",
                    expect="Each weight is made once for a forward pass.",
                    limit="Not where it must change with each use, as by spectral_norm.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
            supersedes=("compute-bound",),
        )
