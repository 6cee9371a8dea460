"""Validation takes a large part of the run.

**What it means.** While the model is validated it does not learn. Some validation is needed; here it is run so often,
or on so much data, that it takes a considerable part of the training time.

**Evidence.** `validation` bucket of the wall-clock ledger in seconds: the whole validation loop with its own data wait,
as a share of training time in percent. As lost counts only what exceeds a usual share (`usual_pct`), or all but one
validation an epoch where there are several (`steps.epochs.validations`), if that is more.
`spent.validation_parts_s`: seconds of it in which its own loader was started (the iterator, and the first batch that
workers make) and in which its other batches were waited for. Where workers of training start anew in each epoch as
well, what starting takes is `worker-startup`'s to tell and does not count here (`loader.info`, `ledger.epochs`,
`workers.service_s`). `code.evaluation`: seconds of functions that evaluate the
model in the midst of the steps, from looks at the stack. They compute without gradients (`no_grad`, `inference_mode`),
by the text of the program, and switch the model to that (`model.eval()`), or are named for it. `spent.evaluated`:
batches that validation took and items in them, as its loader states their number, and how many of these are of the very
dataset that is trained with; `loader.batch_size`: items in a batch of training; `steps.step_time_s`,
`steps.data_wait_s`: what a batch of training takes. Without workers (`loader.num_workers`) that tells what waiting for
as many items of validation would take, too.

**Advice.** Where a large part of what is evaluated is training's own data, that is first: metrics of the training steps
tell nearly the same. Validate less often (in Lightning `check_val_every_n_epoch`, `val_check_interval`; other
frameworks' names are said in their runs), unless early stopping or the choice of the best checkpoint needs each one.
Validate on a part of the data. Validation keeps no gradients, so twice the batch size often fits. Where its batches are
much smaller than those of training (a DataLoader that is told nothing makes batches of one item), that size comes
first: as large a batch takes no longer than the step of training that computes its gradients as well. Where its loader
takes most of the time, that comes first: workers for it, or workers that are kept (`persistent_workers=True`) when each
validation starts them again.

**When it is wrong.** Where the metric of each epoch is the result, as in a study of learning curves, this time is not
lost. In very short runs a single validation weighs too much.

**References.** No tool that we know has such a rule; the shares are our choice, checked with benchmarks/faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import Window
from ..workers.gains import FIX_SAVES, gain_without, started_in_validation_s
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
        "ledger.epochs",
        "loader.batch_size",
        "loader.info",
        "loader.num_workers",
        "spent.evaluated",
        "spent.validation_parts_s",
        "steps.data_wait_s",
        "steps.epochs.validations",
        "steps.step_time_s",
        "workers.service_s",
    )

    info_pct: float = threshold(15.0, "%", "benchmarks/faults: what it takes beyond a usual tenth is worth 5 %")
    warn_pct: float = threshold(25.0, "%", "our choice: a quarter of the time teaches the model nothing")
    critical_pct: float = threshold(50.0, "%", "our choice: more time goes into validation than into training")
    usual_pct: float = threshold(10.0, "%", "our choice: what a validation set of a tenth of the data costs")
    often: float = threshold(2.0, "times", "our choice: of fewer validations an epoch hardly one can be spared")
    loader_pct: float = threshold(50.0, "%", "our choice: most of the validation is its loader's, not the model's")
    again_pct: float = threshold(25.0, "%", "our choice: of the items; a small part is a look at how well it fits")
    smaller: float = threshold(2.0, "times", "our choice: a size that differs by less saves little")
    model: float = threshold(0.5, "1", "our choice: larger batches change little of what is not the model's")
    prefers: float = threshold(0.55, "1", "as among settings of the loader: docs/explain/workers-model.md")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    min_samples: float = threshold(20.0, "looks", "a share of all of them is then known to a fifth, one standard error")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of validation with the thresholds."""
        started_s = started_in_validation_s(window)  # worker-startup's to tell
        booked_s, evaluation = _less(window.spent.bucket_s("validation"), started_s), window.code.evaluation
        in_steps_s = evaluation.seconds if evaluation is not None and evaluation.samples >= self.min_samples else 0.0
        spent_s = (booked_s or 0.0) + in_steps_s if booked_s is not None or in_steps_s else None
        share = None if spent_s is None else window.ledger.training_share_pct(spent_s)
        if spent_s is None or not share or share < min(self.info_pct, self.warn_pct):
            return None
        lost_s, often = self._lost(window, spent_s, share, booked_s or 0.0)
        if lost_s < self.min_lost_s:
            return None
        # Between less of it, and none at all.
        inside = in_steps_s > spent_s / 2.0
        gain = gain_without(window, lost_s, least=FIX_SAVES[0], most=spent_s / (lost_s or spent_s), in_steps=inside)
        start_s, wait_s = ((window.spent.validation_parts_s or {}).get(part, 0.0) for part in ("start", "wait"))
        start_s -= started_s
        loads = start_s + wait_s >= self.loader_pct / 100.0 * spent_s
        of_the_model = _of_the_model(window)
        larger = self._larger(window, ((booked_s or 0.0) - start_s - wait_s) * of_the_model, wait_s)
        is_small = larger is not None and larger.saved_s >= self.prefers * lost_s
        again = self._of_training(window, booked_s or 0.0)
        size = (_DOUBLE if larger is None else larger.advice,) if of_the_model >= self.model else ()
        seldom = Advice.of(
            said("Validate less often", window.facts, Setting.VALIDATE_LESS_OFTEN, ", after more steps or epochs"),
            expect=self._expected(window, spent_s - lost_s, often, share),
            limit="Not where early stopping needs each validation.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        )
        return Diagnosis(
            rule=self.id,
            severity=self._severity(share),
            title=self.title if share >= self.warn_pct else _SOME,
            summary=f"Validation took {spent_s:.1f} s, {share:.0f} % of the training time"
            + (f", beside {started_s:.1f} s in which its workers started" if started_s >= 0.1 * spent_s else "")
            + (f", {_said(start_s, wait_s)}" if loads else "")
            + (f", {100.0 * again.part:.0f} % of its items training's own" if again is not None else "")
            + (f", in batches of {larger.now}" if larger is not None and is_small else "")
            + (f", {often:.0f} times an epoch." if often else f"; {self.usual_pct:.0f} % would be usual."),
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            location=Location.of(evaluation.spot, evaluation.share_pct) if inside and evaluation is not None else None,
            evidence=(
                Evidence("validation, share of training time", share, "%", *self._source(share)),
                Evidence("validation", spent_s, "s"),
                *((Evidence("validations an epoch", often, "times", self.often, "our choice"),) if often else ()),
                *((Evidence("of it in the midst of steps", in_steps_s, "s"),) if in_steps_s else ()),
                *(Evidence(f"of it {name}", s, "s") for name, s in ((_START, start_s), (_WAIT, wait_s)) if s > 0),
            ),
            advice=(
                *((again.advice,) if again is not None else ()),
                *(_for_its_loader(window, start_s, wait_s) if loads else ()),
                *((*size, seldom, _on_less(window)) if is_small else (seldom, _on_less(window), *size)),
            ),
        )

    def _lost(self, window: Window, spent_s: float, share_pct: float, booked_s: float) -> tuple[float, float | None]:
        """Return the seconds that are lost, and how often an epoch is validated where all but once is what is lost."""
        unusual_s = spent_s * max(0.0, 1.0 - self.usual_pct / share_pct)
        times = max(1.0, window.steps.epochs.validations or 0.0)
        spared_s = booked_s * (1.0 - 1.0 / times)
        return (spared_s, times) if times >= self.often and spared_s > unusual_s else (unusual_s, None)

    def _larger(self, window: Window, computed_s: float, waited_s: float) -> _Larger | None:
        """Return what batches as large as training's would save of the seconds in which validation computes and waits.

        Waiting for as many items takes as long as training does for its own, where both make them in the loop.
        """
        size, evaluated = window.loader.batch_size, window.spent.evaluated
        step, wait, info = window.steps.step_time_s, window.steps.data_wait_s, window.loader.info
        if size is None or evaluated is None or step is None or size < self.smaller * evaluated.batch_size:
            return None
        per_step = (info.batches_per_step if info is not None else None) or 1.0
        fetch_s = 0.0 if wait is None else wait.median / per_step
        left_s = evaluated.items / size * max(0.0, step.median / per_step - fetch_s)
        of_wait_s = max(0.0, waited_s - evaluated.items / size * fetch_s) if window.loader.num_workers == 0 else 0.0
        least_s, saved_s, most_s = (max(0.0, computed_s - part * left_s) + of_wait_s for part in _OF_A_STEP)
        if not saved_s:
            return None
        gain = gain_without(window, saved_s, least=least_s / saved_s, most=most_s / saved_s, in_steps=False)
        now = f"{evaluated.batch_size:.0f}"
        advice = Advice.of(
            f"Raise the batch size of validation from {now} to {size}, as in training.",
            expect=f"The model is called {size / evaluated.batch_size:.0f} times less often.",
            limit="It fits mostly: no gradients are kept.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        )
        return _Larger(now, saved_s, advice)

    def _of_training(self, window: Window, booked_s: float) -> _Again | None:
        """Return what is won where the data that is trained with is not evaluated as well."""
        evaluated = window.spent.evaluated
        part = 0.0 if evaluated is None else evaluated.training_share
        if 100.0 * part < self.again_pct or not booked_s:
            return None
        gain = gain_without(window, part * booked_s, least=FIX_SAVES[0], most=1.1, in_steps=False)
        advice = Advice.of(
            "Leave training's own data out of what is evaluated.",
            expect="Metrics of the training steps tell nearly the same, as the weights change.",
            limit="Not where dropout or augmentation must be off for them.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        )
        return _Again(part, advice)

    def _expected(self, window: Window, left_s: float, often: float | None, share_pct: float) -> str:
        if often:
            return f"Once an epoch it takes {left_s:.2g} s of this run."
        times = window.steps.epochs.validations or 1.0
        every = math.ceil(_odds(share_pct) / _odds(self.usual_pct) / times) if self.usual_pct > 0 else 0
        if times >= self.often or every < 2 or every > (window.ledger.epochs or 0):
            return f"At {self.usual_pct:.0f} % of the training time it costs what is usual."
        return f"Each {every} epochs it takes no more than {self.usual_pct:.0f} % of the training time."

    def _source(self, share_pct: float) -> tuple[float, str]:
        """Return the threshold that was passed, and where it comes from."""
        if share_pct < self.warn_pct:
            return self.info_pct, "benchmarks/faults: what it takes beyond a usual tenth is worth 5 %"
        return self.warn_pct, "our choice: a quarter of the time teaches the model nothing"

    def _severity(self, share_pct: float) -> Severity:
        if share_pct < self.warn_pct:
            return Severity.INFO
        return Severity.CRITICAL if share_pct >= self.critical_pct else Severity.WARNING


@dataclass(frozen=True, slots=True)
class _Again:
    """Training's own data among what is evaluated."""

    part: float
    """Of the items, 0 to 1."""
    advice: Advice


@dataclass(frozen=True, slots=True)
class _Larger:
    """Batches of validation as large as those of training."""

    now: str
    """Items in one, as they are."""
    saved_s: float
    advice: Advice


def _of_the_model(window: Window) -> float:
    """Return the part (0 to 1) of validation that can be the model's: not what a library's function holds beside it.

    With larger batches the model is called less often, and what is kept of them, or measured, is as much.
    """
    look = window.code.at("loop", "validation")
    if look is None or not look.wall_s:
        return 1.0
    beside_s = sum(spot.wall_s for spot in look.spots if spot.is_place and not spot.own)
    return max(0.0, 1.0 - beside_s / look.wall_s)


def _odds(pct: float) -> float:
    """Return a share of the time as a multiple of the rest."""
    part = min(0.99, pct / 100.0)
    return part / (1.0 - part)


_SOME = "Validation takes more of the run than is usual"
"""Below a quarter."""

_OF_A_STEP = (1.0, 0.5, 0.2)
"""Parts of a training step of as many items that a batch of validation takes at most, as a rule, and at least: it has
the forward pass, a third of the work, and what is done with its results; our choice."""

_DOUBLE = Advice.of("Double the batch size of validation.", limit="It fits mostly: no gradients are kept.")


def _on_less(window: Window) -> Advice:
    return Advice.of(
        said("Validate on a part of the data between full validations", window.facts, Setting.VALIDATE_ON_LESS)
    )


def _less(seconds: float | None, others_s: float) -> float | None:
    return None if seconds is None else max(0.0, seconds - others_s)


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
