"""Steps get slower and slower.

**What it means.** A step late in the run takes longer than one at its beginning, and it goes on like that. Something
grows: a list of losses that a callback averages anew, a graph that is kept alive through a tensor that was not
detached, a figure that is drawn with all points so far, a dataset that searches what it has handed out, a cache that
is never emptied, a log file that is read back. The run's second half then costs more than its first.

**Evidence.** `steps.drift`: time of a step by blocks of consecutive steady ones, in seconds. It rises beyond chance
(Mann-Kendall, three standard deviations), all through the run, and a straight line (Theil-Sen) describes it better than
one step from low to high. The last eighth of the steps against the first, in percent, for the whole step and for the
bucket of the ledger that grew most. The time above the first eighth's level, in seconds and as a share of training
time in percent.

`loader.content.growth`: by how much more the batches hold late in the run than early. Where that explains the growth,
work grows on purpose: it is told as information, with no loss.

**Advice.** Where looks into the steps have found a function beside the model that takes most of what they gained, it
is named. Look at what the bucket that grew does with what it has gathered so far. Keep numbers, not tensors
(`.detach()`, `.item()` now and then), keep the last thousand values instead of all, empty lists when an epoch ends.
What a callback computes of all that it has gathered, a metric say, is the same once an epoch.

**When it is wrong.** Work that grows on purpose and not with the batches, such as a model that is unfrozen layer by
layer or, without a loader, longer sequences, looks the same: then nothing is lost. A machine that gets busier all
through the run does, too. A run that got slower at once, for another job or another phase of the program, is not
reported.

**References.** Lightning issue 2493, discussion 20076, issue 581: training slows down over time. Mann (1945), Kendall
(1975), Theil (1950), Sen (1968): the tests for a trend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records import CodeSpot
from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Drift, Window
from ..workers.gains import Gain, gain_without
from .rule import threshold

_WORK = ("forward", "backward", "optimizer", "compute", "other", "loop")
_SAME_SECONDS = {
    "data_wait": (
        "noisy-neighbour",
        "slow-batches",
        "batch-handoff",
        "too-many-workers",
        "no-workers",
        "fetch-stall",
        "too-few-workers",
        "prep-stall",
        "input-bound",
    ),
    "h2d": ("unpinned-memory", "transfer-bound"),
    "callbacks": ("slow-callback",),
    "logging": ("slow-logging",),
    "checkpoint": ("checkpoint-stall",),
}
"""Rules that explain the seconds of a bucket by its size, where it was its growth."""

_WORDS = {"data_wait": "waiting for data", "h2d": "copying to the device", "loop": "the framework's own code"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeDrift:
    """Fires when steps take longer and longer over the run."""

    id: ClassVar[str] = "step-time-drift"
    title: ClassVar[str] = "Steps get slower over the run"
    needs: ClassVar[tuple[str, ...]] = ("steps.step_time_s", "ledger.training_s", "ledger.wall_s")
    optional: ClassVar[tuple[str, ...]] = ("steps.drift", "ledger.record", "loader.content", "code.beside_model")

    growth_pct: float = threshold(20.0, "%", "our measurement: noisy steps without a trend stay below it")
    warn_pct: float = threshold(5.0, "%", "as for a callback that takes this much, which XProf reports")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    bucket_pct: float = threshold(50.0, "%", "our choice: less of the growth in one bucket is no cause")
    grown_factor: float = threshold(3.0, "x", "our choice: from here on most of a bucket is what it grew by")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    per_batch: float = threshold(
        3.0, "x", "our choice: attention takes the square of the length, and its share of a step grows"
    )
    helper: float = threshold(0.5, "1", "Most of the growth; our choice")

    def check(self, window: Window) -> Diagnosis | None:
        """Weigh the growth of the steps against their first eighth."""
        found, ledger = window.steps.drift, window.ledger.record
        if found is None or ledger is None or found.early_s <= 0:
            return None
        growth, lost_s = 100.0 * (found.late_s / found.early_s - 1.0), found.excess_s * ledger.steps
        share = window.ledger.training_share_pct(lost_s)
        if growth < self.growth_pct or share is None or share < self.warn_pct or lost_s < self.min_lost_s:
            return None
        # They grew in the first eighth as well: evenly, from its beginning to its middle and on to that of the last.
        before_s = ledger.steps * (found.late_s - found.early_s) / 14.0
        sure = 100.0 * found.bucket_share >= self.bucket_pct
        part = _WORDS.get(found.bucket, found.name or found.bucket)
        was_fine = found.bucket_late_s >= self.grown_factor * found.bucket_early_s
        content = window.loader.content
        batches_pct = 100.0 * ((content.growth if content is not None else None) or 0.0)
        if found.bucket in _WORK and growth <= self.per_batch * batches_pct:
            return self._on_purpose(found, growth, batches_pct)
        helper = self._helper(window, found, lost_s)
        part_s = ledger.steps * found.bucket_early_s + found.bucket_share * lost_s
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=f"Steps get slower over the run: {part}" if sure else self.title,
            summary=f"Steps took {found.early_s * 1e3:.1f} ms at the beginning and "
            f"{found.late_s * 1e3:.1f} ms at the end of the run, {growth:.0f} % more; "
            + (f"{100.0 * found.bucket_share:.0f} % of it is {part}, " if sure else "several parts grew, ")
            + f"from {found.bucket_early_s * 1e3:.1f} to {found.bucket_late_s * 1e3:.1f} ms"
            + ("." if sure else f" in {part}."),
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7 if sure else 0.5,
            culprit=found.name,
            supersedes=_SAME_SECONDS.get(found.bucket, ()) if sure and was_fine else (),
            evidence=(
                Evidence("growth of a step, last eighth against first", growth, "%", self.growth_pct, "our choice"),
                Evidence("time above the first level, share of training time", share, "%", self.warn_pct, "XProf"),
                Evidence(
                    f"part of the growth in {part}", 100.0 * found.bucket_share, "%", self.bucket_pct, "our choice"
                ),
            ),
            advice=_advice(
                found.bucket,
                gain_without(window, lost_s + before_s, least=0.75, most=1.25),
                gain_without(window, max(lost_s + before_s, part_s), least=0.75, most=1.1),
                helper,
            ),
        )

    def _on_purpose(self, found: Drift, growth_pct: float, batches_pct: float) -> Diagnosis:
        """Tell of steps that grow with what they are given: nothing is lost."""
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title="Steps take longer as batches grow",
            summary=f"Steps took {found.early_s * 1e3:.1f} ms at the beginning and {found.late_s * 1e3:.1f} ms at the "
            f"end of the run, {growth_pct:.0f} % more; the batches held {batches_pct:.0f} % more.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.7,
            evidence=(
                Evidence("growth of a step, last eighth against first", growth_pct, "%", self.growth_pct, "our choice"),
                Evidence("growth of a batch, last quarter against first", batches_pct, "%"),
            ),
            advice=(Advice.of("Leave it, if the batches grow on purpose."),),
        )

    def _helper(self, window: Window, found: Drift, lost_s: float) -> CodeSpot | None:
        """Return the function beside the model that takes so much of the steps that it must be what has grown."""
        if found.bucket not in _WORK:
            return None
        beside = next(iter(window.code.beside_model or ()), None)
        return beside.spot if beside is not None and beside.seconds >= self.helper * lost_s else None


def _advice(bucket: str, gain: Gain, without: Gain, helper: CodeSpot | None) -> tuple[Advice, ...]:
    if helper is not None:
        return (
            Advice.of(
                f"Call {helper.function} less often, or with the newest values alone ({helper.file}:{helper.line}).",
                expect="Calls that take as long at the end as at the beginning.",
                limit="Not where it needs all that was gathered: then update a result instead of computing it anew.",
                gain_pct=gain.pct,
                interval_pct=gain.interval_pct,
            ),
            Advice.of("Keep numbers, not tensors, from step to step: loss.detach(), and .item() now and then."),
        )
    if bucket == "data_wait":
        return (
            Advice.of(
                "Look at what the dataset gathers: caches, lists, open files, a memory that swaps.",
                expect="Batches that take as long at the end as at the beginning.",
                limit="Not where samples grow on purpose, such as longer sequences later on.",
                gain_pct=gain.pct,
                interval_pct=gain.interval_pct,
            ),
        )
    if bucket in _WORK:
        return (
            Advice.of(
                "Keep numbers, not tensors, from step to step: loss.detach(), and .item() now and then.",
                expect="A graph and lists that no longer grow.",
                limit="Not where the work grows on purpose: longer sequences, larger images.",
                gain_pct=gain.pct,
                interval_pct=gain.interval_pct,
            ),
            Advice.of("Let torch.profiler look at an early and a late step: deep_steps=3."),
        )
    clear = Advice.of(
        "Clear what it gathers, or keep the last thousand values instead of all.",
        expect="Each call as fast as the first.",
        limit="Not for a result of all of them: compute that once an epoch.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )
    seldom = Advice.of(
        "Run it less often, or once an epoch.",
        expect="What it computes of all that it has gathered is computed once, not in each step.",
        gain_pct=without.pct,
        interval_pct=without.interval_pct,
    )
    # A metric of all values so far is the same if it is asked for at the end: nothing is thrown away.
    return (seldom, clear) if bucket == "callbacks" else (clear, seldom)
