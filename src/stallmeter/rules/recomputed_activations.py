"""Activations are computed a second time in each backward pass, with memory to spare.

**What it means.** Activation checkpointing (`torch.utils.checkpoint`, `gradient_checkpointing_enable()`) keeps the
input of a part of the model, and forgets what its forward pass makes. The backward pass computes that again. It trains
in less memory, and costs one more forward pass. Where memory is left over that is time for nothing.

**Evidence.** `code.torch.recomputed`: seconds of the steps in which the backward pass computes forward again, by looks
at the training thread's stack, as a share of the steps' own work (`spent.step_work_s`) in percent. With reentrant
checkpoints the backward pass within one counts as what it is. `host.memory.peak_pct`: highest share of the memory limit
that was in use, in percent.

**Advice.** Switch it off; in transformers `gradient_checkpointing=False`. Where all of it would not fit, keep it for
the parts with the largest activations alone.

**When it is wrong.** How much memory the activations would take is not known: below 60 % of the limit they may still
not fit. Without a cgroup limit the memory of every process on the host counts. On a GPU the backward pass runs in a
thread of torch's own, which no look sees: there nothing is said. Neither is of compiled parts, nor of checkpoints of
other libraries. A model that was meant for another machine is told of as well.

**References.** PyTorch, `torch.utils.checkpoint`. Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016):
one more forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import Setting, computes_on_device, said
from .rule import between_looks, threshold

SAVES = (0.75, 1.0, 1.6)
"""Least, usual and most that is saved, as multiples of what is seen to be computed again. Our measurement,
benchmarks/faults/recomputing: 0.76 to 1.60; memory that is freed and asked for again costs as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedActivations:
    """Fires when a tenth of the steps or more is a second computation, and memory is left over."""

    id: ClassVar[str] = "recomputed-activations"
    title: ClassVar[str] = "Activations are computed twice, with memory to spare"
    needs: ClassVar[tuple[str, ...]] = (
        "code.torch.recomputed",
        "host.memory.peak_pct",
        "ledger.training_s",
        "spent.step_work_s",
    )
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "facts.accelerator", "facts.framework", "ledger.wall_s")

    warn_pct: float = threshold(10.0, "%", "our choice: a tenth of the steps is worth trying")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else; checkpoints in checkpoints")
    memory_pct: float = threshold(60.0, "%", "our choice: as much again as half of what is used is free")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what is computed again with the steps, and the memory in use with its limit."""
        found, work_s = window.code.torch.recomputed, window.spent.step_work_s
        peak_pct = window.host.memory.peak_pct
        if found is None or not work_s or peak_pct is None or not window.ledger.training_s:
            return None
        if computes_on_device(window):
            return None
        seconds = min(found.seconds, work_s)
        pct = 100.0 * seconds / work_s
        if pct < self.warn_pct or peak_pct >= self.memory_pct:
            return None
        usual = SAVES[1]
        least, most = between_looks(max(1, found.samples), SAVES[0] / usual, SAVES[2] / usual)
        gain = gain_without(window, usual * seconds, least=least, most=most)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if pct >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{pct:.0f} % of the steps' time went into computing activations again that were not kept, and at "
            f"most {peak_pct:.0f} % of the memory was in use.",
            time_lost_s=usual * seconds,
            share_pct=window.ledger.share_pct(usual * seconds) or 0.0,
            confidence=0.7,
            culprit="torch.utils.checkpoint",
            evidence=(
                Evidence("activations computed again, share of the steps", pct, "%", self.warn_pct, "our choice"),
                Evidence(
                    "memory in use, highest share of the limit", peak_pct, "%", self.memory_pct, "our choice: below it"
                ),
                Evidence("looks that met it", float(found.samples), "looks"),
            ),
            advice=(
                Advice.of(
                    said(
                        "Leave activation checkpointing off",
                        window.facts,
                        Setting.KEEP_ACTIVATIONS,
                        ": call the layers without torch.utils.checkpoint",
                    ),
                    expect="Backward passes compute gradients alone.",
                    limit="Memory in use grows by the activations that are kept then.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Keep it for the parts with the largest activations alone.",
                    limit="Where memory does not hold all of them.",
                ),
            ),
            supersedes=("compute-bound",),
        )
