"""A penalty on the weights, computed in the loss, takes a large part of the steps.

**What it means.** The loss holds a term of the weights themselves: the sum of their squares, how far they are from
those of an earlier task, or how far from orthogonal. It is computed of all parameters in each step, in several
operations each; and so are its gradients, which are added to those of the model. Where batches are small that may take
longer than the model.

**Evidence.** `code.torch.weight_penalties`: seconds of functions of the program, or of the training's own lines, that
go through parameters (`parameters()`, `named_parameters()`) between the call of the model and its gradients, by looks
at the training thread's stack and the text of the code; and seconds of the model and of the backward pass. What stands
under `no_grad`, or has of the parameters only what no gradient flows through (`detach`, `numel`), is none. The backward
pass has no stack of its own. What it takes beyond twice the model's forward is the penalty's, and no less than 1.2
times what that takes itself.

**Advice.** The squares of all weights are the optimizer's `weight_decay`, in the pass over the weights that it makes
anyway; with AdamW it acts a little differently. Another penalty changes slowly: every few steps, with as much more
weight, it does the same. Keep the parameters as one flat tensor, or use `torch._foreach_` operations, where it must be
computed in each.

**When it is wrong.** A penalty may have to be what it is; it is information, and no warning. Parameters that the
program keeps in a list of its own are not recognised as such. Beside a GPU operations are only launched: only that part
counts in which it had nothing to do (`spent.idle_in_steps_s`), which was not tried there.

**References.** Krogh and Hertz, "A Simple Weight Decay Can Improve Generalization" (1992). Loshchilov and Hutter,
"Decoupled Weight Decay Regularization" (2019). Kirkpatrick et al., "Overcoming catastrophic forgetting in neural
networks" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import WeightPenalties, Window
from ..workers.gains import gain_without
from .frameworks import computes_on_device
from .rule import BACKWARD_OF_MODEL, between_looks, threshold

WITH_GRADIENTS = (1.6, 2.2, 4.0)
"""Least, usual and most that a penalty takes with its gradients, as multiples of what looks see of it, where the
backward pass is as long as a model's. Our measurement, benchmarks/faults/penalty, as is the next: of few large
operations it takes much more, and then the backward pass is longer than a model's."""

AT_MOST = (8.0, 20.0)
"""Times what looks see of a penalty that are believed as a rule and at the most."""

BESIDE = 1.2
"""Times all of the penalty and the backward pass that are believed at the most: what a penalty reads and writes drives
the model's data from the CPU's caches. 1.18 was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPenalty:
    """Fires when a penalty on the weights and its gradients take a tenth of the training time or more."""

    id: ClassVar[str] = "weight-penalty"
    title: ClassVar[str] = "A penalty on the weights takes a large part of the steps"
    needs: ClassVar[tuple[str, ...]] = ("code.torch.weight_penalties", "ledger.training_s")
    optional: ClassVar[tuple[str, ...]] = (
        "device.pace_s",
        "facts.accelerator",
        "ledger.wall_s",
        "spent.idle_in_steps_s",
    )

    info_pct: float = threshold(10.0, "%", "our choice: a tenth of the training is worth another way to write it")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    min_samples: float = threshold(5.0, "looks", "our choice: fewer may be chance; the interval is as wide as few are")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare penalties and their part of the backward pass with the training time."""
        found = window.code.torch.weight_penalties
        if found is None or found.spot is None or found.samples < self.min_samples:
            return None
        if computes_on_device(window) and window.device.pace_s is None:  # what the host launches may be hidden there
            return None
        least, usual, most = _with_gradients(found)
        lost_s = window.spent.lost_in_steps_s(usual)
        share = None if lost_s is None else window.ledger.training_share_pct(lost_s)
        if lost_s is None or share is None or share < self.info_pct or lost_s < self.min_lost_s:
            return None
        least, most = between_looks(found.samples, least / usual, most / usual)
        gain = gain_without(window, lost_s, least=least, most=most)
        spot = found.spot
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title=f"A penalty on the weights in {spot.function} takes a large part of the steps",
            summary=f"{spot.function} goes through the parameters of the model in each step. With its gradients that "
            f"took about {lost_s:.1f} s, {share:.0f} % of the training time.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            culprit=spot.function,
            location=Location.of(spot, found.share_of_steps_pct),
            evidence=(
                Evidence("penalty and its gradients, share of training time", share, "%", self.info_pct, "our choice"),
                Evidence("of it, the penalty without its gradients", found.seconds, "s"),
                Evidence("looks that met it", float(found.samples), "looks"),
            ),
            advice=(
                Advice.of(
                    f"Use weight_decay instead, or compute it every few steps ({spot.file}:{spot.line}).",
                    expect="Steps without the penalty and its gradients.",
                    limit="The optimizer does that only where it is the sum of the squares.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Write it with operations on all parameters at once.",
                    limit="Where it must be computed in each step: of a flat tensor, or by torch._foreach_ operations.",
                ),
            ),
            supersedes=("compute-bound",),
        )


def _with_gradients(found: WeightPenalties) -> tuple[float, float, float]:
    """Return the seconds that a penalty takes with its gradients: at least, as a rule and at most."""
    forward_s, all_s = found.seconds, found.seconds + found.gradients_s
    usually_beyond_s, at_most_beyond_s = (
        max(0.0, found.gradients_s - part * found.model_s) for part in BACKWARD_OF_MODEL
    )
    least, usual, most = (factor * forward_s for factor in WITH_GRADIENTS)
    usual = min(max(usual, forward_s + usually_beyond_s), AT_MOST[0] * forward_s)
    most = min(max(most, forward_s + at_most_beyond_s), AT_MOST[1] * forward_s)
    return min(least, all_s), min(usual, all_s), min(most, BESIDE * all_s)
