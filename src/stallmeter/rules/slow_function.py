"""A function beside the model takes a large part of each step.

**What it means.** Between two batches the program does more than train: it draws a plot, writes a file, or counts with
another package. While it does, nothing is trained. This function takes more of the time than a helper should, and the
package that it spends it in trains nothing, or the step has its gradients by then.

**Evidence.** `code.beside_model`: seconds of functions of the program in the steps' own work, each with all that it
calls, from looks at the training thread's stack. What lies below a module's call, in the backward pass or in a
collective is the model's, and so are the functions that call these; of what those call themselves only a library that
holds no model and no loss counts, a metric's say. A function that is called from a later line than the one that has the
gradients computed is neither a loss nor part of a batch, whatever it spends its time in, the model included; nor is a
hook that torch calls with a gradient, of a tensor, a parameter or a module. One that is called from an earlier line
than the model, and computes with a package that no gradient flows through, prepares the batch; so does one that is
called, whatever it computes, before a function that holds both the model and its gradients. One that is found between
two instructions of Python's again and again computes with numbers of Python's, through which no gradient flows: code
that computes with tensors is found in its operators and calls. Between the model and the gradients a function that
computes with such a package is no loss either: a metric, or a match. Nor is one that takes of what the model made only
what no gradient flows through (`detach`, `item`, `argmax`), by the text of the line that calls it, or that is called
without gradients (`no_grad`); nor a function of the program's that is called with nothing that was named since the
model's call, weights of the labels say. Where the model is called with what it gives, it is the next batch, made early.
A loss that takes longer than the whole model is written in many small operations, most often in a loop: it is told with
the part of the backward pass that falls to it. So is a function that a module calls and that computes with numbers of
Python's or with a package that holds no model (`code.within_model`), a mask that is made anew in each step, say; one
that it calls where no gradients are recorded (`no_grad`), from a fifth of the time on, as information; and an optimizer
of the program's own that takes longer than all else, and of `code.autograd_functions`, its forward and backward written
by hand, from a fifth of the time on. Looks into steps of usual length, and into what long steps take beyond three
medians, are weighed by the time that the ledger and the steps hold of each. Rare long steps are step-outliers' to tell.
Of one rank of several a smaller share is told as information: the others may have to wait for it. So is half the share
of what is surely no loss: a package that trains nothing, Python itself, or what no gradient flows through.
`code.beside_epochs`: the same of what the thread does where an epoch begins, below the loader or the framework that
asks for it, and between two epochs: a sampler that reads the whole dataset, a loader that is made anew, a table that is
read again. What comes after the last epoch does not count. The larger one of the two kinds is told.

**Advice.** Do it every N steps, or once an epoch. What a model needs is made once, or with tensors. Work that needs no
current weights, such as drawing or writing a file, can go to a thread. What prepares a batch can move to the dataset or
the collate function, where workers do it beside the steps while there are CPUs for it; else it has to get cheaper. A
loss is computed with fewer operations, and with smaller tensors between them.

**When it is wrong.** Between the call of the model and the gradients a function whose time is spent in operators of its
own or in torch is not blamed while it takes less than the model: it may be the loss. One that takes more may be as
cheap as it can be, such as one of many rounds: it informs, and does not warn. A module is taken for a loss where its
class's name ends so (Loss, Criterion, Metric), and for a part of the model elsewhere. Nor is a function blamed before
the model in operators of its own or in torch where the same function has the gradients computed, one after the
gradients that sleeps, which may stand for a device, or what stands in the loop itself. Where no optimizer of torch was
heard of, a function may be one. Programs without modules are not judged: what they call their model is not known.
Beside a GPU the host waits for the device in whatever asks for a result: only that part of a function's time counts in
which the GPU had nothing to do (`spent.idle_in_steps_s`, where `device.pace_s` tells of one; of several that of the one
used most). It is what two parts of one time have in common, in the middle between the least and the most, and nothing
where these are far apart. Hooks of gradients run on a thread of torch's there, and are not seen.

**References.** XProf calls other host work in a step moderate from 3 % and high from 15 %
(`op_stats_to_input_pipeline_analysis.cc`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from ..records import SENDS_OBJECTS
from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..records.packages import PREPARE, TORCHS_CALLS, TRAINS_NOTHING
from ..window import AutogradFunctions, BesideEpochs, BesideModel, Window, WithinModel
from ..workers.gains import Gain, gain_by_looks, gain_of_the_loop, gain_without, part_that_grew
from .functions import Growth, called, earlier, growth_in_epochs, informs, named, rarer, severity
from .rule import BACKWARD_OF_MODEL, threshold

FRAMEWORKS = frozenset(("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "transformers"))
LOGS = (".log", ".log_dict", ".log_metrics")
"""Packages whose methods that end so keep or send numbers."""

STEP = ".step"
"""End of the name of what a program calls for its optimizer."""

OfTheModel = TypeVar("OfTheModel", AutogradFunctions, WithinModel)

REST = ("forward", "backward", "compute", "loop", "h2d")
"""Buckets of all else that a step does itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFunction:
    """Fires when a function of the program that is no part of the model takes a large share of the training time."""

    id: ClassVar[str] = "slow-function"
    title: ClassVar[str] = "A function beside the model holds up the steps"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "ledger.wall_s", "steps.body_s")
    optional: ClassVar[tuple[str, ...]] = (
        "code.autograd_functions",
        "code.beside_epochs",
        "code.beside_model",
        "code.within_model",
        "device.pace_s",
        "facts.has_other_ranks",
        "host.garbage.step_s",
        "host.loop.team",
        "host.loop.threads_wait_pct",
        "ledger.record",
        "loader.asks_none",
        "spent.idle_in_steps_s",
        "steps.drift",
        "steps.steady",
    )

    info_pct: float = threshold(
        5.0, "%", "our choice: in one rank of several, where the others may have to wait for it"
    )
    sure_pct: float = threshold(
        10.0, "%", "our choice: of what is surely no loss, as of what begins the epochs; told as information"
    )
    warn_pct: float = threshold(20.0, "%", "our choice: a loss that is written by hand may cost as much")
    critical_pct: float = threshold(40.0, "%", "our choice: twice the share from which it is reported")
    epochs_pct: float = threshold(10.0, "%", "of what begins them: as of workers that start again; benchmarks/faults")
    most_of_starts: float = threshold(0.5, "1", "Most of what begins the epochs; our choice")
    most_of_optimizer: float = threshold(0.5, "1", "Most of an optimizer's time; our choice")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    min_samples: float = threshold(20.0, "looks", "a share of all of them is then known to a fifth, one standard error")
    grown: float = threshold(0.5, "1", "Most of the time; our choice")
    interpreting: float = threshold(0.03, "1", "Our measurement: 0 of 2,300 looks at losses, 6 to 16 % at pure Python")
    min_interpreting: float = threshold(3.0, "looks", "our choice: one or two may be chance")
    saves: float = threshold(0.3, "1", "Least part of a loss that fewer operations save; our choice, not measured")
    of_growth: float = threshold(0.5, "1", "Of what it takes of a step; our choice: what grows is a third longer late")
    most: float = threshold(0.9, "1", "Of a function's time; our choice: a look may fall between two lines")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the largest function that trains nothing with the thresholds, in the steps and outside them."""
        found = [one for one in (self._outside_steps(window), self._in_steps(window)) if one is not None]
        return max(found, key=lambda one: one.time_lost_s, default=None)

    def _outside_steps(self, window: Window) -> Diagnosis | None:
        """Judge what holds up the beginning of epochs, or lies between them: the larger one of those that are much."""
        judged = (self._of_epochs(window, found) for found in window.code.beside_epochs or ())
        return next((one for one in judged if one is not None), None)

    def _of_epochs(self, window: Window, found: BesideEpochs) -> Diagnosis | None:
        share = window.ledger.training_share_pct(found.seconds)
        if share is None or found.seconds < self.min_lost_s or found.samples < self.min_samples:
            return None
        spot = found.spot
        least_pct = self.epochs_pct if found.begins else self.warn_pct  # between epochs it may be an evaluation
        # What begins a single epoch is done once as it is.
        if share < least_pct or (found.begins and (window.ledger.epochs or 0) < 2):
            return None
        where = "the beginning of epochs" if found.begins else "the time between epochs"
        gain = gain_by_looks(window, found.seconds, found.samples, in_steps=False, starts_workers=found.begins)
        return Diagnosis(
            rule=self.id,
            severity=severity(share, least_pct, self.critical_pct),
            title=f"{spot.function} holds up the epochs",
            summary=f"{spot.function} took about {found.seconds:.1f} s of {where}, {share:.0f} % of the training time.",
            time_lost_s=found.seconds,
            share_pct=window.ledger.share_pct(found.seconds) or 0.0,
            confidence=0.8,
            culprit=spot.function,
            location=Location.of(spot, found.share_pct),
            evidence=(
                Evidence(f"function in {where}, share of training time", share, "%", least_pct, "our choice"),
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=(
                Advice.of(
                    f"Call it once before training, or make it cheaper ({spot.file}:{spot.line}).",
                    expect="Epochs that begin at once.",
                    limit="What must be drawn anew each epoch is drawn from what is read once.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
            supersedes=("worker-startup",) if found.begins and found.share_pct >= 100.0 * self.most_of_starts else (),
        )

    def _in_steps(self, window: Window) -> Diagnosis | None:
        beside = window.code.beside_model or ()
        if window.loader.asks_none:  # then input-bound tells all that comes before the model
            beside = tuple(one for one in beside if one.before_s < self.most * one.seconds)
        helper = next((one for one in beside if self._trains_nothing(one) or self._prepares(one)), None)
        loss = next((one for one in beside if one is not helper and self._outweighs(one)), None)
        judged = [
            found
            for one in (helper, loss)
            if one is not None and (found := self._beside(window, one, loss=one is loss)) is not None
        ]
        optimizer = next((one for one in beside if one is not helper and one.spot.within.endswith(STEP)), None)
        found = None if optimizer is None else self._of_an_optimizer(window, optimizer)
        others = (found, self._of_functions(window), self._within_model(window), self._untrained(window))
        judged += [one for one in others if one is not None]
        return max(judged, key=lambda one: (one.severity is not Severity.INFO, one.time_lost_s), default=None)

    def _beside(self, window: Window, found: BesideModel, *, loss: bool) -> Diagnosis | None:
        whole_s = found.seconds + (_gradients_s(found) if loss else 0.0)
        taken_s = window.spent.lost_in_steps_s(whole_s)
        if taken_s is None or whole_s <= 0:
            return None
        found = found.times(taken_s / whole_s)
        # Seconds of the garbage collector are gc-pauses' to tell, and what grows is step-time-drift's.
        lost_s = max(0.0, taken_s - (window.host.garbage.step_s or 0.0))
        share = window.ledger.training_share_pct(lost_s)
        among_ranks = bool(window.facts.has_other_ranks)
        counts = share is not None and (share >= self.warn_pct or not among_ranks)
        usual_pct = self.sure_pct if self._is_no_training(found) or self._comes_after(found) else self.warn_pct
        least_pct = self.info_pct if among_ranks else usual_pct
        if share is None or share < least_pct or lost_s < self.min_lost_s or found.samples < self.min_samples:
            return None
        if part_that_grew(window, lost_s) >= self.grown:
            return None
        if loss:
            return self._of_a_loss(window, found, lost_s, share)
        gain = self._with_its_threads(window, _with_its_garbage(window, lost_s, taken_s, found.samples))
        spot, prepares = found.spot, self._prepares(found)
        growth = None if prepares else self._growth(window, lost_s)
        return Diagnosis(
            rule=self.id,
            severity=severity(share, self.warn_pct, self.critical_pct),
            title=f"{called(spot)} holds up the steps",
            summary=f"{named(spot)} took about {lost_s:.1f} s, {share:.0f} % of the training time, "
            + ("and prepares the batch between the steps." if prepares else "and is no part of the model."),
            time_lost_s=lost_s if counts else 0.0,
            share_pct=(window.ledger.share_pct(lost_s) or 0.0) if counts else 0.0,
            confidence=0.8,
            culprit=called(spot),
            location=Location.of(spot, found.share_of_steps_pct),
            evidence=(
                Evidence("function beside the model, share of training time", share, "%", least_pct, "our choice"),
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=earlier(spot, gain, dataset=not window.loader.asks_none) if prepares else rarer(spot, gain, growth),
        )

    def _growth(self, window: Window, lost_s: float) -> Growth | None:
        """Return by how much steps get longer within epochs, where that can be this function's."""
        growth, record = growth_in_epochs(window), window.ledger.record
        if growth is None or record is None or not record.steps:
            return None
        return growth if growth.late_s - growth.early_s >= self.of_growth * lost_s / record.steps else None

    def _with_its_threads(self, window: Window, gain: Gain) -> Gain:
        """Widen what is won at the most where threads take the loop's CPUs: what is handed to one goes with it.

        A writer of events in a thread of its own, say: the steps got 3.6 times as fast where the function that
        feeds it was 41 % of them.
        """
        waits_pct, interval = window.host.loop.threads_wait_pct or 0.0, gain.interval_pct
        if waits_pct < self.sure_pct or interval is None:
            return gain
        beside = gain_of_the_loop(waits_pct, window.host.loop.team)
        factor = 1.0 + (beside.pct or 0.0) / 100.0
        return Gain(gain.pct, (interval[0], 100.0 * ((1.0 + interval[1] / 100.0) * factor - 1.0)))

    def _of_a_loss(self, window: Window, found: BesideModel, lost_s: float, share: float) -> Diagnosis | None:
        if share < self.warn_pct:
            return None
        spot, own = found.spot, window.ledger.training_share_pct(found.seconds) or 0.0
        most_s = found.seconds + _gradients_s(found, BACKWARD_OF_MODEL[1])
        gain = self._gain_of_less_work(window, lost_s, most_s / (found.seconds + _gradients_s(found)))
        return informs(
            self.id,
            window,
            spot,
            lost_s=lost_s,
            place_pct=found.share_of_steps_pct,
            culprit=spot.within or spot.function,
            title=f"{spot.within or spot.function} takes longer than the model",
            summary=f"{named(spot)} took about {found.seconds:.1f} s between the model and its gradients, {own:.0f} % "
            f"of the training time and more than the model; with its part of the gradients it is about {share:.0f} %.",
            evidence=(
                Evidence("function and its gradients, share of training time", share, "%", self.warn_pct, "our choice"),
                Evidence("function", found.seconds, "s"),
                Evidence("model, without the backward pass", found.model_s, "s"),
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=(
                Advice.of(
                    f"Write it with fewer operations and smaller tensors between them ({spot.file}:{spot.line}).",
                    expect="Both it and its gradients get cheaper.",
                    limit="The gain assumes that a third of the work remains.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
        )

    def _of_an_optimizer(self, window: Window, found: BesideModel) -> Diagnosis | None:
        """Tell of an optimizer of the program's own that takes longer than all else that a step does."""
        lost_s = window.spent.bucket_s("optimizer") or 0.0
        rest_s = window.spent.bucket_s(*REST) or 0.0
        share = window.ledger.training_share_pct(lost_s)
        if window.device.pace_s is not None or share is None or share < self.warn_pct or lost_s < rest_s:
            return None
        if found.samples < self.min_samples or found.seconds < self.most_of_optimizer * lost_s:
            return None
        spot = found.spot
        gain = self._gain_of_less_work(window, lost_s)
        return informs(
            self.id,
            window,
            spot,
            lost_s=lost_s,
            place_pct=found.share_of_steps_pct,
            culprit=spot.within,
            title=f"{spot.within} takes longer than the model and its gradients",
            summary=f"The optimizer took {lost_s:.1f} s, {share:.0f} % of the training time, all else in the steps "
            f"{rest_s:.1f} s. Most of it went into {spot.function}.",
            evidence=(
                Evidence("optimizer, share of training time", share, "%", self.warn_pct, "our choice"),
                Evidence("all else in the steps", rest_s, "s"),
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=(
                Advice.of(
                    f"Run its costly part every few steps, or make it cheaper ({spot.file}:{spot.line}).",
                    expect="Shorter steps.",
                    limit="The gain assumes that a third of the work remains.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
        )

    def _of_functions(self, window: Window) -> Diagnosis | None:
        """Tell of autograd functions of the program's own that take a large part of the steps."""
        found, share = self._that_counts(window, window.code.autograd_functions, self.warn_pct)
        if found is None:
            return None
        spot = found.spot
        gain = self._gain_of_less_work(window, found.seconds)
        return informs(
            self.id,
            window,
            spot,
            lost_s=found.seconds,
            place_pct=found.share_pct,
            culprit=spot.function,
            title=f"{spot.function} takes a large part of the steps",
            summary=f"Autograd functions of the program's own took about {found.seconds:.1f} s, {share:.0f} % of the "
            f"training time, their backward included. Most of it went into {spot.function}.",
            evidence=(
                Evidence("autograd functions, share of training time", share, "%", self.warn_pct, "our choice"),
                Evidence("samples of the training thread's stack in them", float(found.samples), "samples"),
            ),
            advice=(
                Advice.of(
                    f"Write it with fewer and larger operations ({spot.file}:{spot.line}).",
                    expect="A shorter forward and backward.",
                    limit="The gain assumes that a third of the work remains.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
        )

    def _within_model(self, window: Window) -> Diagnosis | None:
        """Tell of a function that the model calls and through which no gradient flows."""
        computes = next((one for one in window.code.within_model or () if one.package or self._is_python(one)), None)
        found, share = self._that_counts(window, computes, self.sure_pct)
        if found is None:
            return None
        spot, how = found.spot, f"with {found.package}" if found.package else "in Python"
        python = () if found.package else (Evidence("of it, in Python's own instructions", found.interpreting_s, "s"),)
        gain = gain_by_looks(window, found.seconds, found.samples)
        return Diagnosis(
            rule=self.id,
            severity=severity(share, self.warn_pct, self.critical_pct),
            title=f"{called(spot)} holds up the model",
            summary=f"{named(spot)} computes {how}, not with tensors. It took about {found.seconds:.1f} s within "
            f"the model, {share:.0f} % of the training time.",
            time_lost_s=found.seconds,
            share_pct=window.ledger.share_pct(found.seconds) or 0.0,
            confidence=0.8,
            culprit=called(spot),
            location=Location.of(spot, found.share_of_steps_pct),
            evidence=(
                Evidence("function within the model, share of training time", share, "%", self.sure_pct, "our choice"),
                *python,
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=(
                Advice.of(
                    f"Call it once and keep what it returns, or write it with tensors ({spot.file}:{spot.line}).",
                    expect="Most of this time is saved.",
                    limit="Once only where what it returns does not depend on the batch.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
        )

    def _untrained(self, window: Window) -> Diagnosis | None:
        """Tell of a function that the model calls where it records no gradients, whatever it computes with."""
        untrained = (one for one in window.code.within_model or () if one.untrained_s >= self.most * one.seconds)
        found, share = self._that_counts(window, next(untrained, None), self.warn_pct)
        if found is None:
            return None
        spot, gain = found.spot, self._gain_of_less_work(window, found.seconds)
        return informs(
            self.id,
            window,
            spot,
            lost_s=found.seconds,
            place_pct=found.share_of_steps_pct,
            culprit=spot.function,
            title=f"{spot.function} takes a large part of the model's time",
            summary=f"{spot.function} is called where no gradients are recorded. It took about {found.seconds:.1f} s "
            f"within the model, {share:.0f} % of the training time.",
            evidence=(
                Evidence("function within the model, share of training time", share, "%", self.warn_pct, "our choice"),
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=(
                Advice.of(
                    f"Write it with fewer and larger operations, for all samples at once ({spot.file}:{spot.line}).",
                    expect="A shorter forward pass.",
                    limit="The gain assumes that a third of the work remains.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Move it into the dataset.",
                    limit="Where it needs no weights, and there are CPUs for it; workers do it beside the steps.",
                ),
            ),
        )

    def _that_counts(
        self, window: Window, found: OfTheModel | None, least_pct: float
    ) -> tuple[OfTheModel | None, float]:
        """Return a function of the model's with its lost seconds and their share, percent; None where it is little."""
        lost_s = None if found is None else window.spent.lost_in_steps_s(found.seconds)
        share = None if lost_s is None else window.ledger.training_share_pct(lost_s)
        if found is None or lost_s is None or share is None or share < least_pct:
            return None, 0.0
        seen = found.samples >= self.min_samples and lost_s >= self.min_lost_s
        return (replace(found, seconds=lost_s), share) if seen else (None, 0.0)

    def _gain_of_less_work(self, window: Window, lost_s: float, most: float = 1.0) -> Gain:
        """Predict as if a third of the work still had to be done, give or take another third; or so many times it."""
        saved_s = (1.0 + self.saves) / 2.0 * lost_s
        least, most = 2.0 * self.saves / (1.0 + self.saves), most * 2.0 / (1.0 + self.saves)
        return gain_without(window, saved_s, least=least, most=most, larger_kernels=True)

    def _outweighs(self, one: BesideModel) -> bool:
        """Whether it stands between the model and its gradients, as a loss does, and takes longer than the model."""
        return one.between_s >= self.most * one.seconds and 0.0 < one.model_s <= one.seconds

    def _is_no_training(self, one: BesideModel) -> bool:
        """Whether it spends its time in a package that trains nothing, or in Python itself."""
        call = one.spot.calls[0] if one.spot.calls else ""
        package = one.spot.package
        if package in TRAINS_NOTHING or call.startswith(TORCHS_CALLS) or call.endswith(SENDS_OBJECTS):
            return True
        return (package in FRAMEWORKS and call.endswith(LOGS)) or self._is_python(one)

    def _trains_nothing(self, one: BesideModel) -> bool:
        """Whether it trains nothing for what it computes with, or for where it stands: behind the gradients, say."""
        if self._is_no_training(one):
            return True
        if one.spot.package in PREPARE and one.between_s >= self.most * one.seconds:
            return True
        return self._comes_after(one)

    def _comes_after(self, one: BesideModel) -> bool:
        """Whether nothing is trained through it: it comes behind the gradients, or none flow through what it takes."""
        return one.after_s >= self.most * one.seconds

    def _is_python(self, one: BesideModel | WithinModel) -> bool:
        """Whether it computes in Python itself: nothing is trained through numbers of Python's."""
        met = one.samples * one.interpreting_s / one.seconds if one.seconds else 0.0
        return met >= self.min_interpreting and one.interpreting_s >= self.interpreting * one.seconds

    def _prepares(self, one: BesideModel) -> bool:
        """Whether it comes before the model, and what it makes cannot be trained through: it belongs to the batch."""
        if one.apart_s >= self.most * one.seconds:
            return True
        return (one.spot.package in PREPARE or self._is_python(one)) and one.before_s >= self.most * one.seconds


def _with_its_garbage(window: Window, lost_s: float, taken_s: float, samples: int) -> Gain:
    """Predict without the collector's seconds, and at the most with them: they go where it is this function's garbage.

    A function that draws makes thousands of objects that refer to each other, and the passes over them begin in it:
    without it the steps were 1.8 times as fast, and 1.5 times by its own seconds alone.
    """
    gain = gain_by_looks(window, lost_s, samples)
    if gain.interval_pct is None or lost_s == taken_s:
        return gain
    _, most = gain_by_looks(window, taken_s, samples).interval_pct or gain.interval_pct
    return Gain(gain.pct, (gain.interval_pct[0], max(gain.interval_pct[1], most)))


def _gradients_s(one: BesideModel, of_model: float = BACKWARD_OF_MODEL[0]) -> float:
    """Return what the gradients of a loss take, shared out as what they are computed of: of small operations, each.

    And what the backward pass takes beyond the model's: of operations that fill memory it takes several times as long.
    """
    return max(one.gradients_s * one.seconds / (one.seconds + one.model_s), one.gradients_s - of_model * one.model_s)
