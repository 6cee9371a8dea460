"""Training stands still while checkpoints are written.

**What it means.** Saving a checkpoint copies all weights, and usually the optimizer's state, to storage. The loop waits
until that is done, so training stalls periodically, each time for as long as the storage takes.

**Evidence.** `checkpoint` bucket of the wall-clock ledger in seconds, as a share of training time in percent.
`steps.save_s`: how long steps with a checkpoint in them were held by it, in seconds, median.

**Advice.** Save less often, as long as losing the work since the last checkpoint stays bearable. Leave the optimizer's
state out (`save_weights_only=True`) when no run has to resume from the file. Write to a local disk first and copy
later. Write in the background (Lightning's `AsyncCheckpointIO`), which needs memory for a second copy of the state.

**When it is wrong.** A short run that saves once at its end spends a large share on it that a long run would not. On a
GPU the save waits for queued work, so a part of its time is compute.

**References.** CheckFreq (Mohan et al., FAST '21) chooses the interval so that checkpoints cost 3.5 % at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import Setting, said
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStall:
    """Fires when saving checkpoints takes a large share of the training time."""

    id: ClassVar[str] = "checkpoint-stall"
    title: ClassVar[str] = "Training stands still while checkpoints are written"
    bucket: ClassVar[str] = "checkpoint"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "ledger.wall_s")
    optional: ClassVar[tuple[str, ...]] = ("facts.framework", "steps.save_s")

    warn_pct: float = threshold(5.0, "%", "above the 3.5 % to which CheckFreq (FAST '21) bounds checkpoints")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of checkpoints with the thresholds."""
        lost_s, save = window.spent.bucket_s("checkpoint"), window.steps.save_s
        share = None if lost_s is None else window.ledger.training_share_pct(lost_s)
        if lost_s is None or share is None or share < self.warn_pct or lost_s < self.min_lost_s:
            return None
        # A checkpoint now and then stays.
        gain = gain_without(window, lost_s, least=0.85, in_steps=False)
        each = f", {save.median:.2f} s at a time" if save is not None else ""
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"Saving checkpoints took {lost_s:.1f} s, {share:.0f} % of the training time{each}.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.9,
            evidence=(
                Evidence(
                    "checkpoints, share of training time",
                    share,
                    "%",
                    self.warn_pct,
                    "CheckFreq (FAST '21) bounds checkpoints to 3.5 %",
                ),
                *((Evidence("a step's stall for a checkpoint, median", save.median, "s"),) if save is not None else ()),
            ),
            advice=(
                Advice.of(
                    said("Save less often", window.facts, Setting.SAVE_LESS_OFTEN, ", after more steps or epochs"),
                    expect="Half as many take half the time, a few of them hardly any.",
                    limit="A crash loses the work since the last checkpoint.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    said("Leave the optimizer's state out", window.facts, Setting.SAVE_WEIGHTS_ONLY),
                    limit="Not where a run must resume from the file.",
                ),
                Advice.of("Write to a local disk first, and copy to the remote storage afterwards."),
                Advice.of(
                    said(
                        "Write in the background", window.facts, Setting.SAVE_IN_BACKGROUND, ", from a copy in memory"
                    ),
                    limit="It needs memory for a second copy of the state.",
                ),
            ),
        )
