"""Networks are trained in turn, and one's step computes gradients of the other that are cleared before they are used.

**What it means.** A generator and a discriminator, an actor and a critic: each has an optimizer of its own. The loss of
one reaches the other through what that has made. Its gradients are computed as well, and its own `zero_grad` clears
them before its own step. Or nobody clears them: a target network, or a teacher, that follows the trained one by means
of its weights is in no optimizer, and its gradients are added up for ever.

**Evidence.** `spent.tensors.dropped_gradients`: by torch's hooks, in some six steps of each optimizer, when each
parameter gets its gradient, and which of these are gone by the time of its own optimizer's step. What a gradient takes
is the time since the one before it in the same backward pass. *Beneath*: nothing that is used depends on it, so that
`detach()` saves all of it. *Above*: gradients that are used pass through that part; only those of its own weights are
in vain. On a GPU (`device.pace_s`) hooks time launches: then it is their share of the steps' work
(`spent.step_work_s`).

**Advice.** `detach()`, or `torch.no_grad()` around what makes the input or the target; `requires_grad_(False)` on a
part that gradients must pass through. What is saved is a little more than was seen, because the layer above passes
nothing on then and the forward pass keeps nothing.

**When it is wrong.** Where the program reads these gradients itself. Where the two are meant to be trained together,
and a `zero_grad` in the wrong place clears what was meant to count. It abstains where a gradient is replaced between
backward pass and step, as buckets of DDP do, and where checkpoints recompute a part within a backward pass. Where
gradients are zeroed in place (`set_to_none=False`) nothing is seen.

**References.** PyTorch's notes on autograd, "Locally disabling gradient computation", and its tutorial on DCGAN, which
detaches the generator's samples. Goodfellow et al., Generative Adversarial Nets, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records import DroppedGradients as Found
from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import Gain, gain_without
from .rule import BACKWARD, MOST_OF_A_STEP, threshold

LEAST_PCT = 10.0
"""Share of training time that must be saved."""

BENEATH = (0.85, 1.25, 1.9)
"""Least, usual and most that is saved by a detach, as multiples of what such gradients take. Our measurement,
benchmarks/faults/detach: 1.1 to 1.9."""

ABOVE = (0.3, 0.55, 1.1)
"""The same of a part that gradients must pass through: 0.4 to 1.2."""

BESIDE = (0.3, 0.95, 1.6)
"""The same where no optimizer has that part: it may lie beside what is trained, as a teacher does, and go altogether,
or above it. Our choice between both; one program of ours saved 0.9."""

ON_DEVICE = (0.6, 1.4)
"""Times the least and the most where launches were timed: our choice, not measured."""


ALSO_PCT = 3.0
"""Share of training time from which the smaller of two kinds is told of, too; our choice."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Gradients that are dropped and can be left out in one way."""

    part: str
    during: str
    seconds: float
    """Of a step."""
    saved_s: float
    """Of the window."""
    gain: Gain
    is_beneath: bool
    is_trained: bool

    def advice(self) -> Advice:
        part = self.part or ("the one network" if self.is_beneath else "what is not trained")
        during = self.during or "the other"
        return Advice.of(
            f"Detach what {part} makes where {during} is trained."
            if self.is_beneath
            else f"Call requires_grad_(False) on {part} while {during} is trained."
            if self.is_trained
            else f"Call requires_grad_(False) on {part}: no optimizer has it.",
            expect="The backward pass ends there: detach() the tensor, or make it in torch.no_grad()."
            if self.is_beneath
            else "Gradients pass through it, and those of its own weights are left out; set it to True after."
            if self.is_trained
            else "Its own gradients are left out, and what passes through it is not.",
            limit="Where you read these gradients yourself, or one loss is meant to train both."
            if self.is_beneath
            else "Where you read these gradients yourself.",
            gain_pct=self.gain.pct,
            interval_pct=self.gain.interval_pct,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGradients:
    """Fires when gradients that are computed in another network's step, and dropped, take a tenth of the time."""

    id: ClassVar[str] = "dropped-gradients"
    title: ClassVar[str] = "Gradients are computed in another network's step, and dropped"
    needs: ClassVar[tuple[str, ...]] = (
        "ledger.training_s",
        "ledger.record",
        "spent.tensors.dropped_gradients",
        "spent.step_work_s",
    )
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "ledger.wall_s")

    warn_pct: float = threshold(LEAST_PCT, "%", "our choice: it must be worth the change")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what these gradients take with the thresholds."""
        found = window.spent.tensors.dropped_gradients
        if found is None or not found.tensors or not found.backward_s:
            return None
        kinds = sorted(_kinds(window, found), key=lambda kind: -kind.saved_s)
        pct = window.ledger.training_share_pct(kinds[0].saved_s)
        if pct is None or pct < self.warn_pct:
            return None
        first, *others = (kind for kind in kinds if (window.ledger.training_share_pct(kind.saved_s) or 0.0) >= ALSO_PCT)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if pct >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"Each backward pass for {first.during or 'one network'} computes gradients of "
            f"{first.part or 'another'}, too, which nobody uses: {1e3 * first.seconds:.1f} ms of a step.",
            time_lost_s=first.saved_s,
            share_pct=window.ledger.share_pct(first.saved_s) or 0.0,
            confidence=0.7,
            culprit=first.part or None,
            evidence=(
                Evidence("left out, share of training time", pct, "%", self.warn_pct, "our choice"),
                Evidence("dropped gradients that nothing needs, of a step", found.beneath_s, "s"),
                Evidence("dropped gradients on the way to others, of a step", found.above_s, "s"),
                Evidence("all backward passes, of a step", found.backward_s, "s"),
                Evidence("parameters whose gradients are dropped", found.tensors, "1"),
            ),
            advice=(first.advice(), *(kind.advice() for kind in others)),
        )


def _kinds(window: Window, found: Found) -> list[_Kind]:
    """Return what can be left out, by each of the two ways."""
    record, whole_s = window.ledger.record, window.spent.step_work_s or 0.0
    on_device = window.device.pace_s is not None  # then hooks time launches, and their shares are all there is
    above = ABOVE if found.above_trained else BESIDE
    seen = (
        (found.beneath, found.beneath_during, found.beneath_s, BENEATH, True, True),
        (found.above, found.above_during, found.above_s, above, False, found.above_trained),
    )
    kinds = []
    for part, during, seconds, saves, is_beneath, is_trained in seen:
        if on_device:
            spent_s = BACKWARD * whole_s * seconds / found.backward_s
        else:
            spent_s = seconds * (record.steps if record is not None else 0)
        low, usual, high = (min(times * spent_s, MOST_OF_A_STEP * whole_s) for times in saves)
        less, more = ON_DEVICE if on_device else (1.0, 1.0)
        times = (less * low / usual, more * high / usual) if usual else (1.0, 1.0)
        gain = gain_without(window, usual, least=times[0], most=times[1], on_device=on_device)
        kinds.append(_Kind(part, during, seconds, usual, gain, is_beneath, is_trained))
    return kinds
