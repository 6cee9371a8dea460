"""The optimizer takes a large part of each step, one tensor after the other.

**What it means.** On a CPU torch's optimizers update one tensor after the other, each in a dozen operations that go
over all of its numbers. With `fused=True` one call does all of it, and goes over the numbers once.

**Evidence.** `spent.bucket_s`: seconds of the optimizer's steps in the wall-clock ledger, as a share of training time
in percent. `spent.optimizer`: its class, the tensors that it updates, and whether it is fused or could be, as read from
the optimizer when it is first met.

**Advice.** `fused=True` for Adam and AdamW, from torch 2.4 on.

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
from ..workers.gains import gain_without
from .frameworks import Setting, said
from .rule import threshold

KINDS = ("Adam", "AdamW")
"""Optimizers that are judged: of what SGD does with a number fusing saves little, now and then nothing."""


def saves(share: float) -> tuple[float, float, float]:
    """Return which parts of an optimizer's time fusing saves: at least, as a rule and at most.

    The larger its share, the more its numbers are what takes the time, and the more is saved: in the end of what the
    other parts of a step take as well, whose data then stay in the CPU's caches. Fitted to the cases of
    `python -m benchmarks.faults.optimizers` in which it has a tenth of the time.

    Args:
        share: Of the training time that the optimizer takes, 0 to 1.
    """
    return 0.3 + 0.4 * share, 0.5 + 0.45 * share, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowOptimizer:
    """Fires when an optimizer that could be fused takes a large share of the training time."""

    id: ClassVar[str] = "slow-optimizer"
    title: ClassVar[str] = "The optimizer updates one tensor after the other"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "spent.optimizer")
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "facts.framework", "ledger.wall_s")

    info_pct: float = threshold(10.0, "%", "our choice: what fusing saves of it is then worth 5 %")
    warn_pct: float = threshold(50.0, "%", "our choice: longer than all else; less is usual of a small model")
    critical_pct: float = threshold(75.0, "%", "our choice: three times as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the optimizer's share with the thresholds."""
        info, spent_s = window.spent.optimizer, window.spent.bucket_s("optimizer")
        if info is None or not spent_s or info.fused or not info.may_fuse or info.kind not in KINDS:
            return None
        share = window.ledger.training_share_pct(spent_s)
        if share is None or share < self.info_pct or window.device.pace_s is not None:
            return None
        least, usual, most = saves(share / 100.0)
        lost_s = usual * spent_s
        gain = gain_without(window, lost_s, least=least / usual, most=most / usual)
        usual_severity = Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING
        return Diagnosis(
            rule=self.id,
            severity=usual_severity if share >= self.warn_pct else Severity.INFO,
            title=self.title,
            summary=f"{info.kind} took {share:.0f} % of the training time to update {info.tensors:,} tensors.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            culprit=info.kind,
            evidence=(
                Evidence("optimizer, share of training time", share, "%", self.warn_pct, "our choice"),
                Evidence("optimizer", spent_s, "s"),
                Evidence("tensors that it updates", info.tensors, "1"),
            ),
            advice=(
                Advice.of(
                    said(f"Set fused=True in torch.optim.{info.kind}", window.facts, Setting.FUSE),
                    expect="One call that goes over all numbers once.",
                    limit="Results differ by rounding; not for sparse gradients.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Call step() once for several batches.", limit="Where larger batches train as well."),
            ),
        )
