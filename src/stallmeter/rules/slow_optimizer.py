"""The optimizer takes most of each step, and goes over its numbers many times.

**What it means.** On a CPU torch's optimizers update one tensor after the other, each in a dozen operations that go
over all of its numbers. With `fused=True` one call does all of it, and goes over the numbers once.

**Evidence.** `spent.bucket_s`: seconds of the optimizer's steps in the wall-clock ledger, as a share of training time
in percent. `spent.optimizer`: its class, the tensors that it updates, and whether it is fused or could be, as read from
the optimizer when it is first met.

**Advice.** `fused=True` for Adam and AdamW, from torch 2.4 on. Where the optimizer takes less than half of the time
that is among the advice of compute-bound.

**When it is wrong.** Sums are made in another order, so that results differ by rounding. Gradients that are sparse
cannot be fused. What is saved was measured on one kind of CPU; how large the tensors are moves it within the interval.
On a GPU torch takes many tensors at once by default, and nothing is said.

**References.** PyTorch's documentation of `torch.optim`: "fused > foreach > for-loop" in order of speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .fusing import fusing
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowOptimizer:
    """Fires when an optimizer that could be fused takes more of the training time than all else."""

    id: ClassVar[str] = "slow-optimizer"
    title: ClassVar[str] = "The optimizer takes most of each step"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "spent.optimizer")
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "facts.framework", "ledger.wall_s")

    warn_pct: float = threshold(50.0, "%", "our choice: longer than all else; less is usual of a small model")
    critical_pct: float = threshold(75.0, "%", "our choice: three times as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the optimizer's share with the thresholds."""
        found = fusing(window)
        if found is None or found.share_pct < self.warn_pct:
            return None
        info, share = found.info, found.share_pct
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{info.kind} took {share:.0f} % of the training time, and goes over its numbers a dozen times.",
            time_lost_s=found.saved_s,
            share_pct=window.ledger.share_pct(found.saved_s) or 0.0,
            confidence=0.7,
            culprit=info.kind,
            evidence=(
                Evidence("optimizer, share of training time", share, "%", self.warn_pct, "our choice"),
                Evidence("optimizer", found.spent_s, "s"),
                Evidence("tensors that it updates", info.tensors, "1"),
            ),
            advice=(
                found.advice,
                Advice.of(
                    "Call step() once for several batches.",
                    expect="As many fewer steps of the optimizer.",
                    limit="Where larger batches train as well.",
                ),
            ),
        )
