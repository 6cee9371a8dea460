"""A debugging mode of torch is on, and slows each step down.

**What it means.** Anomaly detection (`torch.autograd.set_detect_anomaly`, Lightning's `detect_anomaly=True`) notes the
stack of calls of every operation, and looks for NaN in every gradient. A profiler notes every operation. Both are there
to find a mistake once, and are easily left on.

**Evidence.** `device.modes.anomaly_s` and `device.modes.profiler_s`: seconds of the run in which they were on, asked of
torch about once a second. `code.torch.tracing_s`: seconds of the steps in which torch notes stacks of calls, from looks
at the training thread's own. That is the part which can be seen. The search for NaN goes over every gradient: where
operations are small it takes most of what is left of a step, and more of it the more stacks are noted.

**Advice.** Switch the mode off. Look for an anomaly in the few steps that have one; let a profiler record a few steps.

**When it is wrong.** Where a run is there to be debugged. What a profiler costs is not known, so that it informs and
has no gain: some note little. Who switches a mode on for single steps, between two polls, may be missed.

**References.** PyTorch's documentation of autograd: "This mode should be enabled only for debugging as the different
tests will slow down your program execution."
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold

NOTING, SEARCHING, SMALL = 1.0, 0.8, 0.06
"""Of the time in which looks find it note stacks, how much anomaly detection costs. Of the rest, how much it takes
where operations are small, and the share of noting at which that is nearly reached. Fitted to 24 cases of six small
networks on a CPU (`python -m benchmarks.faults.anomaly`), of which anomaly detection took 39 to 94 %."""

LEAST, MOST = 0.7, 1.3
"""Of that, 8 of 10 times; our choice: it holds all 24 cases, to which it was fitted."""


def cost_share(seen: float) -> float:
    """Return the share of the training that anomaly detection takes.

    Args:
        seen: Share of the training in which looks find torch note stacks of calls.
    """
    return NOTING * seen + (1.0 - seen) * SEARCHING * (1.0 - math.exp(-seen / SMALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugMode:
    """Fires when anomaly detection or a profiler of torch's is on for most of the training."""

    id: ClassVar[str] = "debug-mode"
    title: ClassVar[str] = "A debugging mode of torch slows each step down"
    needs: ClassVar[tuple[str, ...]] = ("device.modes.anomaly_s", "device.modes.profiler_s", "ledger.training_s")
    optional: ClassVar[tuple[str, ...]] = ("code.torch.tracing_s", "device.pace_s", "ledger.wall_s")

    on: float = threshold(0.5, "1", "Most of the training; our choice")
    warn_pct: float = threshold(5.0, "%", "as for a callback that takes this much, which XProf reports")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    most: float = threshold(0.9, "1", "Of the training time; our choice: a larger loss is not believed")
    largest: float = threshold(0.95, "1", "The same of the interval's upper end: the largest that was measured")

    def check(self, window: Window) -> Diagnosis | None:
        """Ask for how long the modes were on, and what looks saw of it."""
        training_s, anomaly_s, profiler_s = (
            window.ledger.training_s,
            window.device.modes.anomaly_s,
            window.device.modes.profiler_s,
        )
        if not training_s or anomaly_s is None or profiler_s is None:
            return None
        if anomaly_s >= self.on * training_s:
            return self._of_anomalies(window, training_s, anomaly_s)
        return self._of_a_profiler(training_s, profiler_s) if profiler_s >= self.on * training_s else None

    def _of_anomalies(self, window: Window, training_s: float, on_s: float) -> Diagnosis:
        seen_s = None if window.device.pace_s is not None else window.code.torch.tracing_s
        lost_s = training_s * min(self.most, cost_share(min(1.0, (seen_s or 0.0) / training_s)))
        share = 100.0 * lost_s / training_s
        warns = share >= self.warn_pct
        most = min(MOST, self.largest * training_s / lost_s) if lost_s else MOST
        gain = gain_without(window, lost_s, least=LEAST, most=most)
        usual = Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING
        return Diagnosis(
            rule=self.id,
            severity=usual if warns else Severity.INFO,
            title=self.title,
            summary=f"torch.autograd.set_detect_anomaly is on for {on_s:.0f} s: "
            + (f"it takes about {share:.0f} % of the training time." if warns else "what it costs was not seen."),
            time_lost_s=lost_s if warns else 0.0,
            share_pct=(window.ledger.share_pct(lost_s) or 0.0) if warns else 0.0,
            confidence=0.8,
            culprit="detect_anomaly",
            evidence=(
                Evidence("anomaly detection on", on_s, "s", self.on * training_s, "our choice"),
                *(() if seen_s is None else (Evidence("seen to note stacks of calls", seen_s, "s"),)),
            ),
            advice=(
                Advice.of(
                    "Call torch.autograd.set_detect_anomaly(False); in Lightning set detect_anomaly=False.",
                    expect="Steps without the search; where a NaN has come it can be switched on again.",
                    gain_pct=gain.pct if warns else None,
                    interval_pct=gain.interval_pct if warns else None,
                ),
                Advice.of("Check the loss alone: torch.isfinite(loss) each N steps."),
            ),
            supersedes=("compute-bound",),
        )

    def _of_a_profiler(self, training_s: float, on_s: float) -> Diagnosis:
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title="A profiler of torch records every step",
            summary=f"It was active in {100.0 * min(1.0, on_s / training_s):.0f} % of the training time; what that "
            "costs is not known.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.8,
            culprit="torch.profiler",
            evidence=(Evidence("profiler active", on_s, "s", self.on * training_s, "our choice"),),
            advice=(
                Advice.of(
                    "Give the profiler a schedule of a few steps: torch.profiler.schedule(…, repeat=1).",
                    expect="Steps that nothing is noted of.",
                ),
            ),
            supersedes=("compute-bound",),
        )
