"""Copying batches to the device takes a large part of the step.

**What it means.** Between two batches the device waits while the next one is copied into its memory. On the
training's stream a copy and the computation that needs it run one after the other. Often more is copied than needed:
images as 32-bit floats, masks as one-hot vectors, whole frames of which a part is used.

**Evidence.** `device.h2d_share_pct`: host-to-device copies as a share of the steps' device time in percent, between
CUDA events before and after the copy. In Lightning this includes the batch-transfer hooks.

**Advice.** Copy what came off the disk (8-bit images, class indices) and convert on the device. Copy the next batch on
a stream of its own while this one is computed. Keep what never changes on the device. More workers do not help.

**When it is wrong.** Where `on_after_batch_transfer` augments on the device, its kernels count as copy. A copy on a
stream of the program's own is not seen, and need not be.

**References.** Chaim Rand, "TensorFlow Performance Analysis" (2020): input blown up ten-fold. XProf counts the copy as
input time, moderate from 5 % and high from 20 % of a step. TraceML: 10 % and 20 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBound:
    """Fires when host-to-device copies take a large share of the steps' device time."""

    id: ClassVar[str] = "transfer-bound"
    title: ClassVar[str] = "Copying batches to the device takes a large part of the step"
    bucket: ClassVar[str] = "h2d"
    needs: ClassVar[tuple[str, ...]] = ("device.h2d_share_pct", "ledger.training_s", "ledger.wall_s")
    family: ClassVar[str] = "transfer"

    warn_pct: float = threshold(10.0, "%", "TraceML warns from 10 % of a step; XProf calls 5 % moderate")
    critical_pct: float = threshold(20.0, "%", "TraceML and XProf: high from 20 % of a step")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of the copies with the thresholds."""
        share, training = window.device.h2d_share_pct, window.ledger.training_s
        if share is None or training is None or share < self.warn_pct:
            return None
        lost = min(share / 100.0 * training, window.ledger.wall_s or 0.0)
        # Bytes in place of floats are a quarter; half-floats or fewer columns save less.
        gain = gain_without(window, 0.75 * lost, least=0.4, most=1.2, on_device=True)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{share:.0f} % of the steps' device time went into copying batches from the host.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            evidence=(Evidence("host-to-device copy, share of device time", share, "%", self.warn_pct, "TraceML"),),
            advice=(
                Advice.of(
                    "Copy the compact form (8-bit images, class indices); convert to floats on the device.",
                    expect="A quarter of the bytes where images were floats.",
                    limit="More workers do not help.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Copy the next batch on another CUDA stream while this one is computed."),
                Advice.of("Crop, resize and drop what is unused before the copy; keep constants on the device."),
            ),
        )
