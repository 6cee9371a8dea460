"""A function that steps call returns the same each time.

**What it means.** A graph's matrix that is made ready in each forward pass, a table of positions, a mask, anchors,
windows: what depends on no batch, on nothing that is learnt and on no random number is the same in each step. Who makes
it once pays for it once.

**Evidence.** `spent.tensors.same_results`: in a few steps, what functions of the program's own returned in which looks
at the training thread's stack had found much of the time. All numbers that they returned were the same, in each call of
each of these steps, and no gradients went through them. What their calls take was timed there, what hearing of them
costs left out.

**Advice.** Call it once, before the training, and keep what it returns; in a module with `register_buffer`. Where it
depends on a shape only, keep one for each shape.

**When it is wrong.** Where it changes later: with an epoch, with a schedule. Where its caller writes into what it
returns, a copy is needed each time. A function that does something beside what it returns must still be called. What
lies on a GPU is not read, and nothing is said.

**References.** PyTorch's documentation of `torch.nn.Module.register_buffer`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Location
from ..window import Window
from ..workers.gains import gain_without
from .functions import severity
from .rule import threshold

OF_IT = (0.7, 1.15)
"""Times these seconds that are saved at the least, and at the most: what was timed were a few steps; our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameResult:
    """Fires when a tenth of the training goes into a function that returns the same in each step."""

    id: ClassVar[str] = "same-result"
    title: ClassVar[str] = "A function returns the same in each step"
    needs: ClassVar[tuple[str, ...]] = ("ledger.record", "ledger.training_s", "spent.tensors.same_results")
    optional: ClassVar[tuple[str, ...]] = ("code.beside_model", "code.within_model", "ledger.wall_s")

    suspect_pct: float = threshold(8.0, "%", "Of looks into the steps; our choice: less is not worth a look")
    min_samples: float = threshold(10.0, "looks", "our choice, of looks that met such a function: fewer tell little")
    warn_pct: float = threshold(8.0, "%", "Of the training's time; our choice: worth a line of the program")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    min_steps: float = threshold(3.0, "steps", "our choice: two may be the same by chance")

    def suspects(self, window: Window) -> Collection[tuple[str, str]] | None:
        """Return file and name of the program's functions that hold enough of the steps; None: not known."""
        within, beside = window.code.within_model, window.code.beside_model
        if within is None and beside is None:
            return None
        known = [(one.spot, one.samples, one.share_of_steps_pct) for one in within or ()]
        known += [(one.spot, one.samples, one.share_of_steps_pct) for one in beside or ()]
        if sum(samples for _, samples, _ in known) < self.min_samples:
            return None if known else ()
        return {(spot.file, spot.function) for spot, _, pct in known if spot.own and pct >= self.suspect_pct}

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what such a function takes with the training's time."""
        found, record = window.spent.tensors.same_results, window.ledger.record
        if found is None or record is None or not found.function or found.steps < self.min_steps:
            return None
        lost_s = found.call_s * record.steps
        pct = window.ledger.training_share_pct(lost_s)
        if pct is None or pct < self.warn_pct or lost_s < self.min_lost_s:
            return None
        gain = gain_without(window, lost_s, least=OF_IT[0], most=OF_IT[1])
        times = "" if found.calls < 2 else f", called {found.calls} times"
        return Diagnosis(
            rule=self.id,
            severity=severity(pct, self.warn_pct, self.critical_pct),
            title=f"{found.function} returns the same in each step",
            summary=f"It takes {1e3 * found.call_s:.3g} ms of a step{times}, {min(100.0, pct):.0f} % of the training "
            f"time. All its {found.numbers:,} numbers were the same in {found.steps} steps.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            culprit=found.function,
            location=Location(found.file, found.line, found.function, min(100.0, pct)),
            evidence=(
                Evidence("a function that returns the same, of training time", pct, "%", self.warn_pct, "our choice"),
                Evidence("its calls in a step", found.call_s, "s"),
                Evidence("steps in which it returned the same", float(found.steps), "steps"),
                Evidence("numbers that it returns", float(found.numbers), "numbers"),
            ),
            advice=(
                Advice.of(
                    f"Call {found.function} once, before the training, and keep what it returns.",
                    expect="Its time is gone from every step but the first.",
                    limit="Clone it where it is written into; call it anew where an epoch or a schedule changes it.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
            supersedes=("compute-bound",),
        )
