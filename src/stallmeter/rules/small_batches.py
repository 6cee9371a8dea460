"""Steps take nearly as long whatever is in them: their batches are small.

**What it means.** Each operation of a step costs some microseconds before it computes anything: the call from Python,
torch's own look at what it is given, the node of the backward pass, a wait for its threads. With few items in a batch
and a small model that is most of a step, and a batch with several times as many takes hardly longer.

**Evidence.** `sizes.smaller`: steps with fewer items than the others have, as the last of each epoch where the items of
a dataset are no multiple of the batch. From the work of both (copy, forward, backward and optimizer, in seconds) comes
the straight line of a step's time over its items, and with it the part that no number of items changes. It is needed of
three steps, each with three quarters of the usual items or fewer, and where nine of ten others have one size.
`ledger.epochs`: of how many steps an epoch is made; `steps.step_time_s`: what the loop and the loader add to the work.

**Advice.** A larger batch, with the learning rate raised along with it. The one that is advised has as many times the
items as leave half of a step to what is fixed, and an epoch some weight updates.

**When it is wrong.** With larger batches weights are updated less often: the model may need more epochs, or another
learning rate, to become as good. So this informs only. What the last step of an epoch does beside its batch, it may
log or save, counts as fixed. On a GPU, where the host's time of a step is not the device's, nothing is said.

**References.** Shallue et al., "Measuring the Effects of Data Parallelism on Neural Network Training" (JMLR 2019):
up to some size, twice the batch needs half the steps. `python -m benchmarks.faults.sizes`: five of twelve small
trainings were promised 1.4 to 1.6 times as many items a second, and won 1.6 to 2.0 times as many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import on_cpu
from .rule import threshold

SAVES_AT_MOST = 1.6
"""Times the predicted seconds that are saved at the most, with what the loop and the loader do for each batch. Our
choice: in benchmarks/faults/sizes.py up to 1.6 times were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallBatches:
    """Says that larger batches would train on more items a second, as smaller ones of the same run show."""

    id: ClassVar[str] = "small-batches"
    title: ClassVar[str] = "Steps take nearly as long with fewer items: the batches are small"
    needs: ClassVar[tuple[str, ...]] = ("ledger.record", "ledger.training_s", "sizes.smaller")
    optional: ClassVar[tuple[str, ...]] = (
        "device.pace_s",
        "facts.accelerator",
        "gpu.count",
        "ledger.epochs",
        "ledger.wall_s",
        "steps.step_time_s",
    )

    fixed: float = threshold(0.6, "1", "our choice: then four times the items take less than three times as long")
    error: float = threshold(0.25, "1", "our choice: of a step's work, so that most of it is fixed at the least")
    most: float = threshold(8.0, "x", "our choice: how far a straight line through two sizes reaches")
    updates: float = threshold(50.0, "steps", "our choice: that an epoch must keep, for a model learns by them")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")

    def check(self, window: Window) -> Diagnosis | None:
        """Ask how much of a step depends on its items."""
        found, record = window.sizes.smaller, window.ledger.record
        if found is None or record is None or not on_cpu(window) or found.error_s > self.error * found.work_s:
            return None
        fixed, epochs = found.fixed_s / found.work_s, max(1, window.ledger.epochs or 1)
        if fixed < self.fixed:
            return None
        times = self._times(fixed, record.steps / epochs)
        if times < 2:
            return None
        lost_s = record.steps * found.fixed_s * (1 - 1 / times)
        share = window.ledger.share_pct(lost_s)
        if share is None or lost_s < self.min_lost_s:
            return None
        # At the least without the error, and for larger operands that leave the caches; at the most what the loop and
        # the loader do for a batch is the same whatever is in it: no more than 0.6 of as much again, for they have
        # items to copy.
        least, step = max(0.3, (1 - found.error_s / found.fixed_s) * 0.8), window.steps.step_time_s
        most = 1 / fixed if step is None else min(max(1.0, step.median / found.fixed_s), SAVES_AT_MOST)
        gain = gain_without(window, lost_s, least=least, most=most)
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title=self.title,
            summary=f"A step with {found.items} items works {1e3 * found.work_s:.3g} ms, one with {found.fewer} "
            f"{1e3 * found.fewer_s:.3g} ms: about {100 * fixed:.0f} % of it is there whatever is in the batch.",
            time_lost_s=lost_s,
            share_pct=share,
            confidence=0.7,
            evidence=(
                Evidence("part of a step that items do not change", fixed, "1", self.fixed, "our choice"),
                Evidence("work of a step, median", found.work_s, "s"),
                Evidence("work of steps with fewer items, median", found.fewer_s, "s"),
                Evidence("such steps", float(found.count), "steps"),
            ),
            advice=(
                Advice.of(
                    f"Try batches of {times * found.items} items, with a higher learning rate.",
                    expect="More items a second.",
                    limit="Weights are updated less often: compare what the model has learnt, not epochs alone.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
            supersedes=("compute-bound",),
        )

    def _times(self, fixed: float, steps: float) -> int:
        """Return by how much batches may grow: a power of two.

        Args:
            fixed: Part of a step that items do not change.
            steps: Of an epoch.
        """
        most = min(self.most, steps / self.updates, fixed / (1 - fixed) if fixed < 1 else math.inf)
        return 2 ** int(math.log2(most)) if most >= 1 else 1
