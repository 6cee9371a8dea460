"""Batches are copied to the device from memory that is not pinned.

**What it means.** With `pin_memory=False` a batch lies in ordinary memory, which the system may move. The driver first
copies it into a buffer of its own, and the host waits meanwhile, also with `non_blocking=True`: the loop cannot run
ahead of the device.

**Evidence.** `loader.pin_memory` of the training loader. `device.h2d_share_pct`: host-to-device copies as a share of
the steps' device time in percent, between CUDA events before and after the copy.

**Advice.** `DataLoader(pin_memory=True)`, and `.to(device, non_blocking=True)` in a plain loop; Lightning copies so by
itself. Not where memory is short: pinned memory cannot be swapped out. Batches of a class of your own need a
`pin_memory` method.

**When it is wrong.** When the collate function or a transfer hook pins batches itself, or batches are made on the
device. How much pinning saves depends on the machine, and on how long the thread that pins takes for a batch: one of
hundreds of megabytes may take it longer than the copy took.

**References.** PyTorch, "A guide on good usage of non_blocking and pin_memory()". NVIDIA, "How to Optimize Data
Transfers in CUDA C/C++". XProf: input takes a moderate part of a step from 5 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinnedMemory:
    """Fires when copies to the device take noticeable time and the loader does not pin its batches."""

    id: ClassVar[str] = "unpinned-memory"
    title: ClassVar[str] = "Batches are copied to the device from memory that is not pinned"
    bucket: ClassVar[str] = "h2d"
    needs: ClassVar[tuple[str, ...]] = (
        "device.h2d_share_pct",
        "loader.pin_memory",
        "ledger.training_s",
        "ledger.wall_s",
    )
    family: ClassVar[str] = "transfer"

    warn_pct: float = threshold(5.0, "%", "XProf: input, copies included, is moderate from 5 % of a step")
    saved_share: float = threshold(0.9, "1", "our measurement (H200): 503 MB took 119 ms, and 9.8 ms once pinned")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the loader's setting and at the share of the copies."""
        share, pinned, training = window.device.h2d_share_pct, window.loader.pin_memory, window.ledger.training_s
        if share is None or training is None or pinned is not False or share < self.warn_pct:
            return None
        lost = min(self.saved_share * share / 100.0 * training, window.ledger.wall_s or 0.0)
        # The host is held up by the copy as well, and the device by the host: more than the copy's time may be saved.
        gain = gain_without(window, lost, least=0.4, most=1.6, on_device=True)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"{share:.0f} % of the steps' device time went into copying batches out of ordinary memory.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.7,
            evidence=(
                Evidence("host-to-device copy, share of device time", share, "%", self.warn_pct, "XProf: 5 %"),
                Evidence("share of it that pinned memory saves", self.saved_share, "1"),
            ),
            advice=(
                Advice.of(
                    "Set DataLoader(pin_memory=True); in a plain loop copy with .to(device, non_blocking=True).",
                    expect="Most of the copy's time is saved.",
                    limit="Not where memory is short: pinned memory cannot be swapped out.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Give a batch that is a class of your own a pin_memory() method."),
            ),
        )
