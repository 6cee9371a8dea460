"""Sequences are padded to a length that no sequence, or only a few, of their batch have.

**What it means.** Sequences in a batch are made equally long by padding. Padded to a fixed length, such as the longest
that the model can take, every layer computes with positions in which no sequence of the batch has anything. Padded to
the longest of a batch whose sequences are of very different lengths, it computes with positions that one of them needs.

**Evidence.** `loader.content`: of some batches spread over the run, the length of their attention mask and the
positions that any sequence uses, as the share of those that none does. The share of the positions up to the longest
sequence that hold something, of all sequences: by the mask, or without one by the runs of one id, or of exact zeros,
that rows of ids, of a signal or of features end in, or begin with. Runs count only where they tell of sequences: they
are of many lengths, their value is seldom met within the rows, and most batches agree; of a signal one row has none,
and its batches differ in length as well. `spent.bucket_s`: seconds in which the steps compute, without the optimizer.

**Advice.** Pad each batch to its own longest sequence: `padding="longest"` of a tokenizer in the collate function, or
`DataCollatorWithPadding` and the like. What pads each text by itself before that has to go, as `padding="max_length"`
of a tokenizer: the collate function cannot make it shorter. Where the longest sequence needs its length, collate
sequences that are alike in length: a sampler that sorts by length, or `group_by_length` of transformers. A last layer
with many classes need not see the positions that hold nothing: `logits = head(hidden[mask])`.

**When it is wrong.** Where a model is compiled for one shape, each new length compiles it anew: then a few lengths are
better than one. A small model needs as long for short sequences as for long ones, as far as its operations are too
small to fill the processor. Packed sequences (`pack_padded_sequence`) lose nothing by padding, and a model that takes
one length only cannot have less of it: neither is seen. Masks and numbers on an accelerator are not read.

**References.** Hugging Face, "Padding and truncation", and "Dynamic padding" in its course. PyTorch's documentation
of `pad_sequence` and `pack_padded_sequence`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import Gain, gain_without
from .frameworks import Setting, said
from .functions import severity
from .rule import COMPUTES, threshold

LEAST = 0.5
"""Of the share of the positions, the share of the time that goes with them at least. Our choice."""

USUAL_POWER = 1.3
"""Power of a length that a step takes as a rule: most layers take the length itself, attention its square, and memory
that is filled more than its part. Seven programs of others won 0.9 to 1.8 times what the length alone makes of them,
1.47 times in the middle (docs/explain/accuracy-programs.md); this is 1.2 times at half of the positions."""

SAVES_SORTED = (1.0 / 3.0, 2.0 / 3.0)
"""Least and usual share of the time that goes with positions that the longest sequence needs, of their share: batches
of similar lengths are never quite even, and the more random they stay, the less so. Our choice."""


def usually_saved(padding: float) -> float:
    """Return the share (0 to 1) of the time that goes as a rule with a share of the positions."""
    return 1.0 - math.pow(1.0 - padding, USUAL_POWER)


def most_saved(padding: float) -> float:
    """Return the share (0 to 1) of the time that goes at the most with a share of the positions: all is attention.

    It takes the square of a length. Two programs won 3.1 and 6.3 times with half of the positions: by a plain length 2.
    """
    return 1.0 - (1.0 - padding) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatches:
    """Fires when much of what the model computes with is padding that no sequence, or only the longest, needs."""

    id: ClassVar[str] = "padded-batches"
    title: ClassVar[str] = "Batches are padded beyond their longest sequence"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "loader.content")
    optional: ClassVar[tuple[str, ...]] = ("facts.framework", "ledger.wall_s", "loader.info")

    info_pct: float = threshold(10.0, "%", "our choice: shorter batches are then worth 5 % at least")
    warn_pct: float = threshold(25.0, "%", "our choice: a quarter of the positions hold nothing")
    critical_pct: float = threshold(60.0, "%", "our choice: more than half of the computing is for nothing")
    uneven_pct: float = threshold(30.0, "%", "our choice: a batch of similar lengths is never quite even, either")
    most: float = threshold(0.9, "1", "Of the time in which steps compute; our choice: more is not believed")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of positions that no sequence uses, else of those that few use, with the thresholds."""
        content, training_s = window.loader.content, window.ledger.training_s
        computed_s = window.spent.bucket_s(*COMPUTES) or 0.0
        if content is None or not training_s or not computed_s:
            return None
        if content.padding is not None and 100.0 * content.padding >= self.info_pct:
            return self._beyond_the_longest(window, content.padding, computed_s, content.rounded_to)
        if content.filled_share is not None and 100.0 * (1.0 - content.filled_share) > self.uneven_pct:
            return self._below_the_longest(window, 1.0 - content.filled_share, computed_s)
        return None

    def _severity(self, window: Window, lost_s: float) -> Severity:
        return severity(window.ledger.training_share_pct(lost_s) or 0.0, self.warn_pct, self.critical_pct)

    def _saved(
        self, window: Window, computed_s: float, padding: float, least_saved: float, usual_saved: float
    ) -> tuple[float, Gain]:
        """Return the seconds that go with a share of the positions, and what the run gains without them."""
        parts = (least_saved, usual_saved, most_saved(padding))
        least, usual, most = (min(self.most, part) for part in parts)
        lost_s = usual * computed_s
        return lost_s, gain_without(window, lost_s, least=least / usual, most=most / usual)

    def _beyond_the_longest(
        self, window: Window, padding: float, computed_s: float, rounded_to: int | None
    ) -> Diagnosis:
        """Tell of padding that the longest sequence of a batch does not need."""
        lost_s, gain = self._saved(window, computed_s, padding, LEAST * padding, usually_saved(padding))
        return Diagnosis(
            rule=self.id,
            severity=self._severity(window, lost_s),
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
                        "Pad batches to their longest sequence, not texts to one length",
                        window.facts,
                        Setting.PAD_TO_LONGEST,
                        self._in_collate(window),
                    )
                    if rounded_to is None
                    else f"Leave out what rounds lengths up to a multiple of {rounded_to}: pad_to_multiple_of, say.",
                    expect="Steps as long as the longest sequence of their batch needs.",
                    limit="Not on a GPU whose Tensor Cores compute such lengths quicker."
                    if rounded_to is not None
                    else 'Where each text is padded before, as by padding="max_length", that has to go; '
                    "compiled models are compiled for each length.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Collate sequences of similar length into a batch.", limit="Batches are less random then."),
            ),
        )

    def _in_collate(self, window: Window) -> str:
        info = window.loader.info
        if info is None or not info.collate_function:
            return ", in the collate function"
        return f", in {info.collate_function} ({info.collate_file}:{info.collate_line})"

    def _below_the_longest(self, window: Window, padding: float, computed_s: float) -> Diagnosis:
        """Tell of padding that the longest sequence of a batch needs, and most others would not."""
        least, usual = (part * padding for part in SAVES_SORTED)
        lost_s, gain = self._saved(window, computed_s, padding, least, usual)
        name = "positions without anything, up to the longest sequence"
        return Diagnosis(
            rule=self.id,
            severity=self._severity(window, lost_s),
            title="Batches hold sequences of very different lengths",
            summary=f"{100.0 * padding:.0f} % of the positions hold nothing, though the longest sequence needs them.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.6,
            evidence=(
                Evidence(name, 100.0 * padding, "%", self.uneven_pct, "our choice"),
                Evidence("steps compute, the optimizer left out", computed_s, "s"),
            ),
            advice=(
                Advice.of(
                    said(
                        "Collate sequences of similar length into a batch",
                        window.facts,
                        Setting.GROUP_BY_LENGTH,
                        ", by a sampler",
                    ),
                    expect="Steps compute with fewer positions that hold nothing.",
                    limit="Packed sequences (pack_padded_sequence) lose nothing by padding; batches are less random.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Leave padded positions out before the last layer and the loss.",
                    expect="As much less to compute there: the mask, or the labels, say which.",
                    limit="Only before layers that take each position by itself.",
                ),
            ),
        )
