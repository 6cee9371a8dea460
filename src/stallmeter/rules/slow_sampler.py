"""The sampler keeps the loop waiting.

**What it means.** A DataLoader asks its sampler for the next indices on the training thread, however many workers there
are. A sampler that sorts, groups or draws in Python for every batch holds up the training there, and no worker helps.

**Evidence.** `code.sampler_share`: share of the wait for data, 0 to 1, in which looks at the training thread's stack
find it in the sampler, times the wait's share of the training time in percent, from the ledger.

**Advice.** Prepare the order once an epoch, with numpy or torch, instead of once a batch. Keep what it is made of in
arrays, not in dicts and lists. More workers do not help.

**When it is wrong.** Only loaders of torch are known to ask like this. An order that takes long once, at the beginning
of an epoch, is part of the epoch's start.

**References.** PyTorch, `torch.utils.data`: the sampler runs in the main process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSampler:
    """Fires when most of the wait for data is the sampler's own work."""

    id: ClassVar[str] = "slow-sampler"
    title: ClassVar[str] = "The sampler keeps the loop waiting"
    needs: ClassVar[tuple[str, ...]] = ("spent.data_wait_share_pct", "steps.data_wait_s", "ledger.training_s")
    optional: ClassVar[tuple[str, ...]] = ("code.sampler_share",)
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    critical_pct: float = threshold(20.0, "%", "XProf calls a program highly input-bound from 20 %")
    most: float = threshold(0.5, "1", "Most of the wait; our choice")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the sampler's part of the wait with the thresholds."""
        part, wait, step = window.code.sampler_share, window.spent.data_wait_share_pct or 0.0, window.steps.data_wait_s
        if part is None or part < self.most or step is None or part * wait < self.warn_pct:
            return None
        lost = part * (window.spent.bucket_s("data_wait") or 0.0)
        gain = gain_without(window, lost, least=0.85, most=1.1)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if part * wait >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{part * wait:.0f} % of the training time went into the next indices, "
            f"{1e3 * part * step.mean:.1f} ms a step, on the training thread.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.85,
            evidence=(
                Evidence("sampler, share of training time", part * wait, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("sampler, share of the wait for data", part, "1", self.most, "our choice"),
            ),
            advice=(
                Advice.of(
                    "Make the sampler's order once an epoch, not once a batch.",
                    expect="Nearly all of this time is saved.",
                    limit="More workers do not help: the sampler runs on the training thread.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Use numpy arrays or tensors in the sampler, not dicts and lists."),
            ),
        )
