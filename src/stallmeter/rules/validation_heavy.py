"""Validation takes a large part of the run.

**What it means.** While the model is validated it does not learn. Some validation is needed; here it is run so often,
or on so much data, that it takes a considerable part of the training time.

**Evidence.** `validation` bucket of the wall-clock ledger in seconds: the whole validation loop with its own data wait,
as a share of training time in percent. As lost counts only what exceeds a usual share (`usual_pct`), or all but one
validation an epoch where there are several (`steps.epochs.validations`), if that is more.
`spent.validation_parts_s`: seconds of it in which its own loader was started (the iterator, and the first batch that
workers make) and in which its other batches were waited for. `code.evaluation`: seconds of functions that evaluate the
model in the midst of the steps, from looks at the stack. They compute without gradients (`no_grad`, `inference_mode`),
by the text of the program, and switch the model to that (`model.eval()`), or are named for it.

**Advice.** Validate less often (in Lightning `check_val_every_n_epoch`, `val_check_interval`; other frameworks' names
are said in their runs), unless early stopping or the choice of the best checkpoint needs each one. Validate on a part
of the data. Validation keeps no gradients, so twice the batch size often fits. Where its loader takes most of the time,
that comes first: workers for it, or workers that are kept (`persistent_workers=True`) when each validation starts them
again.

**When it is wrong.** Where the metric of each epoch is the result, as in a study of learning curves, this time is not
lost. In very short runs a single validation weighs too much.

**References.** No tool that we know has such a rule; the shares are our choice, checked with benchmarks/faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import Window
from ..workers.gains import FIX_SAVES, gain_without
from .frameworks import Setting, said
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationHeavy:
    """Fires when validation takes much more of the training time than it usually needs; below a quarter it informs."""

    id: ClassVar[str] = "validation-heavy"
    title: ClassVar[str] = "Validation takes a large part of the run"
    bucket: ClassVar[str] = "validation"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "ledger.wall_s")
    optional: ClassVar[tuple[str, ...]] = (
        "code.evaluation",
        "facts.framework",
        "spent.validation_parts_s",
        "steps.epochs.validations",
    )

    info_pct: float = threshold(15.0, "%", "benchmarks/faults: what it takes beyond a usual tenth is worth 5 %")
    warn_pct: float = threshold(25.0, "%", "our choice: a quarter of the time teaches the model nothing")
    critical_pct: float = threshold(50.0, "%", "our choice: more time goes into validation than into training")
    usual_pct: float = threshold(10.0, "%", "our choice: what a validation set of a tenth of the data costs")
    often: float = threshold(2.0, "times", "our choice: of fewer validations an epoch hardly one can be spared")
    loader_pct: float = threshold(50.0, "%", "our choice: most of the validation is its loader's, not the model's")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    min_samples: float = threshold(20.0, "looks", "a share of all of them is then known to a fifth, one standard error")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of validation with the thresholds."""
        booked_s, evaluation = window.spent.bucket_s("validation"), window.code.evaluation
        in_steps_s = evaluation.seconds if evaluation is not None and evaluation.samples >= self.min_samples else 0.0
        spent_s = (booked_s or 0.0) + in_steps_s if booked_s is not None or in_steps_s else None
        share = None if spent_s is None else window.ledger.training_share_pct(spent_s)
        if spent_s is None or not share or share < min(self.info_pct, self.warn_pct):
            return None
        lost_s, often = self._lost(window, spent_s, share)
        if lost_s < self.min_lost_s:
            return None
        # Between less of it, and none at all.
        inside = in_steps_s > spent_s / 2.0
        gain = gain_without(window, lost_s, least=FIX_SAVES[0], most=spent_s / (lost_s or spent_s), in_steps=inside)
        start_s, wait_s = ((window.spent.validation_parts_s or {}).get(part, 0.0) for part in ("start", "wait"))
        loads = start_s + wait_s >= self.loader_pct / 100.0 * spent_s
        return Diagnosis(
            rule=self.id,
            severity=self._severity(share),
            title=self.title,
            summary=f"Validation took {spent_s:.1f} s, {share:.0f} % of the training time"
            + (f", {_said(start_s, wait_s)}" if loads else "")
            + (f", {often:.0f} times an epoch." if often else f"; {self.usual_pct:.0f} % would be usual."),
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            location=Location.of(evaluation.spot, evaluation.share_pct) if inside and evaluation is not None else None,
            evidence=(
                Evidence(
                    "validation, share of training time",
                    share,
                    "%",
                    self.warn_pct,
                    "our choice: a quarter of the time teaches the model nothing",
                ),
                Evidence("validation", spent_s, "s"),
                *((Evidence("validations an epoch", often, "times", self.often, "our choice"),) if often else ()),
                *((Evidence("of it in the midst of steps", in_steps_s, "s"),) if in_steps_s else ()),
                *(Evidence(f"of it {name}", s, "s") for name, s in ((_START, start_s), (_WAIT, wait_s)) if s > 0),
            ),
            advice=(
                *(_for_its_loader(window, start_s, wait_s) if loads else ()),
                Advice.of(
                    said(
                        "Validate less often", window.facts, Setting.VALIDATE_LESS_OFTEN, ", after more steps or epochs"
                    ),
                    expect=self._expected(spent_s - lost_s, often),
                    limit="Not where early stopping needs each validation.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    said(
                        "Validate on a part of the data between full validations",
                        window.facts,
                        Setting.VALIDATE_ON_LESS,
                    )
                ),
                Advice.of("Double the batch size of validation.", limit="It fits mostly: no gradients are kept."),
            ),
        )

    def _lost(self, window: Window, spent_s: float, share_pct: float) -> tuple[float, float | None]:
        """Return the seconds that are lost, and how often an epoch is validated where all but once is what is lost."""
        unusual_s = spent_s * max(0.0, 1.0 - self.usual_pct / share_pct)
        times = max(1.0, window.steps.epochs.validations or 0.0)
        spared_s = (window.spent.bucket_s("validation") or 0.0) * (1.0 - 1.0 / times)
        return (spared_s, times) if times >= self.often and spared_s > unusual_s else (unusual_s, None)

    def _expected(self, left_s: float, often: float | None) -> str:
        if often:
            return f"Once an epoch it takes {left_s:.2g} s of this run."
        return f"At {self.usual_pct:.0f} % of the training time it costs what is usual."

    def _severity(self, share_pct: float) -> Severity:
        if share_pct < self.warn_pct:
            return Severity.INFO
        return Severity.CRITICAL if share_pct >= self.critical_pct else Severity.WARNING


_START, _WAIT = "starting its workers", "waiting for its data"


def _said(start_s: float, wait_s: float) -> str:
    found = ((s, name) for s, name in ((start_s, _START), (wait_s, _WAIT)) if s >= 0.1 * (start_s + wait_s))
    return " and ".join(f"{s:.1f} s of it {name}" for s, name in sorted(found, reverse=True))


def _for_its_loader(window: Window, start_s: float, wait_s: float) -> tuple[Advice, ...]:
    started = gain_without(window, start_s, least=0.5, in_steps=False)
    waited = gain_without(window, wait_s, least=0.5, in_steps=False)
    keep = Advice.of(
        "Set persistent_workers=True in the validation DataLoader.",
        expect="Workers that start once, not in each validation.",
        limit="The first batch of a validation is still waited for.",
        gain_pct=started.pct,
        interval_pct=started.interval_pct,
    )
    more = Advice.of(
        "Set num_workers in the validation DataLoader as for training.",
        expect="Batches that are made while others are evaluated.",
        limit="As far as the CPUs go: training's workers stay alive meanwhile.",
        gain_pct=waited.pct,
        interval_pct=waited.interval_pct,
    )
    if start_s < 0.1 * (start_s + wait_s):
        return (more,)
    if wait_s < 0.1 * (start_s + wait_s):
        return (keep,)
    return (keep, more) if start_s >= wait_s else (more, keep)
