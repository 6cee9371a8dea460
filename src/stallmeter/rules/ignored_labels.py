"""A model scores all classes for positions whose label the loss leaves out.

**What it means.** A language model's last layer makes a score for each word of its vocabulary, and the loss computes
with all of them. Where only masked words, or answers without their prompts, have a label, most of these positions are
for nothing: they have no part in the loss, nor in any gradient.

**Evidence.** `spent.tensors.scored`: in a few steps, the positions of a batch's labels and those that have one (the
others hold -100, the default `ignore_index`, or -1); for how many the largest layer was called that makes 1,000 numbers
and more, which no other layer takes; and its part of the multiplications of all layers, by the shapes of what they take
and make. `spent.bucket_s`: seconds in which the steps compute, without the optimizer.

**Advice.** Pick out the positions that have a label before the last layer, and give the loss these alone. The loss and
all gradients stay what they are.

**When it is wrong.** Where the scores of other positions are used, for a metric or another loss: that is not seen. What
the loss takes for a number of these scores is a guess of ours, the more of a guess the fewer numbers a position has.
Labels that are made in the model or on an accelerator are not seen, nor is a layer of a model that is compiled.

**References.** PyTorch's documentation of `torch.nn.CrossEntropyLoss` (`ignore_index`). ModernBERT's
`sparse_prediction` in transformers does this for masked words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records import ScoredPositions
from ..records.diagnosis import Advice, Diagnosis, Evidence
from ..window import Window
from ..workers.gains import gain_without
from .functions import severity
from .rule import COMPUTES, threshold

LOSS_ON_CPU = (0.0, 100.0, 600.0)
LOSS_ON_GPU = (0.0, 500.0, 2500.0)
"""What the loss takes for a score, as numbers of a position that the layer would multiply in that time: at least, as a
rule and at most. The loss goes through all scores some five times, forward and backward, and they are made in memory
that is new. On a CPU our measurement, benchmarks/faults/ignored.py; of a GPU our estimate, from its operations in
the time in which it reads a number."""

OF_THE_SHARE = (0.5, 1.0, 1.0)
"""Of the multiplications' share the part that is saved of the time: where layers are small, others take theirs."""


def saved(found: ScoredPositions, *, gpu: bool) -> tuple[float, float, float]:
    """Return which parts (0 to 1) of the computing are saved: at least, as a rule and at most.

    Args:
        found: Positions that are scored, and the layer's share of the multiplications.
        gpu: Whether the model is on one.
    """
    least, usual, most = (
        found.in_vain * part * _with_loss(found, loss)
        for part, loss in zip(OF_THE_SHARE, LOSS_ON_GPU if gpu else LOSS_ON_CPU, strict=True)
    )
    return least, usual, most


def _with_loss(found: ScoredPositions, loss: float) -> float:
    """Return the part of the computing that are the layer and the loss, which takes what so many numbers more do."""
    head = found.share * (1.0 + loss / max(1, found.inputs))
    return head / (head + 1.0 - found.share) if head else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredLabels:
    """Fires when much of the computing are scores of positions that have no label."""

    id: ClassVar[str] = "ignored-labels"
    title: ClassVar[str] = "Classes are scored for positions that have no label"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "spent.tensors.scored")
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "ledger.wall_s")

    in_vain_pct: float = threshold(30.0, "%", "Of the scored positions; our choice")
    warn_pct: float = threshold(8.0, "%", "Of the training's time; our choice: worth a line of code")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what these positions take with the thresholds."""
        found = window.spent.tensors.scored
        computed_s = window.spent.bucket_s(*COMPUTES)
        if found is None or not computed_s or 100.0 * found.in_vain < self.in_vain_pct:
            return None
        least, usual, most = saved(found, gpu=window.device.pace_s is not None)
        lost_s = usual * computed_s
        pct = window.ledger.training_share_pct(lost_s)
        if pct is None or pct < self.warn_pct:
            return None
        gain = gain_without(window, lost_s, least=least / usual, most=most / usual)
        return Diagnosis(
            rule=self.id,
            severity=severity(pct, self.warn_pct, self.critical_pct),
            title=self.title,
            summary=f"{100.0 * found.in_vain:.0f} % of the positions have no label, and the layer of "
            f"{found.classes:,} classes and its loss compute with all of them.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            evidence=(
                Evidence(
                    "scored positions without a label", 100.0 * found.in_vain, "%", self.in_vain_pct, "our choice"
                ),
                Evidence("multiplications of all layers that are this layer's", 100.0 * found.share, "%"),
                Evidence("steps compute, the optimizer left out", computed_s, "s"),
            ),
            advice=(
                Advice.of(
                    "Leave out positions without a label before the last layer.",
                    expect="Scores and their loss are computed for these alone; the loss stays what it is.",
                    limit="Where the scores of other positions are not used, as by a metric.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
        )
