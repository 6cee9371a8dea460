"""Items that cost one rank more than the others: dealt out evenly they cost all ranks the mean.

All ranks run the same code. Where a batch costs one of them far more CPU time than the others, its items differ: a
split by source or by size, a list that was sorted. CPU time is the same beside other work, unlike the time that a batch
takes.
"""

from __future__ import annotations

from ...ranks.data import are_whole
from ...ranks.job import COST, Job, typical
from ...records.diagnosis import Advice, Diagnosis
from .gain import job_gain, shared_out_s
from .losses import Loss
from .words import of_ranks, time

DEARER = 1.5
"""A batch of the late rank costs so many times as much as one of the others; our choice."""

DISPATCHER = "DataLoaderDispatcher"
"""Accelerate's loader that one rank reads for all of them."""

ALONE = 0.1
"""Part of a late rank's validation that others have, at the most, where it evaluates for all; our choice."""

EVALUATES_LESS = 0.7
"""Part of the time that is spared at the least where a rank evaluates fewer items: what is done once stays; our
choice."""

WHOLE = 0.95
"""Part of the items that counts as all of them; our choice."""

EXPLAINS = 0.5
"""Part of its lateness that this difference must explain; our choice: most of it."""


def dearer_batches(job: Job, loss: Loss) -> tuple[float, float] | None:
    """Return what a batch costs late ranks and the others, CPU seconds; None where it is no dearer, or not known."""
    cost_s = typical((view for view in job.ranks if view.rank in loss.ranks), COST)
    usual_s = typical((view for view in job.ranks if view.rank not in loss.ranks), COST)
    if cost_s is None or usual_s is None or cost_s < DEARER * usual_s:
        return None
    return cost_s, usual_s


def read_by_each(job: Job, loss: Loss) -> tuple[Advice, ...]:
    """Return the advice that each rank reads its own share, where the late one reads for all of them.

    So does Accelerate with an iterable dataset, unless told otherwise: its ``dispatch_batches``. To switch that off
    alone has every rank read all items and drop those of the others.

    Args:
        job: Of the ranks.
        loss: To ranks that are late with their data.
    """
    late = [view for view in job.ranks if view.rank in loss.ranks]
    if loss.bucket != "data_wait" or any(view.loader is None or view.loader.kind != DISPATCHER for view in late):
        return ()
    # What it costs to send batches to the others goes as well; how much that is was not measured.
    gain_pct, interval_pct = job_gain(job, shared_out_s(job, loss.lost_s, len(loss.ranks)), most_s=loss.lost_s)
    return (
        Advice.of(
            "Split the dataset by rank, and leave its loader out of accelerator.prepare.",
            expect=f"{of_ranks(loss.ranks).capitalize()} reads for all ranks now; then each reads its own share.",
            limit="Batches must then be moved to the device by hand.",
            gain_pct=gain_pct,
            interval_pct=interval_pct,
        ),
    )


def deal_evenly(job: Job, loss: Loss) -> tuple[Advice, ...]:
    """Return the advice to deal the items out evenly, where a late rank's are dearer than those of the others.

    Args:
        job: Of the ranks.
        loss: To ranks that are late with their data.
    """
    late = [view for view in job.ranks if view.rank in loss.ranks]
    dearer = dearer_batches(job, loss)
    if loss.bucket != "data_wait" or dearer is None:
        return ()
    cost_s, usual_s = dearer
    workers = max((view.loader.num_workers or 0 for view in late if view.loader is not None), default=0)
    if (cost_s - usual_s) / max(1, workers) < EXPLAINS * loss.per_step_s:
        return ()
    gain_pct, interval_pct = job_gain(job, shared_out_s(job, loss.lost_s, len(loss.ranks)))
    return (
        Advice.of(
            "Split the items evenly over the ranks: shuffle them first, or go by their size.",
            expect=f"A batch costs {of_ranks(loss.ranks)} {time(cost_s)} of CPU, the others {time(usual_s)}; "
            "split evenly the mean.",
            limit="Not where only this rank runs other code.",
            gain_pct=gain_pct,
            interval_pct=interval_pct,
        ),
    )


def evaluate_by_each(job: Job, loss: Loss) -> tuple[Advice, ...]:
    """Return the advice that all ranks evaluate, where late ones do and the others have next to none of it.

    Args:
        job: Of the ranks.
        loss: To ranks that are late with their validation.
    """
    spent_s = {view.rank: view.ledger.buckets.get(loss.bucket, 0.0) for view in job.ranks if view.ledger is not None}
    late_s = min((spent_s.get(rank, 0.0) for rank in loss.ranks), default=0.0)
    others = [seconds for rank, seconds in spent_s.items() if rank not in loss.ranks]
    if loss.bucket != "validation" or not others or max(others) > ALONE * late_s:
        return ()
    gain_pct, interval_pct = job_gain(job, shared_out_s(job, loss.lost_s, len(loss.ranks)))
    return (
        Advice.of(
            "Split validation over all ranks, and reduce what they have summed up.",
            expect=f"{of_ranks(loss.ranks).capitalize()} evaluates alone now; then each of {len(job.ranks)} ranks "
            "does its part.",
            limit="Where a metric can be put together of parts.",
            gain_pct=gain_pct,
            interval_pct=interval_pct,
        ),
    )


def exchange(job: Job) -> bool:
    """Whether all ranks of a job are known to exchange gradients, each with all others: each has the whole model."""
    return len(job.ranks) in [times.ranks for view in job.ranks for times in view.ddp] and not job.missing


def evaluate_a_part(job: Job, diagnosis: Diagnosis) -> tuple[Advice, ...]:
    """Return the advice that each rank evaluates a part, where all evaluate the same data, all of it.

    Args:
        job: Of the ranks.
        diagnosis: What all of them say.
    """
    spent_s = [view.ledger.buckets.get("validation", 0.0) for view in job.ranks if view.ledger is not None]
    read = [view.evaluates for view in job.ranks]
    if diagnosis.rule != "validation-heavy" or len(spent_s) < len(read):
        return ()
    if not exchange(job) or not are_whole(read, least=WHOLE):
        return ()
    saved_s = min(spent_s) * (1.0 - 1.0 / len(read))
    gain_pct, interval_pct = job_gain(job, saved_s, least_s=EVALUATES_LESS * saved_s)
    return (
        Advice.of(
            "Split validation over the ranks: DistributedSampler(dataset, shuffle=False) for its loader.",
            expect=f"Each of {len(read)} ranks evaluates all items now; then each does its part.",
            limit="Sum up what the ranks find; some items come twice where they do not split evenly.",
            gain_pct=gain_pct,
            interval_pct=interval_pct,
        ),
    )
