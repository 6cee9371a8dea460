"""In each step another rank comes last, and all others wait for it.

**What it means.** Ranks that train together meet in each step. None of them is slow for long, but in each step one of
them is, and the job runs at the pace of the slowest of each step. That is slower than any rank alone.
As lost counts what is waited for data; of work, which somebody has to do, what the last takes beyond the mean of all.

**Evidence.** The steps of all ranks, walked through beside each other: how far the last one was behind when the others
began to wait, and that it was not the same one often enough to be named. What the training threads waited for a CPU
comes to the ranks by chance, one after the other, and is taken off. Or else one rank has more steps than the others,
because its share of the data is larger: they stand, or are gone, until it has come to the end.

**Advice.** Even out what the ranks get in one step: sequences of like length, shards of like size. For waits for data
more workers and a deeper queue help, as they bridge single slow batches.

**When it is wrong.** Ranks that share few CPUs take turns in being late without a reason of their own. Where the system
does not tell how long a thread waits for a CPU, that looks the same.

**References.** Sequence-length imbalance is the most frequent cause of stragglers in ByteDance's jobs (Understanding
Stragglers in Large Model Training, OSDI '25).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...ranks.job import CPU_WAIT, Job
from ...records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..rule import threshold
from .gain import job_gain, shared_out_s
from .losses import Loss, why_not_judged
from .shards import UnevenShards, uneven_shards
from .words import of_ranks, waited, work_of

APART = 0.625
"""Mean difference of two sums of three exponential delays, over their mean: 2 G(k + 1/2) / (sqrt(pi) G(k + 1)), G the
gamma function, k = 3. One delay a step would make it 1, ten 0.35."""


EVENED = 0.5
"""Least part of what even work would save that dealing it out anew saves; our measurement, on a job of texts that were
grouped by their length: 17 % won where even ranks would have won 34 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankImbalance:
    """Fires when the others wait for one rank in this step and for another in the next."""

    id: ClassVar[str] = "rank-imbalance"
    title: ClassVar[str] = "In each step another rank comes last, and the others wait for it"

    warn_pct: float = threshold(15.0, "%", "our measurement, benchmarks/ranks: healthy ranks stay below 10 %")
    critical_pct: float = threshold(40.0, "%", "our choice: nearly half of the job waits")
    shards_pct: float = threshold(5.0, "%", "our choice: as for a rank that is always late")

    def check(self, job: Job, found: Sequence[Loss]) -> list[Diagnosis]:
        """Find the first loss that no rank caused alone, and that is more than chance."""
        judged = (self._about(job, loss) for loss in found if not loss.ranks)
        shards = uneven_shards(job)
        return [*next((diagnoses for diagnoses in judged if diagnoses), []), *self._of_shards(job, shards)]

    def _of_shards(self, job: Job, shards: UnevenShards | None) -> list[Diagnosis]:
        if shards is None or not job.training_s or 100.0 * shards.saved_s < self.shards_pct * job.training_s:
            return []
        gain_pct, interval_pct = job_gain(job, shards.saved_s, least_s=EVENED * shards.saved_s)
        limit = self.shards_pct
        share_pct, who = 100.0 * shards.saved_s / job.training_s, of_ranks(shards.ranks)
        has = "have up to" if len(shards.ranks) > 1 else "has"
        return [
            Diagnosis(
                rule=self.id,
                severity=Severity.CRITICAL if share_pct >= self.critical_pct else Severity.WARNING,
                title="More steps than the other ranks have, and these wait for the end",
                summary=f"{who[0].upper()}{who[1:]} {has} {shards.most:,} steps, the others {shards.usual:,.0f}: "
                f"for {shards.alone_s:.1f} s they had nothing left to do. With the same number for all the training is "
                f"{shards.saved_s:.1f} s shorter.",
                time_lost_s=shards.saved_s,
                share_pct=100.0 * shards.saved_s / job.wall_s if job.wall_s else 0.0,
                confidence=0.9,
                ranks=shards.ranks,
                culprit="its share of the data",
                evidence=(
                    Evidence("even shards are shorter by, share of training time", share_pct, "%", limit, "our choice"),
                    Evidence("steps of the longest", float(shards.most), "steps"),
                    Evidence("steps of the others", shards.usual, "steps"),
                    Evidence("from the others' last step to the last of all", shards.alone_s, "s"),
                ),
                advice=(
                    Advice.of(
                        "Split the data evenly over the ranks: DistributedSampler, or shards of like size.",
                        expect="All ranks end together.",
                        limit="Where a rank's data must stay with it, stop all with the first (Join, drop_last).",
                        gain_pct=gain_pct,
                        interval_pct=interval_pct,
                    ),
                ),
            )
        ]

    def _about(self, job: Job, loss: Loss) -> list[Diagnosis]:
        waits = loss.bucket in ("data_wait", "worker_startup")
        by_chance_pct = 0.0 if waits else _waits_for_a_cpu_pct(job)
        if 100.0 * loss.share - by_chance_pct < self.warn_pct:
            return []
        part = 1.0 - by_chance_pct / (100.0 * loss.share)
        loss = replace(loss, lost_s=part * loss.lost_s, share=part * loss.share, per_step_s=part * loss.per_step_s)
        # Work that is dealt out evenly is not gone: what can be avoided is what the last rank takes beyond their mean.
        lost_s = loss.lost_s if waits else shared_out_s(job, loss.lost_s)
        # Where it is a hiccup of one rank after the other, all of the wait may be. Work is seldom dealt out evenly.
        least_s = lost_s if waits else EVENED * lost_s
        gain_pct, interval_pct = job_gain(job, lost_s, least_s=least_s, most_s=loss.lost_s)
        share_pct = 100.0 * loss.share
        work = work_of(loss)
        advice = Advice.of(
            "Raise num_workers and prefetch_factor, so that single slow batches are bridged."
            if waits
            else "Give all ranks alike work in a step: sequences of like length, even shards.",
            expect="Ranks that arrive together.",
            limit="Where every batch is slow the loader itself must become faster."
            if waits
            else "What is left is the mean of the ranks' times, not the shortest.",
            gain_pct=gain_pct,
            interval_pct=interval_pct,
        )
        return [
            Diagnosis(
                rule=self.id,
                severity=Severity.CRITICAL if share_pct >= self.critical_pct else Severity.WARNING,
                title=self.title,
                summary=f"{waited(loss)}. It is another rank each time, mostly late with {work}.",
                time_lost_s=lost_s,
                share_pct=100.0 * lost_s / job.wall_s if job.wall_s else 0.0,
                confidence=0.8,
                culprit=work,
                evidence=(
                    Evidence(
                        "waited for the last rank, share of training time",
                        share_pct,
                        "%",
                        self.warn_pct,
                        "benchmarks/ranks",
                    ),
                    Evidence("waited in a mean step", loss.per_step_s, "s"),
                    Evidence(f"steps of {loss.of_steps:,} in which a rank was late", float(loss.steps), "steps"),
                ),
                advice=(advice,),
            )
        ]

    def lacks(self, job: Job) -> tuple[str, ...]:
        """Without steps in which ranks meet nobody is late."""
        return ("steps in which the ranks meet",) if why_not_judged(job) else ()


def _waits_for_a_cpu_pct(job: Job) -> float:
    """Return the part of the steps that ranks wait for each other because each has waited for a CPU now and then.

    How long the training threads could have run and had no CPU is counted. If a step has a few such delays, of
    exponential lengths, those of two ranks differ by `APART` of their mean.
    """
    known = [view.facts[CPU_WAIT] for view in job.ranks if CPU_WAIT in view.facts]
    return APART * statistics.fmean(known) if known else 0.0
