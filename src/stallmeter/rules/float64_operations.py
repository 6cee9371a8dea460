"""Part of the model computes with 64 bits, though its weights have 32.

**What it means.** NumPy makes numbers of 64 bits where it is told nothing. A mask, a bias or a table of positions that
was made by it and kept as it is makes all that is computed with it 64 bits wide, forward and backward, until something
converts it back. PyTorch says nothing. Each number takes twice the memory and its way to the processor.

**Evidence.** `spent.tensors.wide`: in two steps, of the numbers that the model's operations make, those of 64 bits, by
the graph that the backward pass goes through; which operation makes most of them; and the largest buffer of 64 bits of
a module. `spent.bucket_s`: seconds in which the steps compute, without the optimizer.

**Advice.** 32 bits where the buffer or the batch is made: `.float()`, or `dtype=np.float32` in NumPy.

**When it is wrong.** Where results need more than seven digits. What is gained depends on how large these tensors are:
small ones stay in the processor's caches, and are as fast with 64 bits; the interval is wide. What the loss computes
outside of modules is not seen, nor is a model that is compiled, and nothing with torch 2.2. On an accelerator nobody
measured it here: it is told for information, without a gain.

**References.** PyTorch, "Type Promotion" in the documentation of tensor attributes. Our measurement,
`benchmarks/faults/wide.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records import WideNumbers
from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import Gain, gain_without
from .frameworks import on_cpu
from .functions import severity
from .rule import COMPUTES, threshold

SAVES = (0.3, 1.0, 1.8)
"""Least, usual and most of the time that 32 bits save, as multiples of the share of the numbers that have 64: the more,
the larger the tensors are. Our measurement, benchmarks/faults/wide.py: 0.7 to 1.6, and about nothing below an
eighth."""

MOST_OF_A_STEP = 0.75
"""Part of the computing that is saved at the most: a whole model of 64 bits lost that."""


def saves(found: WideNumbers) -> tuple[float, float, float]:
    """Return which parts (0 to 1) of the computing 32 bits save: at least, as a rule and at most.

    Args:
        found: Numbers of 64 bits among those that operations make.
    """
    least, usual, most = (min(MOST_OF_A_STEP, part * found.share) for part in SAVES)
    return least, usual, most


@dataclass(frozen=True, slots=True, kw_only=True)
class Float64Operations:
    """Fires when operations of a model with weights of 32 bits make many numbers of 64."""

    id: ClassVar[str] = "float64-operations"
    title: ClassVar[str] = "Part of the model computes with 64 bits"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "spent.tensors.wide")
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "facts.accelerator", "gpu.count", "ledger.wall_s")

    wide_pct: float = threshold(12.0, "%", "Of the numbers that operations make; fewer cost nothing; our measurement")
    warn_pct: float = threshold(10.0, "%", "Of the training's time; our choice: worth a line of code")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of the numbers that have 64 bits with the thresholds."""
        found = window.spent.tensors.wide
        computed_s = window.spent.bucket_s(*COMPUTES)
        if found is None or found.trained_wide or not computed_s or 100.0 * found.share < self.wide_pct:
            return None
        here = on_cpu(window)
        least, usual, most = saves(found)
        lost_s = usual * computed_s if here else 0.0
        pct = window.ledger.training_share_pct(lost_s)
        if pct is None or (here and pct < self.warn_pct):
            return None
        gain = gain_without(window, lost_s, least=least / usual, most=most / usual) if here else None
        by = f"; {found.buffer} is a buffer of 64 bits" if found.buffer else ""
        return Diagnosis(
            rule=self.id,
            severity=severity(pct, self.warn_pct, self.critical_pct) if here else Severity.INFO,
            title=self.title,
            summary=f"{100.0 * found.share:.0f} % of the numbers that the model's operations make have 64 bits, "
            f"most of them those of {_named(found)}, though its weights have fewer{by}.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            culprit=found.buffer or "float64",
            evidence=(
                Evidence("numbers of 64 bits", 100.0 * found.share, "%", self.wide_pct, "our measurement"),
                Evidence("steps compute, the optimizer left out", computed_s, "s"),
            ),
            advice=(_narrow(found, gain),),
            supersedes=("compute-bound",),
        )


def _narrow(found: WideNumbers, gain: Gain | None) -> Advice:
    return Advice.of(
        f"Make {found.buffer} float32 where it is registered."
        if found.buffer
        else "Make float32 of what NumPy has made, before the model computes with it.",
        expect="Half of the memory for what follows, forward and backward.",
        limit="Not where results need more than seven digits.",
        gain_pct=None if gain is None else gain.pct,
        interval_pct=None if gain is None else gain.interval_pct,
    )


def _named(found: WideNumbers) -> str:
    """Return what an operation is called, of torch's name for its backward."""
    return found.operation.partition("Backward")[0].lower() or "an operation"
