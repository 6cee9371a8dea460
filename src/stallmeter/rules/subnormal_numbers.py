"""Many numbers of the batches are so near zero that the CPU computes with them many times slower.

**What it means.** Floating-point numbers below 1.2e-38 (32 bits) are subnormal: they have fewer digits the smaller they
are. Most CPUs compute with them in microcode, ten to a hundred times slower than with others. The tail of a recursive
filter over silence decays to them, and so do products of many small factors. They go through convolutions and products
of matrices as they come, forward and backward.

**Evidence.** `loader.content`: share of the batches' floating-point numbers that are subnormal, by a sample of some
batches spread over the run. `spent.tensors.subnormal`: the same of the largest gradients, and of what optimizers keep
of earlier steps, looked at a few times between two steps, in the models and optimizers that running functions know by
name. A mean that gets nothing more decays to such numbers and stays there: of rows of a table that are not used,
after 830 steps of Adam. The shares are 0 where the CPU is as quick with them as with other numbers, which is tried
once, for half a millisecond. `facts.accelerator` and `device.pace_s`: whether the training computes on a CPU. On a
GPU they cost nothing.

**Advice.** `torch.set_flush_denormal(True)` before training: they then count as zero, which they nearly are. Where they
come from can be changed as well: pad after the filter, or round small numbers to zero where items are made. Weights of
a loss that fall by half again and again can end at zero, and tables can have sparse gradients.

**When it is wrong.** Where a first layer makes other numbers of them: a bias, a normalisation. What they cost a model
is not known before it is tried, so no time is claimed. Numbers that are subnormal inside the model alone, and leave no
trace in the gradients of its parameters, are not seen.

**References.** PyTorch, `torch.set_flush_denormal`. Intel, "Set the FTZ and DAZ Flags". Andrysco et al., "On Subnormal
Floating Point and Abnormal Timing" (2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .frameworks import computes_on_device
from .rule import threshold

BATCHES, GRADIENTS, STATES = "batches", "gradients", "optimizer's states"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnormalNumbers:
    """Fires when many of the numbers that a CPU computes with are subnormal."""

    id: ClassVar[str] = "subnormal-numbers"
    title: ClassVar[str] = "Numbers next to zero slow the CPU down"
    family: ClassVar[str] = "compute"
    needs: ClassVar[tuple[str, ...]] = ("loader.content",)
    instead: ClassVar[tuple[str, ...]] = ("spent.tensors.subnormal",)
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "facts.accelerator")

    info_pct: float = threshold(
        0.5,
        "%",
        "Of batches, a tenth of what warns, and so of the others; our choice: each may cost as much as a hundred",
    )
    warn_pct: float = threshold(5.0, "%", "our choice; 30 % took 2.4 times as long in one program")
    gradients_pct: float = threshold(
        1.0, "%", "Our measurement: a product of matrices with so many takes 2.4 times as long"
    )
    states_pct: float = threshold(20.0, "%", "Our measurement: with 30 % a step of Adam takes 1.3 to 1.9 times as long")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the shares of subnormal numbers with the thresholds, where a CPU computes."""
        share, what, warn_pct = max(self._shares(window), default=(0.0, "", 1.0), key=lambda one: one[0] / one[2])
        if 100.0 * share < self.info_pct * (warn_pct / self.warn_pct):
            return None
        if computes_on_device(window):
            return None
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if 100.0 * share >= warn_pct else Severity.INFO,
            title=self.title,
            summary=f"{100.0 * share:.1f} % of the {what}' numbers are subnormal: below 1.2e-38, and not zero.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.7,
            evidence=(Evidence(f"subnormal numbers in the {what}", 100.0 * share, "%", warn_pct, "our choice"),),
            advice=(
                Advice.of(
                    "Call torch.set_flush_denormal(True) before training.",
                    expect="They count as zero, and cost what other numbers do.",
                    limit="What that gains is not known before it is tried.",
                ),
                _at_their_source(what),
            ),
        )

    def _shares(self, window: Window) -> list[tuple[float, str, float]]:
        """Return what is known: the share, of what, and from what percentage on it warns."""
        content, tensors = window.loader.content, window.spent.tensors.subnormal
        found = [(None if content is None else content.subnormal_share, BATCHES, self.warn_pct)]
        if tensors is not None:
            found += [(tensors.gradients, GRADIENTS, self.gradients_pct), (tensors.states, STATES, self.states_pct)]
        return [(share, what, warn_pct) for share, what, warn_pct in found if share is not None]


def _at_their_source(what: str) -> Advice:
    """Return what is to be done where the numbers come from."""
    if what == BATCHES:
        return Advice.of("Make them zero where items are made: pad after a filter, not before it.")
    if what == GRADIENTS:
        return Advice.of("Look for factors of the loss that fall below 1e-30, and make them zero.")
    return Advice.of("Give rows that are seldom used sparse gradients: their means are left alone then.")
