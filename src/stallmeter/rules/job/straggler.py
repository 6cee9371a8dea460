"""One rank computes longer than the others, in step after step, and all others wait for it.

**What it means.** Ranks that train together meet in each step. The slowest one sets the pace of all. Here it is always
the same one, and what it is slow in is its own work: no wait for data, no callback, logger, checkpoint or validation.
More GPUs do not help: each of them waits, too.

**Evidence.** The steps of all ranks, walked through beside each other: how far the named rank was behind when the
others began to wait for it. No clock is needed for that. A slow backward pass, or slow work in the body of a plain
loop, shows in no ledger, because all ranks wait in it alike; there the arrivals at the collectives tell, from PyTorch's
flight recorder, or else DDP's own times of its exchange. Beside it what differs between its machine and the others':
clocks, throttling, temperature, power, CPU time stolen by the hypervisor, other processes on its CPUs or its GPU.

**Advice.** Compare the machine with the others. Move the rank, or leave the machine out. Where the machines are alike,
look for work that only this rank does: a longer batch, a hook, a print, a debug flag.

**When it is wrong.** A rank with more work by design, a pipeline stage for example, is no fault. What a rank does
between two collectives is told as one piece in a plain loop: give it spans (`monitor.span`) to see which part it is.

**References.** MegaScale (Jiang et al., NSDI '24); Understanding Stragglers in Large Model Training (OSDI '25): the
slowdown is the step's time over that of ranks that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ranks.job import Job, RankView
from ...records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ...records.stats import median
from ..rule import threshold
from .gain import job_gain
from .losses import COMPUTE, Loss
from .words import named, of_ranks

DIFFERS = 0.1
"""Part by which a fact about the machine must differ from the others' median to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """Fires when the same ranks' own work makes the others wait."""

    id: ClassVar[str] = "straggler"
    title: ClassVar[str] = "It computes longer than the other ranks, which wait for it in each step"

    warn_pct: float = threshold(5.0, "%", "our choice: as for a callback that takes this much of the training time")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")

    def check(self, job: Job, found: Sequence[Loss]) -> Diagnosis | None:
        """Find a loss by the own work of the same ranks."""
        loss = next((loss for loss in found if loss.bucket == COMPUTE and loss.ranks), None)
        return None if loss is None or 100.0 * loss.share < self.warn_pct else self.about(job, loss)

    def about(self, job: Job, loss: Loss) -> Diagnosis:
        """Return the diagnosis of one loss."""
        gain_pct, interval_pct = job_gain(job, loss.lost_s)
        share_pct = 100.0 * loss.share
        where = max(loss.parts, key=lambda bucket: loss.parts[bucket], default="")
        work = named(loss.bucket if loss.bucket != COMPUTE else where)
        facts = list(_facts(job, loss.ranks))
        unseen = Evidence(f"of that, in no ledger: seen by {loss.seen_by}", 100.0 * loss.unseen_share, "%")
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share_pct >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"The other ranks waited {loss.per_step_s * 1e3:.1f} ms in a mean step for {of_ranks(loss.ranks)}, "
            f"{share_pct:.0f} % of the training time; it was late with {work}.",
            time_lost_s=loss.lost_s,
            share_pct=100.0 * loss.lost_s / job.wall_s if job.wall_s else 0.0,
            confidence=0.8 if loss.from_collectives else 0.9,
            ranks=loss.ranks,
            culprit=work,
            evidence=(
                Evidence("waited for it, share of training time", share_pct, "%", self.warn_pct, "our choice"),
                Evidence("waited for it in a mean step", loss.per_step_s, "s"),
                *([unseen] if loss.seen_by else []),
                Evidence("steps in which it was late, of those looked at", float(loss.steps), "steps"),
                *facts,
            ),
            advice=(
                Advice.of(
                    f"Compare the machine of {of_ranks(loss.ranks)} with the others: clocks, heat, neighbours."
                    if facts
                    else f"Find the work that only {of_ranks(loss.ranks)} does, or that is slower there.",
                    expect="Ranks that arrive together.",
                    limit="More ranks do not help: each would wait for the slowest.",
                    gain_pct=gain_pct,
                    interval_pct=interval_pct,
                ),
                Advice.of("Start the job without that machine, and see whether the lateness stays with the rank."),
            ),
        )


def _facts(job: Job, ranks: tuple[int, ...]) -> list[Evidence]:
    late = [view for view in job.ranks if view.rank in ranks]
    others = [view for view in job.ranks if view.rank not in ranks]
    found = []
    for name in sorted({name for view in late for name in view.facts}):
        theirs, usual = _typical(late, name), _typical(others, name)
        if theirs is None or usual is None or abs(theirs - usual) <= DIFFERS * max(abs(theirs), abs(usual), 1.0):
            continue
        words, _, unit = name.rpartition(", ")
        found.append(Evidence(f"{words or name}, the others' {usual:.3g}", theirs, unit if words else "CPUs"))
    return found


def _typical(views: Sequence[RankView], name: str) -> float | None:
    return median(view.facts.get(name) for view in views)
