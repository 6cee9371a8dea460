"""Several losses of a step go backward through the same graph, one after the other.

**What it means.** `loss_a.backward(retain_graph=True)` and then `loss_b.backward()` go through all that both losses
depend on twice, the whole model mostly. The gradients are added up anyway: one `backward` of the losses' sum makes the
same and goes through it once. It need not keep what the forward pass has saved either.

**Evidence.** `spent.tensors.repeated_backward`: in a few steps, the seconds of all backward passes, and which nodes of
a pass's graph one before it has gone through, by torch's own numbers. Only passes count that one could do for: the
later loss was there when the earlier pass began, and its gradients were not cleared in between.

**Advice.** Add the losses up and call `backward` once. A loss with its own weight is multiplied by it first.

**When it is wrong.** Where the program looks at the gradients of one loss before it adds the next: its norm, say, or a
hook that tells them apart. What a loss has for itself is taken to come first in its pass, as torch does it.
Beside a GPU operations are only launched, and nothing is said there.

**References.** PyTorch's documentation of `torch.Tensor.backward` (`retain_graph`: "in nearly all cases setting this
option to True is not needed").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Location
from ..window import Window
from ..workers.gains import gain_without
from .functions import severity
from .rule import threshold

OF_IT = (0.7, 1.3)
"""Times these seconds that are saved at the least, and at the most: gradients need not be added to those of the first
pass, nor what the forward pass saved be kept; and a few steps are timed. Our measurement, 0.95 to 1.4 times by
`python -m benchmarks.faults.backward`, 0.7 to 0.85 by a program of somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedBackward:
    """Fires when a tenth of the training goes into backward passes that another one could have done."""

    id: ClassVar[str] = "repeated-backward"
    title: ClassVar[str] = "Several losses go backward through the same graph"
    needs: ClassVar[tuple[str, ...]] = ("ledger.record", "ledger.training_s", "spent.tensors.repeated_backward")
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "ledger.wall_s")

    warn_pct: float = threshold(8.0, "%", "Of the training's time; our choice: worth a line of the program")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    min_steps: float = threshold(2.0, "steps", "our choice: one step may be an exception")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what is gone through again with the training's time."""
        found, record = window.spent.tensors.repeated_backward, window.ledger.record
        if found is None or record is None or not found.again_s or found.steps < self.min_steps:
            return None
        lost_s = found.again_s * record.steps
        pct = window.ledger.training_share_pct(lost_s)
        if window.device.pace_s is not None or pct is None or pct < self.warn_pct or lost_s < self.min_lost_s:
            return None
        gain = gain_without(window, lost_s, least=OF_IT[0], most=OF_IT[1])
        where = f" ({found.file}:{found.line})" if found.file else ""
        return Diagnosis(
            rule=self.id,
            severity=severity(pct, self.warn_pct, self.critical_pct),
            title=self.title,
            summary=f"A step has {found.passes} backward passes of {1e3 * found.backward_s:.3g} ms together. "
            f"{1e3 * found.again_s:.3g} ms of it are in what another one has gone through.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            culprit=found.function or None,
            location=Location(found.file, found.line, found.function, pct) if found.file else None,
            evidence=(
                Evidence("gone through again, share of training time", pct, "%", self.warn_pct, "our choice"),
                Evidence("backward passes of a step, together", found.backward_s, "s"),
                Evidence("of it gone through again", found.again_s, "s"),
                Evidence("steps that were looked at", float(found.steps), "steps"),
            ),
            advice=(
                Advice.of(
                    f"Call backward once, of the sum of the losses{where}.",
                    expect="It makes the same gradients, and goes through the shared graph once.",
                    limit="Not where the gradients of one loss are looked at before those of the next.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
            supersedes=("compute-bound",),
        )
