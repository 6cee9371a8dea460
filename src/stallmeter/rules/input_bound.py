"""The training loop waits for data.

**What it means.** The loop asks for the next batch and it is not there yet, so the accelerator idles. The cause of
the wait could not be told from what was measured; other rules of the input family name it when they can.

**Evidence.** `spent.data_wait_share_pct`: data wait as a share of training time, in percent, from the wall-clock
ledger. `steps.data_wait_s`: wait per step in seconds, median over steady steps. The first wait of each epoch counts as
worker start-up as far as it exceeds the steady wait. Where the loop asks no loader, nothing of this is timed:
`code.before_model`, from looks at the loop's stack, says which part of the steps goes by before they call the model.

Where most of the wait is none of steady steps', the first batches of epochs come late, though no worker starts
(`steps.first_waits`: by how much they exceed what a batch may take): batches that are made and skipped
(`workers.starts`: batches made, beside the steps that used them), a sampler that reads the dataset, or a dataset that
begins anew.

**Advice.** Without workers prepare batches beside the loop, unless the loader's work is tiny: then the hand-over
between processes costs more than it saves. Let stallmeter see the workers: then the cause has a name, and a number of
workers a predicted gain. Then make the preparation of one batch cheaper; first, where looks find one function that is
nearly all of it. Of a loader that was not looked into it is not known what a batch costs, and whether making it
computes or waits. The gain of making batches beside the loop is then as wide: from one helper, which works while the
loop computes, to all of the wait. Expected are as many helpers as CPUs, for what the loop's thread computes itself, and
all of what it is blocked in (`host.loop.blocked_share`).

**When it is wrong.** Without a loader anything that the loop does before it calls its model counts as its batch, but
for an optimizer's work: what an environment answers, say. What it does behind that call does not. On a GPU the host may
wait while the device still has work queued; then a part of the wait costs nothing. Very short runs consist of warm-up.
Where the workers were measured and no change of the loader is predicted to win 5 %, the wait is what handing batches
over costs at least, and this is silent.

**References.** XProf calls a program moderately input-bound from 5 % and highly from 20 % of step time
(`op_stats_to_input_pipeline_analysis.cc`). MLPerf Storage demands an accelerator utilisation of 90 % or more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..records import CodeSpot
from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import SOME_WITHOUT, BeforeModel, Window
from ..workers.forecast import Outlook, forecast
from ..workers.gains import UNKNOWN, Gain, gain_by_looks, gain_without, part_that_grew, skipped_s
from ..workers.pipeline import CHEAPER, counted_by_the_library
from .frameworks import Setting, said
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBound:
    """Fires when data wait takes a large share of the training time."""

    id: ClassVar[str] = "input-bound"
    title: ClassVar[str] = "The training loop waits for data"
    needs: ClassVar[tuple[str, ...]] = ("spent.data_wait_share_pct", "steps.data_wait_s", "ledger.wall_s")
    optional: ClassVar[tuple[str, ...]] = (
        "code.before_model",
        "code.beside_epochs",
        "device.pace_s",
        "facts.framework",
        "host.loop.blocked_share",
        "host.usable_cpus",
        "ledger.record",
        "ledger.training_s",
        "loader.asks_none",
        "loader.num_workers",
        "loader.info",
        "loader.which",
        "spent.idle_in_steps_s",
        "ledger.epochs",
        "steps.drift",
        "steps.first_waits",
        "workers.service_s",
        "workers.starts",
    )
    family: ClassVar[str] = "input"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    quick_s: float = threshold(0.003, "s", "A batch made in less costs no more than its hand-over would")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")
    critical_pct: float = threshold(20.0, "%", "XProf calls a program highly input-bound from 20 %")
    first: float = threshold(0.5, "1", "Most of the wait; our choice")
    grown: float = threshold(0.5, "1", "Most of what comes before the model: it is step-time-drift's to tell")
    min_samples: float = threshold(20.0, "looks", "a share of all of them is then known to a fifth, one standard error")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the data-wait share with the thresholds, or what looks saw where no loader is asked."""
        if window.loader.asks_none:
            return self._by_looks(window, window.code.before_model)
        share, wait, wall = window.spent.data_wait_share_pct, window.steps.data_wait_s, window.ledger.wall_s
        lost = window.spent.bucket_s("data_wait")
        if share is None or wait is None or not wall or lost is None:
            return None
        dropped_s = skipped_s(window)
        late_s = self._for_first_batches(window, lost, dropped_s)
        if late_s is not None:
            return self._of_first_batches(window, late_s, dropped_s)
        if share < self.warn_pct:
            return None
        if window.loader.num_workers == 0 and wait.median < self.quick_s:
            return None
        predicted = forecast(window)
        if predicted is not None and predicted.without.most_gain_pct < self.gain_pct:
            return None
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{share:.0f} % of the training time was spent waiting for data "
            f"({wait.median * 1e3:.1f} ms in a typical step).",
            time_lost_s=lost,
            share_pct=100.0 * lost / wall,
            confidence=0.6,
            evidence=(
                Evidence(
                    name="data wait, share of training time",
                    value=share,
                    unit="%",
                    threshold=self.warn_pct,
                    source="MLPerf Storage, accelerator utilisation >= 90 %",
                ),
                Evidence(name="data wait, median step", value=wait.median, unit="s"),
                *counted_by_the_library(window),
            ),
            advice=_by_the_loader(window, predicted, self.gain_pct),
        )

    def _for_first_batches(self, window: Window, lost: float, dropped_s: float) -> float | None:
        """Seconds of wait that steady steps do not have, where they are most of it and enough: epochs begin late."""
        ledger, wait, epochs = window.ledger.record, window.steps.data_wait_s, window.ledger.epochs or 0
        if ledger is None or wait is None or epochs < 2:
            return None
        dropped_s = min(dropped_s, window.spent.bucket_s("worker_startup") or 0.0)
        first_waits = window.steps.first_waits
        began_s = dropped_s if first_waits is None else max(dropped_s, first_waits.late_s)
        late_s = lost - ledger.steps * wait.mean + began_s
        share = window.ledger.training_share_pct(late_s)
        if share is None or share < self.warn_pct or late_s < self.first * (lost + began_s):
            return None
        looks = (one for one in window.code.beside_epochs or () if one.begins and one.samples >= self.min_samples)
        if any(one.seconds >= self.first * late_s for one in looks):  # slow-function tells which
            return None
        return late_s

    def _of_first_batches(self, window: Window, late_s: float, dropped_s: float) -> Diagnosis:
        share, epochs = window.ledger.training_share_pct(late_s) or 0.0, max(1, window.ledger.epochs or 1)
        made = window.workers.service_s
        # As far as workers are made anew, too, part of it is booked on their start.
        gain = gain_without(window, late_s, least=0.5, most=1.0, in_steps=False, starts_workers=True)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title="The first batch of each epoch comes late",
            summary=f"{share:.0f} % of the training time was spent waiting for first batches of epochs, "
            f"{late_s / epochs:.2f} s in each"
            + ("." if made is None else f"; a worker takes {made.mean * 1e3:.0f} ms for one.")
            + (" Workers make many more batches than are used." if dropped_s else ""),
            time_lost_s=late_s,
            share_pct=window.ledger.share_pct(late_s) or 0.0,
            confidence=0.7,
            evidence=(
                Evidence("wait for first batches, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("wait for the first batch of an epoch", late_s / epochs, "s"),
                *((Evidence("wait for batches that are not used", dropped_s, "s"),) if dropped_s else ()),
            ),
            advice=(
                Advice.of(
                    "Find what begins each epoch: skipped batches, or data that are read anew.",
                    expect="A first batch that comes as soon as others do.",
                    limit="Not where an epoch must begin so.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Read once, before training, what stays the same in all epochs."),
            ),
        )

    def _by_looks(self, window: Window, found: BeforeModel | None) -> Diagnosis | None:
        """Judge what the steps do before they call their model."""
        record = window.ledger.record
        if found is None or found.spot is None or record is None or found.seconds <= 0:
            return None
        spot, lost_s = found.spot, window.spent.lost_in_steps_s(found.seconds)
        if lost_s is None:
            return None
        found = replace(found, seconds=lost_s, spot_s=found.spot_s * lost_s / found.seconds)
        share = window.ledger.training_share_pct(lost_s)
        each_s = lost_s / max(1, record.steps)
        if share is None or share < self.warn_pct or found.samples < self.min_samples:
            return None
        quick = each_s < self.quick_s
        if quick:  # to hand a batch over would take as long: only a function that is most of it can be told of
            if found.spot_s <= self.first * found.seconds:
                return None
            found = replace(found, seconds=found.spot_s)
            share = window.ledger.training_share_pct(found.seconds) or 0.0
            if share < self.warn_pct:
                return None
        if part_that_grew(window, found.seconds) >= self.grown:
            return None
        gain = gain_by_looks(window, found.seconds, found.samples)
        return Diagnosis(
            rule=self.id,
            severity=_severity(share, self.critical_pct, quick=quick),
            title=self.title if spot.awaits else "The loop makes its batches itself before it calls its model",
            summary=f"It asks no loader: {'a batch is awaited' if spot.awaits else 'a batch is made'} for about "
            f"{share:.0f} % of the training time ({each_s * 1e3:.1f} ms in a mean step).",
            time_lost_s=found.seconds,
            share_pct=window.ledger.share_pct(found.seconds) or 0.0,
            confidence=0.6,
            culprit=spot.function,
            location=Location(
                spot.file,
                spot.line,
                spot.function,
                100.0 * found.spot_s / found.seconds,
                spot.call_in_line,
            ),
            evidence=(
                Evidence("before the model, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=(
                *_cheaper_or_beside(window, found, spot, gain)[: 1 if quick else None],
                Advice.of(
                    "Let the wait be timed: for batch in stallmeter.watch(what makes the batches).",
                    expect="Each wait measured, and the threads or processes that make the batches.",
                ),
            ),
        )


def _severity(share: float, critical_pct: float, *, quick: bool) -> Severity:
    if quick:  # it is little each time, and often as cheap as it can be
        return Severity.INFO
    return Severity.CRITICAL if share >= critical_pct else Severity.WARNING


def _cheaper_or_beside(window: Window, found: BeforeModel, spot: CodeSpot, gain: Gain) -> tuple[Advice, ...]:
    """What to do about batches that the loop makes or awaits; first the function that nearly all of it is."""
    if spot.awaits:
        return (_faster_beside(gain), CHEAPER)
    part = found.spot_s / found.seconds
    own = gain_by_looks(window, found.spot_s, max(1, round(part * found.samples)))
    cheaper = Advice.of(
        f"Make {_what(spot)} cheaper ({spot.file}:{spot.line}).",
        expect="Most of this time is saved.",
        gain_pct=own.pct,
        interval_pct=own.interval_pct,
    )
    # Helpers need CPUs, and threads of Python code share one; what waits for somebody else needs none.
    beside = _beside(window, _gain_beside(window, found.seconds), with_loader=False, computes=not _is_blocked(window))
    return (cheaper, beside) if part >= NEARLY else (beside, cheaper)


def _what(spot: CodeSpot) -> str:
    """Name the call that a function spends its time in, as far as one line tells."""
    call = spot.call_in_line
    return f"{call} in {spot.function}" if call is not None and (spot.line_share or 0.0) >= LINE else spot.function


LINE = 0.4
"""Part of a function's time that the line of a call holds so that it is named: our choice, two such lines hold most."""

WAITS = 0.5
"""Part of the loop's time in which its thread could not run, but for want of a CPU: our choice, most of it."""

NEARLY = 0.9
"""Part of what comes before the model that a function is: our choice, who makes that cheaper needs no other helpers."""


def _faster_beside(gain: Gain) -> Advice:
    """What to do where somebody else makes the batches already."""
    return Advice.of(
        "Use more threads or processes to make the batches, or prepare more of them ahead.",
        expect="Less waiting for data, up to all of it.",
        limit="Threads of Python code share one CPU, and processes need free ones.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )


def _is_blocked(window: Window) -> bool:
    """Whether the loop's thread mostly waits, not for a CPU: a thread could do that for it, and computes nothing."""
    return (window.host.loop.blocked_share or 0.0) >= WAITS


def _beside(window: Window, gain: Gain, *, with_loader: bool, computes: bool = False) -> Advice:
    where = " in DataLoader workers or another process" if computes else " in DataLoader workers or a thread"
    return Advice.of(
        said("Make batches beside the loop", window.facts, Setting.PREPARE_BESIDE, where),
        expect="Less waiting for data."
        if with_loader
        else "Batches that are made while the loop computes, on as many CPUs as are free.",
        limit="Not where a batch takes under 1 ms to make, and only while CPUs are free."
        if with_loader
        else "Not where the next batch needs what this step makes, and only while CPUs are free.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )


def _by_the_loader(window: Window, predicted: Outlook | None, least_pct: float) -> tuple[Advice, ...]:
    """What to do about a loader: its number of workers where another one is better, or batches beside the loop."""
    if predicted is not None and predicted.gain_pct >= least_pct and predicted.recommended != window.loader.num_workers:
        beside = predicted.fixes()
    elif window.loader.num_workers:
        beside = ()
    else:
        gain, bare = _gain_beside(window, window.spent.bucket_s("data_wait")), _without_workers(window)
        beside = (_beside(window, gain, with_loader=True) if bare is None else _with_workers(bare, gain),)
    return (*beside, *_let_it_be_measured(window), CHEAPER)


def _with_workers(which: str, gain: Gain) -> Advice:
    return Advice.of(
        f"Give {which} workers, too: it has num_workers=0.",
        expect="Its batches are made beside the loop, as those of the others.",
        limit="It was not timed apart: what the wait is for, its batches or those of workers, is not known.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )


def _without_workers(window: Window) -> str | None:
    """Say which loader has no workers where another one of the loop's has."""
    info = window.loader.info
    return window.loader.which if info is not None and info.why_not == SOME_WITHOUT else None


def _gain_beside(window: Window, waits_s: float | None) -> Gain:
    """Predict what helpers gain that make the batches while the loop computes.

    With ``h`` of them a training that waits ``w`` seconds and works ``c`` takes the longer of ``c`` and ``w / h``. Of
    what the loop's thread computes itself there are as many as CPUs; what it is blocked in needs none.
    """
    training_s = window.ledger.training_s
    if not training_s or not waits_s:
        return UNKNOWN
    works_s = max(0.0, training_s - waits_s)
    blocked_s = min(waits_s, (window.host.loop.blocked_share or 0.0) * training_s)

    def left_s(helpers: float, blocked: float) -> float:
        return max(works_s, (waits_s - blocked) / helpers)

    expected_s = training_s - left_s(max(1.0, window.host.usable_cpus or 1.0), blocked_s)
    if expected_s <= 0:
        return UNKNOWN
    one_s = training_s - left_s(1.0, 0.0)
    return gain_without(window, expected_s, least=min(1.0, one_s / expected_s), most=waits_s / expected_s)


def _let_it_be_measured(window: Window) -> tuple[Advice, ...]:
    """How the cause could be found, where the loader could not be looked into."""
    loader = window.loader.info
    if loader is None or loader.probed or _without_workers(window) is not None:
        return ()
    return (
        Advice.of(
            "Give watch() or the Trainer the DataLoader itself, made before training.",
            expect="The cause of the wait, measured inside the workers.",
            limit=f"This {loader.kind[:40] or 'loader'} could not be looked into.",
        ),
    )
