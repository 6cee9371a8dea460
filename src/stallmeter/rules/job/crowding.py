"""A rank whose own workers take the CPU from its training thread: it is late with its work for its data's sake.

Where CPUs are short, a loader that computes more than the others' slows the steps of its rank, and shows in no wait for
data. The training thread then waits for a CPU longer than the others' do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ...ranks.job import COST, CPU_WAIT, Job, RankView
from ...records.stats import median
from ..prep_stall import PrepStall
from .dealing import DEARER, EXPLAINS
from .losses import COMPUTE, Loss, one_of

MORE_PCT = 5.0
"""Points by which its training thread waits longer for a CPU than the others'; as in `straggler`."""


def with_data(job: Job, found: Sequence[Loss]) -> list[Loss]:
    """Return the losses, of which what a rank's own work is late with for its loader's sake is a loss to its data."""
    by_kind: defaultdict[tuple[str, tuple[int, ...]], list[Loss]] = defaultdict(list)
    for loss in found:
        kind = "data_wait" if _is_for_its_loader(job, loss) else loss.bucket
        by_kind[kind, loss.ranks].append(replace(loss, bucket=kind))
    joined = [loss for (_, ranks), same in by_kind.items() for loss in ([one_of(same)] if ranks else same)]
    return sorted(joined, key=lambda loss: -loss.share)


def freed_s(job: Job, rule: str, ranks: Sequence[int]) -> float:
    """Return what the other ranks' training threads wait for a CPU, of which cheaper batches free some.

    Args:
        job: Of the ranks.
        rule: Whose advice makes batches cheaper; others free nothing.
        ranks: Whose batches these are.
    """
    if rule != PrepStall.id:
        return 0.0
    waits = median(view.facts.get(CPU_WAIT) for view in job.ranks if view.rank not in ranks)
    return (waits or 0.0) / 100.0 * job.training_s


def _is_for_its_loader(job: Job, loss: Loss) -> bool:
    if loss.bucket != COMPUTE or not loss.ranks:
        return False
    late = [view for view in job.ranks if view.rank in loss.ranks]
    others = [view for view in job.ranks if view.rank not in loss.ranks]
    if not others or not all(view.loader is not None and view.loader.num_workers for view in late):
        return False
    cost_s, usual_s = _typical(late, COST), _typical(others, COST)
    waits, usual = _typical(late, CPU_WAIT), _typical(others, CPU_WAIT)
    if cost_s is None or usual_s is None or waits is None or usual is None:
        return False
    explains = cost_s - usual_s >= EXPLAINS * loss.per_step_s
    return explains and cost_s >= DEARER * usual_s and waits - usual >= MORE_PCT


def _typical(views: Sequence[RankView], name: str) -> float | None:
    return median(view.facts.get(name) for view in views)
