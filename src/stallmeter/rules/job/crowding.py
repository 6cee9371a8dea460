"""A rank whose own workers take the CPU from its training thread: it is late with its work for its data's sake.

Where CPUs are short, a loader that computes more than the others' slows the steps of its rank, and shows in no wait for
data. The training thread then waits for a CPU longer than the others' do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ranks.job import CPU_WAIT, Job, typical
from ..prep_stall import PrepStall
from .dealing import EXPLAINS, dearer_batches
from .losses import COMPUTE, Loss, joined

MORE_PCT = 5.0
"""Points by which its training thread waits longer for a CPU than the others'; as in `straggler`."""


def with_data(job: Job, found: Sequence[Loss]) -> list[Loss]:
    """Return the losses, of which what a rank's own work is late with for its loader's sake is a loss to its data."""
    named = [replace(loss, bucket="data_wait") if _is_for_its_loader(job, loss) else loss for loss in found]
    return joined(named, lambda loss: (loss.bucket, loss.ranks))


def freed_s(job: Job, rule: str, ranks: Sequence[int]) -> float:
    """Return what the other ranks' training threads wait for a CPU, of which cheaper batches free some.

    Args:
        job: Of the ranks.
        rule: Whose advice makes batches cheaper; others free nothing.
        ranks: Whose batches these are.
    """
    if rule != PrepStall.id:
        return 0.0
    waits = typical((view for view in job.ranks if view.rank not in ranks), CPU_WAIT)
    return (waits or 0.0) / 100.0 * job.training_s


def _is_for_its_loader(job: Job, loss: Loss) -> bool:
    if loss.bucket != COMPUTE or not loss.ranks:
        return False
    late = [view for view in job.ranks if view.rank in loss.ranks]
    dearer = dearer_batches(job, loss)
    if dearer is None or not all(view.loader is not None and view.loader.num_workers for view in late):
        return False
    waits = typical(late, CPU_WAIT)
    usual = typical((view for view in job.ranks if view.rank not in loss.ranks), CPU_WAIT)
    if waits is None or usual is None:
        return False
    return dearer[0] - dearer[1] >= EXPLAINS * loss.per_step_s and waits - usual >= MORE_PCT
