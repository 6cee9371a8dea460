"""Workers start again each epoch, and the loop waits for them.

**What it means.** At the beginning of an epoch the DataLoader starts its worker processes. They import packages, copy
the dataset and make their first batch while the loop waits. With short epochs, with processes that are spawned rather
than forked, or with a slow `worker_init_fn` this is the largest part of the wait. Where the user's `worker_init_fn`
takes most of a start, or a function that the first batch calls and others do not (a table that is read when it is first
asked for), it is named.

**Evidence.** `worker_startup`: seconds of wall time in making iterators, and the part of each epoch's first wait that
exceeds the steady wait, from the ledger; of workers that live on, in the first epoch alone (`steps.first_waits`: what
others exceed it by). What the first batch itself takes is no start, for none is made ahead: that is taken off
(`workers.service_s`, on the CPUs that all share). `workers.fork_s`: seconds in which forks held the training thread,
with what other packages do around a fork. `spent.validation_parts_s`: seconds that a loader of validation's own took to
start, without its first batches (as long as training's, for as many items: `loader.batch_size`, `spent.evaluated`;
`steps.epochs.validations`), where those of training start anew as well. `steps.epochs.copying_s`: what a fork leaves
behind. It shares the program's memory with the workers, and what the first step writes is copied page by page; it
counts where the optimizer takes longer in the first steps of epochs than in 95 % of the others. `workers.starts`: where
a loader's workers start more often than there are epochs (an endless loop around it, or another one of several loaders
that is begun anew within the epochs of the first), their first batches beyond others, at most the data wait; or, if
that is more, what `steps.epochs.forked` says: by how much steps with a fork wait longer than others, and compute
longer. Where they start for every other step or more, and make more batches than there are steps, the program makes a
new iterator for each, ``next(iter(loader))``; then all of the wait counts that workers would not need that go on.
`code.first_batch`: what a worker's first batch was spent in. Where a framework asks a loader of its own and the program
another one within its steps, `code.beside_model` finds the function in which processes start and end.

**Advice.** Make a loader's iterator once and ask that. Else fewer workers, or none, where these are predicted to win
more; or keep the workers (`persistent_workers=True`); not where the dataset's state has to be read anew each epoch.
Then fork instead of spawn, where no thread or CUDA context forbids it; then lighten what a worker imports and what
`worker_init_fn` does. More workers make it worse.

**When it is wrong.** What an iterable dataset does before its first item it does in each epoch, whether its workers
live on or not, if it fills a shuffle buffer; once, if it reads a table. That cannot be told apart: the gain lies in
between. A single epoch starts its workers once: that is a start-up cost and is not reported. A first batch that is slow
for a reason of its own (a cold cache) looks the same in the first epoch, not in later ones.

**References.** PyTorch `DataLoader(persistent_workers=...)`; Lightning issue 10389.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import Window
from ..workers.forecast import forecast
from ..workers.gains import Gain, first_batch_s, gain_without, skipped_s, started_in_validation_s, with_more
from .rule import threshold

_OF_THE_WAIT = (
    "batch-handoff",
    "fetch-stall",
    "input-bound",
    "prep-stall",
    "slow-batches",
    "too-few-workers",
    "too-many-workers",
)
"""Rules that take the first batches of workers for usual ones."""


_SAVES = 0.6
"""Part of what a function takes that goes when its processes live on: these have their work to do all the same, and the
CPUs that it takes are the steps'. Our choice, between three tenths and all of it."""


_TOLD = 0.1
"""Part of what is lost from which on it is told apart; our choice."""


class _Within(NamedTuple):
    """Starts of workers where no epoch begins."""

    times: int
    wait_s: float
    """That the loop waited for them."""
    all_s: float
    """With what its own work took longer because of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStartup:
    """Fires when starting workers takes a large share of a run of several epochs."""

    id: ClassVar[str] = "worker-startup"
    title: ClassVar[str] = "Workers start again each epoch"
    bucket: ClassVar[str] = "worker_startup"
    needs: ClassVar[tuple[str, ...]] = (
        "loader.num_workers",
        "ledger.training_s",
        "ledger.epochs",
        "ledger.wall_s",
        "loader.info",
    )
    instead: ClassVar[tuple[tuple[str, ...], ...]] = (("code.beside_model", "ledger.training_s"),)
    optional: ClassVar[tuple[str, ...]] = (
        "workers.forks",
        "workers.fork_s",
        "workers.starts",
        "workers.service_s",
        "ledger.record",
        "steps.step_time_s",
        "steps.data_wait_s",
        "steps.first_waits",
        "steps.epochs.copying_s",
        "steps.epochs.forked",
        "code.first_batch",
        "loader.batch_size",
        "spent.evaluated",
        "spent.validation_parts_s",
        "steps.epochs.validations",
    )
    rules_out: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "Our measurement, benchmarks/faults: healthy forked runs stay below 7 %")
    min_starts: float = threshold(3.0, "starts", "our choice: beyond one in each epoch; fewer may be looks at a batch")
    most: float = threshold(0.5, "1", "Most of the loss or of the data wait: what else explains it comes after this")
    each_step: float = threshold(0.5, "starts/step", "our choice: half, as two workers may start for one batch")
    unused: float = threshold(1.5, "batches/step", "our choice: of what is made ahead at least every third is not used")
    least_looks: float = threshold(10.0, "looks", "as in stallmeter.rules.location: fewer tell no share")
    least_part: float = threshold(
        0.2, "1", "as in stallmeter.rules.location: a smaller part is not where the time goes"
    )
    least_steps: float = threshold(10.0, "steps", "our choice: fewer are a first try of a loader")
    fork_wait_s: float = threshold(0.1, "s", "A fork of a large training process takes some 10 ms; 0.1 s is a wait")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the start-up's share of training with the threshold."""
        return self._of_loaders(window) or self._in_a_function(window)

    def _in_a_function(self, window: Window) -> Diagnosis | None:
        """Processes that a function of the program's own starts in the midst of the steps, where no loader is timed."""
        found = next((one for one in window.code.beside_model or () if one.spot.starts_processes), None)
        share = 0.0 if found is None else window.ledger.training_share_pct(found.seconds) or 0.0
        if found is None or found.samples < self.least_looks or share < self.warn_pct:
            return None
        gain = gain_without(window, _SAVES * found.seconds, least=0.5, most=1.0 / _SAVES)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title="Processes start again and again within the steps",
            summary=f"{found.spot.function}, in which processes start and end, took about {found.seconds:.1f} s, "
            f"{share:.0f} % of the training time.",
            time_lost_s=found.seconds,
            share_pct=window.ledger.share_pct(found.seconds) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence("it starts processes: share of training time", share, "%", self.warn_pct, "as other starts"),
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=(
                Advice.of(
                    "Start its processes once, before the loop: keep a loader's iterator and ask that.",
                    expect="Workers that go on, and have batches ready.",
                    limit="What they make takes its time and CPUs all the same.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Call it less often."),
            ),
            location=Location.of(found.spot, 100.0),
            supersedes=("slow-function",),
        )

    def _of_loaders(self, window: Window) -> Diagnosis | None:
        epochs = window.ledger.epochs or 0
        # What begins an epoch though no worker starts is input-bound's to tell, or slow-function's.
        late_s = 0.0 if window.steps.first_waits is None else window.steps.first_waits.late_s
        waited = max(0.0, (window.spent.bucket_s("worker_startup") or 0.0) - late_s)
        copying = self._copying_s(window, epochs)
        again, within_wait, within = self._within_epochs(window, epochs)
        anew_s = self._each_step_s(window, waited, epochs + again)
        dropped = min(waited, skipped_s(window))  # input-bound's to tell
        first = min(waited - dropped, _first_batches_s(window, epochs))
        waited -= first
        validating = started_in_validation_s(window)
        lost = waited + copying + within + validating - dropped if anew_s is None else anew_s
        share = window.ledger.training_share_pct(lost) or 0.0
        if not (window.loader.num_workers or again) or epochs + again < 2 or share < self.warn_pct:
            return None
        held = self._held_by_forks(window, waited)
        if anew_s is not None and not held:
            return self._of_each_step(window, lost, share)
        once = bool(window.loader.info and window.loader.info.lives_on) and not again
        if held:
            title = "Starting workers waits for another package's fork handler"
        elif within > self.most * lost:
            title = "Workers start again and again within an epoch"
        else:
            title = "Workers take long to start" if once else self.title
        wait_s = window.spent.bucket_s("data_wait") or 0.0
        each_s = lost if once else lost / max(1, epochs)
        start_s = lost if once else (lost - validating) / max(1, epochs + again)
        place = None if held else self._place(window, start_s)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=title,
            summary=f"{share:.0f} % of the training time went into starting workers, "
            + ("once: they live on between epochs." if once else f"{each_s:.2f} s an epoch.")
            + (f" {within:.1f} s of it in {again} starts within an epoch." if again else "")
            + (f" In {within - within_wait:.1f} s of these it was slower afterwards." if within > within_wait else "")
            + (f" {validating:.1f} s of it for validation." if validating >= _TOLD * lost else "")
            + (f" Forks held the training thread for {window.workers.fork_s or 0.0:.1f} s of it." if held else "")
            + (
                f" In {copying:.1f} s of it first steps copied memory that forks share."
                if copying >= _TOLD * lost
                else ""
            ),
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.9,
            evidence=(
                Evidence("worker start-up, share of training time", share, "%", self.warn_pct, "benchmarks/faults"),
                Evidence("worker start-up" if once else "worker start-up per epoch", each_s, "s"),
                Evidence("forks held the training thread", window.workers.fork_s or 0.0, "s"),
                *((Evidence("first steps of epochs, beyond others", copying, "s"),) if copying else ()),
                *((Evidence("starts beyond one an epoch", float(again), "starts"),) if again else ()),
            ),
            advice=self._advice(window, waited + copying + validating - dropped, within, first, held=held, place=place),
            location=place,
            supersedes=_OF_THE_WAIT if again and within_wait >= self.most * wait_s else (),
            culprit="a fork handler of another package" if held else None,
        )

    def _place(self, window: Window, start_s: float) -> Location | None:
        """Return the function that takes most of a start: the user's ``worker_init_fn``, or one of the first batch."""
        loader, starts, look = window.loader.info, window.workers.starts, window.code.first_batch
        if loader is None or starts is None or not start_s:
            return None
        if loader.init_function and starts.init_s >= self.most * start_s:
            share_pct = 100.0 * min(1.0, starts.init_s / start_s)
            return Location(loader.init_file, loader.init_line, loader.init_function, share_pct)
        if look is None or look.seen < self.least_looks or not look.spots:
            return None
        spot = look.spots[0]
        part = spot.wall_s / look.wall_s * min(1.0, max(0.0, starts.excess_s - starts.init_s) / start_s)
        return Location.of(spot, 100.0 * part) if part >= self.least_part else None

    def _each_step_s(self, window: Window, waited: float, starts: int) -> float | None:
        """What workers that start for each batch cost beyond those that go on; None where they do not."""
        ledger, step, wait = window.ledger.record, window.steps.step_time_s, window.steps.data_wait_s
        loader = window.loader.info
        if ledger is None or ledger.steps < self.least_steps or starts < self.each_step * ledger.steps:
            return None
        # Epochs of a single batch are another matter: nothing can be made ahead, and nothing is lost.
        known = window.workers.starts
        if known is None or known.batches < self.unused * ledger.steps:
            return None
        made, workers = window.workers.service_s, (loader.num_workers if loader else None) or 1
        # Those that go on make their batches while the loop computes.
        late_s = 0.0
        if made is not None and step is not None and wait is not None:
            late_s = max(0.0, made.mean / workers - (step.median - wait.median))
        return max(0.0, waited + (window.spent.bucket_s("data_wait") or 0.0) - ledger.steps * late_s)

    def _of_each_step(self, window: Window, lost: float, share: float) -> Diagnosis:
        # Starting them is a part of each step here.
        gain = gain_without(window, lost, least=0.8, most=1.1, starts_workers=True)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title="Workers start again for each batch",
            summary=f"{share:.0f} % of the training time went into workers that start for a batch or two: "
            "the steps take theirs from a new iterator each time, as next(iter(loader)) does.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.9,
            evidence=(
                Evidence("workers that start again, share of training time", share, "%", self.warn_pct, "our choice"),
            ),
            advice=(
                Advice.of(
                    "Make the loader's iterator once, before the loop, and ask it with next().",
                    expect="Workers that go on, and have batches ready.",
                    limit="Make a new one only where it has come to its end.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Set persistent_workers=True in the DataLoader.", limit="What was made ahead is still lost."),
            ),
            supersedes=_OF_THE_WAIT,
        )

    def _within_epochs(self, window: Window, epochs: int) -> _Within:
        """How often workers started where no epoch began, and what that cost the loop."""
        starts = window.workers.starts
        again = 0 if starts is None else starts.times - max(1, epochs)
        if starts is not None and starts.beside:
            # One loader's epochs are those that are counted. Others may begin with them, where it is counted, too.
            seen = window.steps.epochs.waits_within(starts.excess_s / 2.0) if starts.excess_s else 0.0
            record = window.ledger.record
            again = max(again, min(again + starts.beside, round(seen * (record.steps if record else 0))))
        if starts is None or again < self.min_starts:
            return _Within(0, 0.0, 0.0)
        forked = window.steps.epochs.forked
        each_s = starts.excess_s if forked is None else max(starts.excess_s, forked.wait_s)
        wait_s = min(again * each_s, window.spent.bucket_s("data_wait") or 0.0)
        return _Within(again, wait_s, wait_s + (0.0 if forked is None else again * forked.work_s))

    def _copying_s(self, window: Window, epochs: int) -> float:
        """Seconds that first steps of epochs took longer because memory was copied that a fork shares."""
        loader = window.loader.info
        if loader is None or loader.lives_on or loader.start_method != "fork":
            return 0.0
        return (window.steps.epochs.copying_s or 0.0) * max(0, epochs - 1)

    def _held_by_forks(self, window: Window, lost: float) -> bool:
        if not window.workers.forks:
            return False
        typical = statistics.median(f.wall_s for f in window.workers.forks)
        return typical >= self.fork_wait_s and (window.workers.fork_s or 0.0) >= 0.5 * lost

    def _advice(
        self, window: Window, lost: float, within: float, first: float, *, held: bool, place: Location | None
    ) -> tuple[Advice, ...]:
        loader, epochs = window.loader.info, window.ledger.epochs or 1
        advice = []
        if held:
            gain = gain_without(
                window,
                min(lost, window.workers.fork_s or 0.0),
                least=0.8,
                most=1.1,
                in_steps=False,
                starts_workers=True,
            )
            advice.append(
                Advice.of(
                    "Use the client's offline or synchronous mode, or start the workers before the client.",
                    expect="Forks that no longer hold the training thread.",
                    limit="The dataset is not to blame: a client finishes its request before each fork.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                )
            )
        if loader is None or not loader.lives_on or within:
            # The first epoch's start stays; it may be the longest, with cold caches, or the shortest.
            saved = lost * (epochs - 1) / epochs + within
            # Of a run that goes on longer, or that is timed from later on, its part is less, and all of them are saved.
            # And workers that live on may have less in their way when they make their first batches.
            most = 1.05 * (lost + within + first / 2.0) / saved if saved else 1.0
            kept = min(1.0, self._refill_s(window, epochs) / saved) if saved else 0.0
            gain = gain_without(
                window,
                (1.0 - kept / 2.0) * saved,
                least=0.85 * (1.0 - kept) / (1.0 - kept / 2.0),
                most=most / (1.0 - kept / 2.0),
                in_steps=within > self.most * saved,
                starts_workers=True,
            )
            remade = loader is not None and loader.remade
            fewer = self._fewer(window, gain)
            keep = Advice.of(
                "Make the loader once, before the epochs, with persistent_workers=True."
                if remade
                else "Set persistent_workers=True in the DataLoaders of training and validation."
                if started_in_validation_s(window) >= _TOLD * lost
                else "Set persistent_workers=True in the DataLoader.",
                expect="Workers that start once, not each time the loader is iterated.",
                limit="Not for data that must be read anew each epoch.",
                gain_pct=gain.pct,
                interval_pct=gain.interval_pct,
            )
            # Without workers the user's own function is not called, and the dataset may need what it does.
            own = place is not None and loader is not None and place.function == loader.init_function
            advice += [keep, *fewer] if own else [*fewer, keep]
        if loader is not None and loader.start_method in ("spawn", "forkserver"):
            advice.append(Advice.of("Start workers by fork.", limit="Only where no thread or CUDA context forbids it."))
        advice.append(self._lighter(window, lost, place))
        return tuple(advice)

    def _fewer(self, window: Window, kept: Gain) -> tuple[Advice, ...]:
        """Return another number of workers where that wins more than to keep those that there are."""
        predicted = forecast(window)
        if predicted is None or predicted.recommended >= predicted.advice.current:
            return ()
        first, *others = predicted.fixes()
        if not predicted.recommended and predicted.which is None and predicted.asked is not None:
            first = _without_any(window, first, predicted.asked[0].service_s)
        return (first, *others) if (first.predicted_gain_pct or 0.0) > (kept.pct or 0.0) else ()

    def _lighter(self, window: Window, lost: float, place: Location | None) -> Advice:
        """Return what makes a start itself cheaper."""
        if place is not None:
            return Advice.of(
                f"Make {place.function} cheaper ({place.file}:{place.line}): each worker calls it when it starts.",
                limit="What all workers need may be made once, before they start.",
            )
        if self._refill_s(window, window.ledger.epochs or 1) > self.most * lost:
            return Advice.of("Make the shuffle buffer smaller, where one is filled anew each epoch.")
        return Advice.of("Slim down imports and worker_init_fn in the workers, or use longer epochs.")

    def _refill_s(self, window: Window, epochs: int) -> float:
        """Seconds that workers may need for their first batch of an epoch even if they live on.

        An iterable dataset is iterated anew, and fills its shuffle buffer again; a table it reads once.
        """
        loader, starts = window.loader.info, window.workers.starts
        if loader is None or not loader.iterable or starts is None:
            return 0.0
        return max(0, epochs - 1) * starts.excess_s


def _first_batches_s(window: Window, epochs: int) -> float:
    """Return what first waits exceed the steady one by though no worker has to start.

    Of workers that live on the first epoch's wait alone is a start.
    """
    wait = window.steps.data_wait_s
    begins = 1 if window.loader.info is not None and window.loader.info.lives_on else epochs
    return 0.0 if wait is None else begins * max(0.0, first_batch_s(window) - wait.median)


def _without_any(window: Window, of_training: Advice, batch_s: float) -> Advice:
    """Return the advice to make batches in the loop, for validation as well where its workers start anew.

    Validation then makes its batches one after the other, between those that it computes.
    """
    training_s, gain_pct, parts = (
        window.ledger.training_s,
        of_training.predicted_gain_pct,
        of_training.gain_interval_pct,
    )
    evaluated, size = window.spent.evaluated, window.loader.batch_size
    of_loader_s = sum((window.spent.validation_parts_s or {}).values())
    if not started_in_validation_s(window) or not (training_s and gain_pct and parts and evaluated and size):
        return of_training
    saved_s = of_loader_s - evaluated.items / size * batch_s
    if saved_s <= 0:
        return of_training

    def with_validation(pct: float, part: float) -> float:
        return with_more(pct, min(of_loader_s, part * saved_s) / training_s)

    return Advice.of(
        "Set num_workers=0 in the DataLoaders of training and validation.",
        expect=of_training.fix.expect,
        limit=of_training.fix.limit,
        gain_pct=with_validation(gain_pct, 1.0),
        interval_pct=(with_validation(parts[0], 0.5), with_validation(parts[1], 1.5)),
    )
