"""A part of the model that learns nothing makes the same of the same item in each epoch.

**What it means.** A frozen backbone with a head that is trained, a teacher, an encoder in whose latent space a model is
trained, a reference model: for an item that is not changed at random it returns the same in each epoch. Who keeps that
pays for it once.

**Evidence.** `spent.tensors.fixed_features`: in some steps of several epochs, the seconds of modules through which
nothing is trained, called in training steps. Items are known again by some of the numbers that such a module is given:
how many were met again of those that had to be, if nothing changes them between epochs. Only modules count that made
the same of them. So an augmentation, dropout, statistics of a batch, and weights that follow a trained model are
noticed wherever they are. `ledger.epochs`: in all but one of them the time is saved.

**Advice.** Call it once for each item before the training, and have the dataset return what it made.

**When it is wrong.** Where the items are to be changed at random later, or the part is to be trained later. Where an
epoch is only a part of the data, the first time takes longer. What was made has to be kept somewhere. Batches that lie
on a GPU are not read, and nothing is said. What is called by another method than the module itself is seen as far as
modules within it are called.

**References.** PyTorch's tutorial on transfer learning ("ConvNet as fixed feature extractor"). Hugging Face TRL's
`precompute_ref_log_probs`, and the caching of latents in trainers of diffusion models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records import FixedFeatures as Found
from ..records.diagnosis import Advice, Diagnosis, Evidence, Location
from ..window import Window
from ..workers.gains import FIX_SAVES, Gain, gain_without
from .functions import severity
from .rule import threshold

LEAST = 0.75
"""Times these seconds that are saved at least: what was made must be read. Our choice."""

OF_ITEMS = 0.5
"""Part of the loop's own time for items that is spared as a rule: numbers are read in the place of pictures, say. Our
choice; `python -m benchmarks.faults.frozen` holds what is promised against what is won."""

_SURE = 1.28
"""Standard errors of a count that is left to chance, in 8 of 10 cases: as many are met again as chance brings."""

MOST = FIX_SAVES[1]
"""Times these seconds that are saved at the most, items and validations left out: what the calls put into the CPU's
caches slows the rest as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedFeatures:
    """Fires when much of the steps makes what was made of the same items an epoch before."""

    id: ClassVar[str] = "fixed-features"
    title: ClassVar[str] = "What learns nothing makes the same of each item in every epoch"
    needs: ClassVar[tuple[str, ...]] = (
        "ledger.epochs",
        "ledger.record",
        "ledger.training_s",
        "spent.tensors.fixed_features",
    )
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "ledger.wall_s", "loader.num_workers", "spent.step_work_s")

    least_items: float = threshold(40.0, "items", "That had to be met again; our choice: few tell little")
    again_pct: float = threshold(
        92.0, "%", "Of these, less what is chance; our choice: a tenth that is flipped makes 82"
    )
    warn_pct: float = threshold(10.0, "%", "Of the training's time; our choice: worth a change of the program")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what is made again with the thresholds."""
        found, record, epochs = window.spent.tensors.fixed_features, window.ledger.record, window.ledger.epochs or 0
        if found is None or record is None or epochs < 2 or not found.call_s or window.device.pace_s is not None:
            return None
        again_pct = 100.0 * min(1.0, found.again / found.expected) if found.expected else 0.0
        by_chance_pct = _SURE * 100.0 / math.sqrt(max(1.0, found.expected))
        if found.expected < self.least_items or again_pct + by_chance_pct < self.again_pct:
            return None
        lost_s = found.call_s * record.steps * (epochs - 1) / epochs
        pct = window.ledger.training_share_pct(lost_s)
        if pct is None or pct < self.warn_pct:
            return None
        gain = _gain(window, lost_s, (epochs - 1) / epochs)
        one = found.modules < 2
        name = f"{found.name} learns nothing, and makes" if one else "Layers that learn nothing make"
        work_s = window.spent.step_work_s
        of_steps = f", {100.0 * found.call_s * record.steps / work_s:.0f} % of what steps do" if work_s else ""
        return Diagnosis(
            rule=self.id,
            severity=severity(pct, self.warn_pct, self.critical_pct),
            title=f"{name} the same of each item in every epoch",
            summary=f"{'It takes' if one else 'They take'} {1e3 * found.call_s:.3g} ms of a step{of_steps}. "
            f"Of {found.expected:.0f} items that had to be met again {again_pct:.0f} % were, unchanged.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            culprit=found.name or None,
            location=_location(found, pct),
            evidence=(
                Evidence("met again, of the items that had to be", again_pct, "%", self.again_pct, "our choice"),
                Evidence("items that had to be met again", found.expected, "items", self.least_items, "our choice"),
                Evidence("calls in a step", found.call_s, "s"),
                Evidence("epochs", float(epochs), "epochs"),
            ),
            advice=(
                Advice.of(
                    f"Call {found.name} once for each item, and keep what it returns."
                    if one
                    else "Call these layers once for each item, and keep what they return.",
                    expect=f"They are computed in one epoch instead of {epochs}; later ones read what was kept.",
                    limit="Not where items are to be changed at random, or these layers to be trained, later.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
            supersedes=("compute-bound",),
        )


def _gain(window: Window, lost_s: float, later: float) -> Gain:
    """Return what is won: items whose features are kept need not be made, nor evaluated anew.

    Args:
        window: Of the run.
        lost_s: Seconds of the calls after the first epoch.
        later: Part (0 to 1) of the epochs that comes after the first: no more than that can be won.
    """
    spent, training_s = window.spent, window.ledger.training_s or 0.0
    wait_s = later * (spent.bucket_s("data_wait") or 0.0)
    validation_s = (spent.bucket_s("validation") or 0.0) * min(1.0, lost_s / (training_s or lost_s))
    usual_s = lost_s + (wait_s * OF_ITEMS if window.loader.num_workers == 0 else 0.0)
    most_s = max(usual_s, min(MOST * lost_s + wait_s + validation_s, later * training_s))
    return gain_without(window, usual_s, least=LEAST * lost_s / usual_s, most=most_s / usual_s)


def _location(found: Found, pct: float) -> Location | None:
    return Location(found.file, found.line, found.function, pct) if found.file else None
