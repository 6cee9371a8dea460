"""Rare steps take many times longer than the others.

**What it means.** Most steps take about the same time, but now and then one hangs in its own work. It is not waiting
for data, a callback, a logger, a checkpoint or validation: those have rules of their own. Python's garbage collector,
a new input shape that is compiled or autotuned, an allocator that returns memory, a slowed-down clock and a neighbour
on the same device do that.

**Evidence.** `steps.body_s`: time of a step in copy, forward, backward and the loop's own body, in seconds. An outlier
takes `factor` times the median or more. The excess over the median of all outliers, in seconds and as a share of
training time in percent. It is scaled from the sample of steps to the whole run, and never more than the ledger holds.
A single long step may not come again: it informs, and does not warn, from the critical share on.
Passes of Python's collector (`host.garbage`) are `gc-pauses`' to tell where one makes a step long by itself; where each
is a small part of long steps, they come with what runs there.
Long steps while other jobs hold CPUs and the training thread waits for one (`host.loop.held_up`) are those jobs' doing.
The optimizer is left out, because with accumulated gradients it has work in some steps only. So are the first steps.

**Advice.** Collect garbage at a time of your choice. Keep input shapes fixed, or pad to a few sizes. Look at what else
runs on the machine, and at the clock of the GPU, when pauses come at odd times.

**When it is wrong.** Batches of very different size, such as sentences of any length, are long for a good reason. On a
GPU the host's clock sees a stall where it waits for the device, not where it arose.

**References.** SageMaker StepOutlier: 3 standard deviations, 10 outliers forgiven. gpuprof: p99 twice the median, from
20 steps on. Garbage collection as a cause of stragglers: MegaScale (Jiang et al., NSDI '24).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutliers:
    """Fires when a few long steps cost a large share of the training time."""

    id: ClassVar[str] = "step-outliers"
    title: ClassVar[str] = "Rare steps take many times longer than the others"
    needs: ClassVar[tuple[str, ...]] = ("steps.body_s", "ledger.training_s", "ledger.wall_s", "ledger.record")
    optional: ClassVar[tuple[str, ...]] = (
        "code.evaluation",
        "host.garbage.longest_s",
        "host.garbage.step_s",
        "host.loop.held_up",
    )

    warn_pct: float = threshold(5.0, "%", "our choice: as for a callback that takes this much")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    factor: float = threshold(3.0, "x", "our choice: clear of jitter; gpuprof asks for twice the median")
    collected: float = threshold(
        0.5, "1", "our choice: a pass that is most of a long step's excess is what makes it long"
    )
    rare_pct: float = threshold(5.0, "%", "our choice: more steps than these are a pattern, not outliers")
    min_steps: float = threshold(20.0, "steps", "gpuprof judges the spread of steps from 20 on")
    min_outliers: float = threshold(
        2.0, "steps", "our choice: one may not come again and informs; SageMaker forgives 10"
    )

    def check(self, window: Window) -> Diagnosis | None:
        """Weigh the excess of outliers against the training time."""
        body, ledger = window.steps.body_s, window.ledger.record
        found = window.steps.outliers(self.factor, window.host.loop.held_up or ())
        if body is None or found is None or ledger is None or body.count < self.min_steps:
            return None
        excess_s = max(0.0, found.excess_s - self._told_s(window, found.excess_s / max(1, found.count)))
        share = window.ledger.training_share_pct(excess_s)
        rare = found.count <= self.rare_pct / 100.0 * max(ledger.steps, body.count)
        once = found.count < self.min_outliers
        if share is None or share < (self.critical_pct if once else self.warn_pct) or not found.count or not rare:
            return None
        # Of a few rare steps a repeated run has some more or fewer, and of a single one perhaps none.
        spread = 1.28 / math.sqrt(max(1, found.count))
        least, most = (0.0, 1.0) if once else (max(0.3, 1 - spread), 1 + spread)
        gain = gain_without(window, excess_s, least=least, most=most)
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO if once else self._severity(share),
            title="One step took many times longer than the others" if once else self.title,
            summary=f"One of {ledger.steps} steps took {found.longest_s:.1f} s, a median one "
            f"{body.median * 1e3:.1f} ms: {share:.0f} % of the training time. It may not come again."
            if once
            else f"About {found.count} of {ledger.steps} steps took {excess_s:.1f} s more than median steps "
            f"({body.median * 1e3:.1f} ms) would, {share:.0f} % of the training time; "
            f"the longest took {found.longest_s * 1e3:.0f} ms{_comes(found.period)}.",
            time_lost_s=excess_s,
            share_pct=window.ledger.share_pct(excess_s) or 0.0,
            confidence=0.7,
            evidence=(
                Evidence(
                    "excess of long steps, share of training time",
                    share,
                    "%",
                    self.warn_pct,
                    "our choice: as for a callback that takes this much",
                ),
                Evidence("work of a step, median", body.median, "s"),
                Evidence("longest step's work", found.longest_s, "s", self.factor * body.median, "factor times median"),
            ),
            advice=(
                Advice.of(
                    "Find what runs in the long steps: garbage collection, a new shape, another job.",
                    expect=f"Steps of {body.median * 1e3:.3g} ms of work throughout.",
                    limit="Batches of very different size are long for a good reason.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Collect garbage at fixed steps: gc.freeze() after set-up, gc.disable(), gc.collect() each N.",
                    expect="Fewer long steps, at places that you choose.",
                    limit="Only where Python's garbage collector is the cause.",
                ),
                Advice.of(
                    "Keep input shapes fixed, or pad them to a few sizes.",
                    limit="Only where shapes vary: each new one is compiled or autotuned anew.",
                ),
                Advice.of("Compare the times of the long steps with GPU clocks, swapping and other jobs."),
            ),
        )

    def _told_s(self, window: Window, each_s: float) -> float:
        """Return the seconds that are gc-pauses' to tell, or are evaluations, validation-heavy's.

        Passes of the collector that are a small part of each long step come with what runs there, and go with it.
        """
        evaluation, garbage = window.code.evaluation, window.host.garbage
        of_garbage_s = garbage.step_s or 0.0 if (garbage.longest_s or 0.0) >= self.collected * each_s else 0.0
        return of_garbage_s + (evaluation.seconds if evaluation is not None else 0.0)

    def _severity(self, share_pct: float) -> Severity:
        return Severity.CRITICAL if share_pct >= self.critical_pct else Severity.WARNING


def _comes(period: int | None) -> str:
    return "" if period is None else f", and such a one comes each {period} steps"
