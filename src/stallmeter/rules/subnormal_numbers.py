"""Many numbers of the batches are so near zero that the CPU computes with them many times slower.

**What it means.** Floating-point numbers below 1.2e-38 (32 bits) are subnormal: they have fewer digits the smaller they
are. Most CPUs compute with them in microcode, ten to a hundred times slower than with others. The tail of a recursive
filter over silence decays to them, and so do products of many small factors. They go through convolutions and products
of matrices as they come, forward and backward.

**Evidence.** `loader.content`: share of the batches' floating-point numbers that are subnormal, by a sample of some
batches spread over the run. `facts.accelerator` and `device.pace_s`: whether the training computes on a CPU. On a GPU
they cost nothing.

**Advice.** `torch.set_flush_denormal(True)` before training: they then count as zero, which they nearly are. Where they
come from can be changed as well: pad after the filter, or round small numbers to zero where items are made.

**When it is wrong.** Where a first layer makes other numbers of them: a bias, a normalisation. Some CPUs are hardly
slower with them. What they cost is not known before it is tried, so no time is claimed. Numbers that become subnormal
inside the model, and states of optimizers that decay, are not looked at.

**References.** PyTorch, `torch.set_flush_denormal`. Intel, "Set the FTZ and DAZ Flags". Andrysco et al., "On Subnormal
Floating Point and Abnormal Timing" (2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnormalNumbers:
    """Fires when many of the numbers that a CPU computes with are subnormal."""

    id: ClassVar[str] = "subnormal-numbers"
    title: ClassVar[str] = "Numbers next to zero slow the CPU down"
    family: ClassVar[str] = "compute"
    needs: ClassVar[tuple[str, ...]] = ("loader.content",)
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "facts.accelerator")

    info_pct: float = threshold(0.5, "%", "our choice: each may cost as much as a hundred others")
    warn_pct: float = threshold(5.0, "%", "our choice; 30 % took 2.4 times as long in one program")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of subnormal numbers with the thresholds, where a CPU computes."""
        content = window.loader.content
        share = None if content is None else content.subnormal_share
        if share is None or 100.0 * share < self.info_pct:
            return None
        if window.device.pace_s is not None or window.facts.accelerator not in (None, "CPUAccelerator"):
            return None
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if 100.0 * share >= self.warn_pct else Severity.INFO,
            title=self.title,
            summary=f"{100.0 * share:.1f} % of the batches' numbers are subnormal: below 1.2e-38, and not zero.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.7,
            evidence=(Evidence("subnormal numbers in the batches", 100.0 * share, "%", self.warn_pct, "our choice"),),
            advice=(
                Advice.of(
                    "Call torch.set_flush_denormal(True) before training.",
                    expect="They count as zero, and cost what other numbers do.",
                    limit="Not known before it is tried: some CPUs are hardly slower with them.",
                ),
                Advice.of("Make them zero where items are made: pad after a filter, not before it."),
            ),
        )
