"""Sequences are padded to a length that no sequence of their batch has.

**What it means.** Sequences in a batch are made equally long by padding. Padded to a fixed length, such as the longest
that the model can take, every layer computes with positions in which no sequence of the batch has anything.

**Evidence.** `loader.content`: of some batches spread over the run, the length of their attention mask and the
positions that any sequence uses, as the share of those that none does. `spent.bucket_s`: seconds in which the steps
compute, without the optimizer.

**Advice.** Pad each batch to its own longest sequence: `padding="longest"` of a tokenizer in the collate function, or
`DataCollatorWithPadding`. Batches of sequences that are alike in length have less padding still.

**When it is wrong.** Where a model is compiled for one shape, each new length compiles it anew: then a few lengths are
better than one. A small model needs as long for short sequences as for long ones, as far as its operations are too
small to fill the processor. Masks on an accelerator are not read.

**References.** Hugging Face, "Padding and truncation", and "Dynamic padding" in its course.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import Setting, said
from .rule import threshold

COMPUTES = ("forward", "backward", "compute")
"""Buckets that take longer the longer the sequences are."""

SAVES = (0.5, 1.0, 1.3)
"""Of the share of the positions, the share of the time that goes with them: least, as a rule and most. Most layers take
as long as there are positions, attention their square, and what has no positions the same; our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatches:
    """Fires when much of what the model computes with is padding that no sequence of the batch needs."""

    id: ClassVar[str] = "padded-batches"
    title: ClassVar[str] = "Batches are padded beyond their longest sequence"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "loader.content")
    optional: ClassVar[tuple[str, ...]] = ("facts.framework", "ledger.wall_s")

    info_pct: float = threshold(10.0, "%", "our choice: shorter batches are then worth 5 % at least")
    warn_pct: float = threshold(25.0, "%", "our choice: a quarter of the positions hold nothing")
    critical_pct: float = threshold(60.0, "%", "our choice: more than half of the computing is for nothing")
    most: float = threshold(0.9, "1", "Of the time in which steps compute; our choice: more is not believed")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of positions that no sequence uses with the thresholds."""
        content, training_s = window.loader.content, window.ledger.training_s
        padding = None if content is None else content.padding
        computed_s = window.spent.bucket_s(*COMPUTES) or 0.0
        if padding is None or not training_s or not computed_s or 100.0 * padding < self.info_pct:
            return None
        least, usual, most = (min(self.most, part * padding) for part in SAVES)
        lost_s = usual * computed_s
        gain = gain_without(window, lost_s, least=least / usual, most=most / usual)
        share = 100.0 * lost_s / training_s
        usual_severity = Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING
        return Diagnosis(
            rule=self.id,
            severity=usual_severity if share >= self.warn_pct else Severity.INFO,
            title=self.title,
            summary=f"{100.0 * padding:.0f} % of the positions hold no token of any sequence in their batch.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            evidence=(
                Evidence(
                    "positions that no sequence of the batch uses", 100.0 * padding, "%", self.info_pct, "our choice"
                ),
                Evidence("steps compute, the optimizer left out", computed_s, "s"),
            ),
            advice=(
                Advice.of(
                    said(
                        "Pad each batch to its own longest sequence",
                        window.facts,
                        Setting.PAD_TO_LONGEST,
                        ", in the collate function",
                    ),
                    expect="Steps as long as the longest sequence of their batch needs.",
                    limit="A compiled model is compiled for each new length: use a few of them.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Collate sequences of similar length into a batch.", limit="Batches are less random then."),
            ),
        )
