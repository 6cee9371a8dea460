"""What a fused optimizer would save: two rules tell of it, by how much of the time the optimizer takes."""

from __future__ import annotations

from typing import NamedTuple

from ..records import OptimizerInfo
from ..records.diagnosis import Advice
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import Setting, said

KINDS = ("Adam", "AdamW")
"""Optimizers that are judged: of what SGD does with a number fusing saves little, now and then nothing."""

LEAST_PCT = 10.0
"""Share of the training time, percent, from which on an optimizer is told of: fusing is then worth 5 %."""


class Fusing(NamedTuple):
    """What fusing an optimizer would save."""

    info: OptimizerInfo
    spent_s: float
    share_pct: float
    """Of the training time."""
    saved_s: float
    advice: Advice


def saves(share: float) -> tuple[float, float, float]:
    """Return which parts of an optimizer's time fusing saves: at least, as a rule and at most.

    The larger its share, the more its numbers are what takes the time, and the more is saved: in the end of what the
    other parts of a step take as well, whose data then stay in the CPU's caches. Fitted to the cases of
    `python -m benchmarks.faults.optimizers` in which it has a tenth of the time.

    Args:
        share: Of the training time that the optimizer takes, 0 to 1.
    """
    return 0.3 + 0.4 * share, 0.5 + 0.45 * share, 0.95


def fusing(window: Window) -> Fusing | None:
    """Return what fusing the optimizer would save; None where that is little, or it cannot be fused."""
    info, spent_s = window.spent.optimizer, window.spent.bucket_s("optimizer")
    if info is None or not spent_s or info.fused or not info.may_fuse or info.kind not in KINDS:
        return None
    share_pct = window.ledger.training_share_pct(spent_s)
    if share_pct is None or share_pct < LEAST_PCT or window.device.pace_s is not None:
        return None
    least, usual, most = saves(share_pct / 100.0)
    gain = gain_without(window, usual * spent_s, least=least / usual, most=most / usual)
    advice = Advice.of(
        said(f"Set fused=True in torch.optim.{info.kind}", window.facts, Setting.FUSE),
        expect=f"One call goes over all numbers once, where {share_pct:.0f} % of the time went.",
        limit="Results differ by rounding; not for sparse gradients.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )
    return Fusing(info, spent_s, share_pct, usual * spent_s, advice)
