"""Gradients are computed that change no weight: nothing but the optimizer leaves a part of the model alone.

**What it means.** A backbone, a teacher or a loss network is meant to stay as it is, and is not among the optimizer's
parameters. Its parameters still ask for gradients, so that each backward pass computes them, and they are kept.

**Evidence.** `spent.unused_gradients`: parameters that got new gradients within some 12 steps, twice, while nobody
wrote into them, and the numbers in these beside the numbers of all that were updated. They are found in the models that
running functions know by name. `spent.bucket_s`: seconds of the backward pass in the wall-clock ledger;
`spent.step_work_s`: of the whole step, where that is one piece, or where the host only launches (`device.pace_s`).
`spent.tensors.convolutions`: whether these take most of the forward pass.

**Advice.** `requires_grad_(False)` on that part. What is saved is taken for its share of the numbers and a little more,
for its forward pass keeps nothing then. A part that trained layers lie beneath keeps half of its backward pass or more,
because it must pass gradients on; that is not seen, and the interval is as wide.

**When it is wrong.** Where the program reads these gradients itself. Where an optimizer writes past torch's counter
(`Tensor._version`) and past the values that are compared. Numbers are no operations: those of a convolution are used
more often than those of a linear layer. A model that nobody knows by name is not seen.

**References.** PyTorch's notes on autograd, "Locally disabling gradient computation". A backward pass has about twice
the operations of a forward pass (PaLM, appendix B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records import UnusedGradients as Found
from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import BACKWARD, MOST_OF_A_STEP, threshold

SAVES = (0.28, 1.05, 1.4)
"""Least, usual and most that is saved, as multiples of the backward pass' share of these numbers. Our measurement,
benchmarks/faults/gradients: 0.97 to 1.43 for a part beneath trained layers or beside them, whose forward pass saves
something, too, and 0.28 to 0.59 for one above them, which must pass gradients on."""

MOST_OF_CONVOLUTIONS = 2.2
"""The most where convolutions take most of the forward pass: lower ones are computed for more places each. A program of
others saved 2.1 times this share."""

MOSTLY = 0.5
"""Part (0 to 1) of the forward pass; our choice."""

NAMED = 2
"""Parts that are named beside the largest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedGradients:
    """Fires when gradients that nobody uses take a tenth of the training time."""

    id: ClassVar[str] = "unused-gradients"
    title: ClassVar[str] = "Gradients are computed that change no weight"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "spent.unused_gradients")
    optional: ClassVar[tuple[str, ...]] = (
        "device.pace_s",
        "ledger.wall_s",
        "spent.step_work_s",
        "spent.tensors.convolutions",
    )

    warn_pct: float = threshold(10.0, "%", "our choice: what is saved is known roughly, and must be worth the change")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what these gradients take with the thresholds."""
        found, spent = window.spent.unused_gradients, window.spent
        if found is None or not found.numbers:
            return None
        on_device = window.device.pace_s is not None  # the host's buckets then time launches
        whole_s = spent.step_work_s or 0.0
        backward_s = (0.0 if on_device else spent.bucket_s("backward")) or BACKWARD * whole_s
        if not backward_s:
            return None
        convolves = spent.tensors.convolutions is not None and spent.tensors.convolutions.share >= MOSTLY
        parts = (*SAVES[:2], MOST_OF_CONVOLUTIONS if convolves else SAVES[2])
        least_s, saved_s, most_s = (min(part * found.share * backward_s, MOST_OF_A_STEP * whole_s) for part in parts)
        pct = window.ledger.training_share_pct(saved_s)
        if pct is None or pct < self.warn_pct:
            return None
        gain = gain_without(window, saved_s, least=least_s / saved_s, most=most_s / saved_s, on_device=on_device)
        name = f"{found.part} ({found.kind})" if found.part else "a part of the model"
        name += f" and {len(found.also)} other parts" if found.also else ""
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if pct >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{found.tensors:,} parameters of {name} get gradients in each step, and no optimizer changes "
            f"them: {100.0 * found.share:.0f} % of all numbers that gradients are computed for.",
            time_lost_s=saved_s,
            share_pct=window.ledger.share_pct(saved_s) or 0.0,
            confidence=0.7,
            culprit=found.part or None,
            evidence=(
                Evidence("numbers with gradients in vain, share of all with gradients", 100.0 * found.share, "%"),
                Evidence("backward pass for them, share of training time", pct, "%", self.warn_pct, "our choice"),
                Evidence("parameters with gradients in vain", found.tensors, "1"),
                Evidence("memory of these gradients, at 4 bytes each", 4.0 * found.numbers, "bytes"),
            ),
            advice=(
                Advice.of(
                    f"Call requires_grad_(False) on {_named(found)}.",
                    expect="The backward pass leaves them out, and their gradients take no memory.",
                    limit="Not where you read them; if it should be trained, give its parameters to the optimizer.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Run it in torch.no_grad() where nothing that is trained comes before it.",
                    expect="Its forward pass keeps nothing for a backward pass, either.",
                ),
            ),
        )


def _named(found: Found) -> str:
    """Return the parts by their names, as far as these are few."""
    if not found.part:
        return "that part"
    if not found.also:
        return found.part
    if len(found.also) > NAMED:
        return f"{found.part}, {', '.join(found.also[:NAMED])} and {len(found.also) - NAMED} more"
    *first, last = (found.part, *found.also)
    return f"{', '.join(first)} and {last}"
