"""Derivatives of one output are asked for one input at a time.

**What it means.** The loss holds derivatives of what the model makes, by place and time say, as physics-informed
networks have them. `torch.autograd.grad` goes through the whole graph of an output for each call, whatever it is asked
for. With a call for each input it does so once for each, and with `create_graph=True` the backward pass then goes
through all of these.

**Evidence.** `code.torch.repeated_derivatives`: seconds in `torch.autograd.grad`, and how much of them would be spared,
by looks at the training thread's stack and the text of the function around: calls with the same first argument, or
`outputs`, one after the other. Of the backward pass, which has no stack of its own, as large a part is taken to be
spared as of the derivatives, and at the least none.

**Advice.** One call with all inputs, `torch.autograd.grad(u, (x, y, t), ...)`. Or make the inputs one tensor, ask for
its derivative, and take its columns.

**When it is wrong.** Where derivatives are taken for parts of a batch that do not depend on each other `torch.func` is
the better way. Calls in a loop over inputs are not recognised. Beside a GPU operations are only launched: only that
part counts in which it had nothing to do (`spent.idle_in_steps_s`), which was not tried there.

**References.** Raissi, Perdikaris and Karniadakis, "Physics-informed neural networks" (2019). PyTorch's documentation
of `torch.autograd.grad`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import RepeatedDerivatives as Found
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import computes_on_device
from .rule import between_looks, threshold

AT_MOST = 1.3
"""Times what would be spared by the same part of the backward pass that are believed at the most; our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedDerivatives:
    """Fires when a tenth of the training or more would be spared by one call for each output."""

    id: ClassVar[str] = "repeated-derivatives"
    title: ClassVar[str] = "Derivatives of one output are asked for one input at a time"
    needs: ClassVar[tuple[str, ...]] = ("code.torch.repeated_derivatives", "ledger.training_s")
    optional: ClassVar[tuple[str, ...]] = (
        "device.pace_s",
        "facts.accelerator",
        "ledger.wall_s",
        "spent.idle_in_steps_s",
    )

    info_pct: float = threshold(10.0, "%", "our choice: a tenth of the training is worth another way to write it")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    min_samples: float = threshold(5.0, "looks", "our choice: fewer may be chance; the interval is as wide as few are")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what would be spared, with its part of the backward pass, with the training time."""
        found = window.code.torch.repeated_derivatives
        if found is None or found.spot is None or found.samples < self.min_samples or not found.derivatives_s:
            return None
        if computes_on_device(window) and window.device.pace_s is None:  # what the host launches may be hidden there
            return None
        usual = found.seconds + _of_backward_s(found)
        lost_s = window.spent.lost_in_steps_s(usual)
        share = None if lost_s is None else window.ledger.training_share_pct(lost_s)
        if lost_s is None or share is None or share < self.info_pct or lost_s < self.min_lost_s:
            return None
        least, most = between_looks(found.samples, found.seconds / usual, AT_MOST)
        gain = gain_without(window, lost_s, least=least, most=most)
        spot = found.spot
        asked_pct = window.ledger.training_share_pct(found.derivatives_s) or 0.0
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title=f"{spot.function} asks for derivatives of one output one input at a time",
            summary="Each call goes through all of the graph. One call for each output would spare about "
            f"{lost_s:.1f} s, {share:.0f} % of the training time.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            culprit=spot.function,
            location=Location.of(spot, window.ledger.training_share_pct(found.seconds) or 0.0),
            evidence=(
                Evidence("spared, share of training time", share, "%", self.info_pct, "our choice"),
                Evidence("derivatives, share of training time", asked_pct, "%"),
                Evidence("of it spared, the backward pass left out", found.seconds, "s"),
                Evidence("looks that met it", float(found.samples), "looks"),
            ),
            advice=(
                Advice.of(
                    f"Ask for all derivatives of an output in one call ({spot.file}:{spot.line}).",
                    expect="One call goes through the graph once: torch.autograd.grad(u, (x, y, t), ...).",
                    limit="Only inputs of the same output: second derivatives have outputs of their own.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Make the inputs one tensor, and take the columns of its derivative."),
            ),
            supersedes=("compute-bound",),
        )


def _of_backward_s(found: Found) -> float:
    """Return what the backward pass would spare: graphs of derivatives that nobody makes."""
    return found.backward_s * min(1.0, found.seconds / found.derivatives_s)
