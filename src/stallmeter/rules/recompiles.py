"""torch.compile compiles the same code again and again.

**What it means.** What was compiled holds for the shapes and values that were seen. For others it is compiled again,
which takes seconds to minutes in which the step stands still: batches of any length, a smaller last batch, a number
that changes from step to step and is taken for a constant, training and evaluation in turn. After eight times torch
gives a function up and runs it uncompiled, without an error.

**Evidence.** `device.compiler.recompilations`: times that code was compiled again, from dynamo's own counters.
`device.compiler.recompile_s`: seconds that took, at the least. Both must come with steps that took longer than the
median in their own work (`steps.body_s`, the warm-up included) by as many seconds: what counts is the smaller of the
two, as a share of the run in percent. Where there is a compilation for every second step or more often, the median one
compiles as well, and the seconds of dynamo's counters count. Where the steps were longer than that by up to a half, the
gain is taken to lie between the two: the counters miss what new code does when it runs first.

**Advice.** Drop the smaller last batch (`drop_last=True`). Have the dimension that changes marked as dynamic
(`torch.compile(model, dynamic=True)`, `torch._dynamo.mark_dynamic`), or pad to a few lengths. Read the reasons with
`TORCH_LOGS=recompiles`.

**When it is wrong.** In a short run a handful of compilations weighs much that a long one never notices: they end when
all shapes have been seen. Compilation that other threads do beside the training costs less than its seconds say.

**References.** PyTorch issues 188150 and 114293. PyTorch, "Dynamic Shapes" and "torch.compile Troubleshooting".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import Gain, gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompiles:
    """Fires when compiling again takes a considerable part of the run, and steps were long for it."""

    id: ClassVar[str] = "recompiles"
    title: ClassVar[str] = "torch.compile compiles the same code again"
    bucket: ClassVar[str] = "compute"
    needs: ClassVar[tuple[str, ...]] = (
        "device.compiler.recompilations",
        "device.compiler.recompile_s",
        "steps.body_s",
        "ledger.wall_s",
    )
    optional: ClassVar[tuple[str, ...]] = ("ledger.record", "ledger.start_s", "ledger.warmup_s", "steps.steady")

    warn_pct: float = threshold(5.0, "%", "as for a callback that takes this much, which XProf reports")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    min_count: float = threshold(3.0, "times", "our choice: one for other shapes and one for evaluation are usual")
    usual: float = threshold(0.5, "a step", "our choice: a median step compiles, too, and tells nothing")
    min_lost_s: float = threshold(1.0, "s", "our choice: less is not worth a change of the program")
    most: float = threshold(1.5, "1", "our choice: dynamo counts part of it; steps longer yet have other causes")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what compiling again took with how much longer steps were."""
        compiler, ledger = window.device.compiler, window.ledger.record
        count, again_s, body = compiler.recompilations, compiler.recompile_s, window.steps.body_s
        if count is None or again_s is None or body is None or ledger is None or count < self.min_count:
            return None
        work_s = _work_s(window)
        longer_s = max(0.0, work_s - body.median * ledger.steps) + (window.ledger.warmup_s or 0.0)
        often = count >= self.usual * ledger.steps
        lost_s = min(again_s, work_s if often else longer_s)
        share = window.ledger.share_pct(lost_s)
        if share is None or share < self.warn_pct or lost_s < self.min_lost_s:
            return None
        start_s = (window.ledger.start_s or 0.0) + (window.ledger.warmup_s or 0.0)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"Code was compiled again {count} times, which took {again_s:.1f} s; "
            + (
                f"there were {ledger.steps} steps, so it is in most of them."
                if often
                else f"steps took {longer_s:.1f} s more than median ones ({body.median * 1e3:.1f} ms of own work)."
            ),
            time_lost_s=lost_s,
            share_pct=share,
            confidence=0.8,
            supersedes=("step-outliers", *(("slow-start",) if again_s >= 0.5 * start_s else ())),
            evidence=(
                Evidence("compiling again, share of the run", share, "%", self.warn_pct, "as for a callback"),
                Evidence("code compiled again", count, "times", self.min_count, "our choice"),
                *(() if often else (Evidence("steps beyond median ones", longer_s, "s"),)),
            ),
            advice=_advice(self._gain(window, lost_s, lost_s if often else longer_s), two_sizes=_has_two_sizes(window)),
        )

    def _gain(self, window: Window, counted_s: float, longer_s: float) -> Gain:
        """Predict it from what dynamo counts, at the least, and from how much longer the steps were, at the most."""
        most_s = max(counted_s, min(longer_s, self.most * counted_s))
        middle_s = (counted_s + most_s) / 2.0
        if not middle_s:
            return gain_without(window, 0.0)
        return gain_without(window, middle_s, least=0.7 * counted_s / middle_s, most=most_s / middle_s)


def _work_s(window: Window) -> float:
    """Seconds of all steps' own work, without what the first ones took beyond others."""
    return window.spent.bucket_s("h2d", "forward", "backward", "compute") or 0.0


def _has_two_sizes(window: Window) -> bool:
    """Whether nearly all batches are of one size, and some of another: the last of each epoch."""
    sizes = [s.samples for s in window.steps.steady or () if s.samples is not None]
    return len(set(sizes)) == 2


def _advice(gain: Gain, *, two_sizes: bool) -> tuple[Advice, ...]:
    drop = Advice.of(
        "Set drop_last=True in the DataLoader.",
        expect="Batches of one size: the smaller last one is not compiled for.",
        limit="Only where other dimensions do not change.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )
    dynamic = Advice.of(
        "Compile for changing sizes: torch.compile(model, dynamic=True), or torch._dynamo.mark_dynamic(batch, dim).",
        expect="One compilation for all sizes.",
        limit="Steady steps may be a little slower.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )
    return (
        *((drop, dynamic) if two_sizes else (dynamic, drop)),
        Advice.of("Pad batches to a few lengths.", expect="No more compilations than lengths."),
        Advice.of("Read why: run once with TORCH_LOGS=recompiles."),
    )
