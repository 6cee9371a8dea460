"""A callback holds up training.

**What it means.** Callbacks and the module's own hooks run in the training loop, between the steps. While one of them
works, no batch is computed. This one takes more of the training time than a helper should.

**Evidence.** `ledger.callbacks_by_name_s`: seconds in each callback, from the wall-clock ledger, as a share of training
time in percent. A callback is named by its class, a hook of the module as `Model.on_train_batch_end`. Checkpoints,
loggers and validation that a callback starts are booked under their own names, and stallmeter's own hooks are left out.

**Advice.** Run it less often: every N steps, batches of a validation, or epochs. Merge callbacks that read the same
tensors. Do not read values off the device in each step (`.item()`, `.cpu()`, printing a tensor). Work that needs no
current weights, such as writing images, can go to a thread; what must see the weights of this very step cannot.

**When it is wrong.** On a GPU the first call that reads a value waits for all work queued before it. A callback with
`.item()` in it is then charged with compute time; without it the step would be longer by a part of that. In runs of a
few seconds, what a callback does once at the start weighs too much.

**References.** XProf calls other host work in a step moderate from 3 % and high from 15 %, debug printing from 5 %
(`op_stats_to_input_pipeline_analysis.cc`, `smart_suggestion/constants.h`). Keras warns of a callback that is slow
compared to the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records import OWN_NAME
from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import FIX_SAVES, gain_without
from .frameworks import has_gpu
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCallback:
    """Fires when one callback, or all of them together, take a large share of the training time."""

    id: ClassVar[str] = "slow-callback"
    title: ClassVar[str] = "A callback holds up training"
    bucket: ClassVar[str] = "callbacks"
    needs: ClassVar[tuple[str, ...]] = ("ledger.callbacks_by_name_s", "ledger.training_s", "ledger.wall_s")
    optional: ClassVar[tuple[str, ...]] = ("gpu.count", "facts.accelerator")

    warn_pct: float = threshold(5.0, "%", "XProf reports debug printing in the step from 5 %")
    together_pct: float = threshold(10.0, "%", "our choice: twice the share from which a single callback is reported")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the largest callback, then all of them together, with the thresholds."""
        named, bucket_s = window.ledger.callbacks_by_name_s, window.spent.bucket_s("callbacks")
        if named is None or bucket_s is None:
            return None
        ranked = sorted(((s, name) for name, s in named.items() if name != OWN_NAME), reverse=True)
        total_s = max(0.0, bucket_s - named.get(OWN_NAME, 0.0))
        largest_s, name = ranked[0] if ranked else (0.0, "")
        alone = (window.ledger.training_share_pct(largest_s) or 0.0) >= self.warn_pct
        lost_s = min(largest_s, total_s) if alone else total_s
        share, limit = window.ledger.training_share_pct(lost_s), self.warn_pct if alone else self.together_pct
        if share is None or share < limit or lost_s < self.min_lost_s:
            return None
        top = ", ".join(f"{n} {s:.1f} s" for s, n in ranked[:3]) or "none of them named"
        source = "XProf reports debug printing from 5 %" if alone else "our choice: twice the share of a single one"
        gain = gain_without(window, lost_s, least=FIX_SAVES[0], most=FIX_SAVES[1])
        bar = "ProgressBar" in name and alone
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=f"{name} holds up training" if alone else "Callbacks together hold up training",
            summary=f"{name} took {lost_s:.1f} s, {share:.0f} % of the training time."
            if alone
            else f"{len(ranked)} callbacks took {share:.0f} % of the training time, none much alone: {top}.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.9,
            culprit=name if alone else None,
            evidence=(
                Evidence("callbacks, share of training time", share, "%", limit, source),
                *(Evidence(f"time in {n}", s, "s") for s, n in ranked[:3]),
            ),
            advice=(
                Advice.of(
                    f"Let {name} draw less often: refresh_rate=50."
                    if bar
                    else "Run it less often, every N steps, batches or epochs, or make it cheaper.",
                    expect="Most of this time is saved.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Merge callbacks that read the same tensors; drop those whose output nobody reads."),
                *(
                    (Advice.of("Collect values on the device and read them once, not with .item() each step."),)
                    if has_gpu(window)
                    else ()
                ),
                Advice.of("Move work that needs no current weights, such as writing images, into a thread."),
            ),
        )
