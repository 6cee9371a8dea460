"""The first epoch reads from storage, later ones do not.

**What it means.** In the first epoch files come from a disk or over the network. Later the operating system, or the
dataset itself, has them in memory, and the loop hardly waits any more. That is no fault of the loader, and what would
speed up the first epoch does little for the others.

**Evidence.** Of `steps.epochs`: `first_wait_s` and `later_wait_s`, the mean data wait of a steady step in the first
epoch and after it, in seconds; `waits_apart_share`: in nearly all pairs of a block of steps of the first epoch and a
later one the first epoch's waits longer; `first_service_s` and `later_service_s`: batches themselves took longer then,
waiting for a CPU left out. The excess, in seconds and as a share of the first epoch's steps in percent.

**Advice.** Judge the loader by the epochs after the first. Where the first epoch is most of the run: copy the data to a
local disk before it, or store them in few large files.

**When it is wrong.** Where data do not fit into memory each epoch reads them anew: then waits do not fall, and this is
silent. In the first epoch itself nobody can know it. A neighbour who was busy just during the first epoch looks alike
where batches are not timed in the workers.

**References.** NVIDIA DALI issue 1415 and py-lmdb issue 281: the first epoch is slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold

_OF_ALL_EPOCHS = (
    "noisy-neighbour",
    "slow-batches",
    "batch-handoff",
    "too-many-workers",
    "no-workers",
    "fetch-stall",
    "too-few-workers",
    "prep-stall",
    "input-bound",
)
"""Rules that judge all epochs together: most of what they see is over after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdCache:
    """Fires when the first epoch waits for data and later ones do not."""

    id: ClassVar[str] = "cold-cache"
    title: ClassVar[str] = "Only the first epoch waits for its data"
    needs: ClassVar[tuple[str, ...]] = (
        "steps.epochs.first_wait_s",
        "steps.epochs.later_wait_s",
        "steps.epochs.first_step_s",
        "steps.epochs.waits_apart_share",
    )

    optional: ClassVar[tuple[str, ...]] = (
        "steps.epochs.first_steps",
        "steps.epochs.first_read_bytes",
        "steps.epochs.first_service_s",
        "steps.epochs.later_service_s",
    )
    rules_out: ClassVar[str] = "more workers"

    factor: float = threshold(2.0, "x", "our choice: the first epoch waits at least twice as long")
    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    apart_pct: float = threshold(90.0, "%", "our choice: nearly all blocks of the first epoch wait longer")
    most: float = threshold(0.5, "1", "our choice: from this part of all data wait on it is the cause of the wait")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a thought")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the first epoch's waits with later ones'."""
        epochs = window.steps.epochs
        first, later, whole, apart = (
            epochs.first_wait_s,
            epochs.later_wait_s,
            epochs.first_step_s,
            epochs.waits_apart_share,
        )
        if first is None or later is None or not whole or apart is None:
            return None
        share, lost_s = 100.0 * (first - later) / whole, (first - later) * (epochs.first_steps or 0)
        if first < self.factor * later or share < self.warn_pct or lost_s < self.min_lost_s:
            return None
        if 100.0 * apart < self.apart_pct or _batches_took_as_long(window):
            return None
        read = epochs.first_read_bytes
        told = f", and read {read / 1e6:.1f} MB a batch then" if read and read >= 1e4 else ""
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title=self.title,
            summary=f"A step of the first epoch waited {first * 1e3:.1f} ms for its data, later ones {later * 1e3:.1f} "
            f"ms{told}: what would speed up the first epoch does not help the others.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8 if told else 0.6,
            supersedes=_OF_ALL_EPOCHS if lost_s >= self.most * (window.spent.bucket_s("data_wait") or 0.0) else (),
            evidence=(
                Evidence("excess of the first epoch's wait, share of its steps", share, "%", self.warn_pct, "MLPerf"),
                Evidence("data wait in the first epoch, mean", first, "s", self.factor * later, "twice later ones'"),
                Evidence("data wait in later epochs, mean", later, "s"),
            ),
            advice=(
                Advice.of(
                    "Leave the loader as it is, and judge it by later epochs.",
                    expect="Epochs after the first that hardly wait.",
                    limit="As long as the data fit into memory.",
                ),
                Advice.of(
                    "Copy the data to a local disk first, or pack them into few large files.",
                    expect="A first epoch like the others.",
                    limit="Worth it in runs of few epochs.",
                ),
            ),
        )


def _batches_took_as_long(window: Window) -> bool:
    """Whether it was measured that batches of the first epoch took no longer than later ones: no cache then."""
    epochs = window.steps.epochs
    first, later, wait = epochs.first_service_s, epochs.later_service_s, epochs.first_wait_s
    return first is not None and later is not None and wait is not None and first - later < 0.25 * wait
