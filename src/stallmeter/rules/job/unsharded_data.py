"""Each rank goes through all of the data, where a part of it would do.

**What it means.** Ranks that train one model split the work: of two, each takes half of an epoch, and their
gradients are averaged. Without a `DistributedSampler` nothing splits them. Each rank then goes through all items, an
epoch takes as many steps as on one GPU, and the others are paid for nothing but larger batches. Where the ranks draw
their order from the same seed, they even compute the same in each step.

**Evidence.** `loader.items` and `loader.items_drawn` of each rank, from a sampler of torch's that knows no rank; a
digest of what the dataset is made of, the same on all ranks; passes that go through to the end; gradients that
DistributedDataParallel exchanges among all ranks. Whether the orders are the same is told by the state of the random
numbers that they are drawn from.

**Advice.** `DistributedSampler(dataset)`, with its `set_epoch` called in each epoch. For weighted samples: an n-th of
them on each of n ranks, each with a seed of its own.

**When it is wrong.** Where so many updates are wanted in an epoch, and not so many passes through the data: then half
of them is another training. A dataset that picks its rank's part in a way that its attributes do not show is taken for
whole; one that asks for its rank in its methods is not judged.

**References.** PyTorch's documentation of `torch.utils.data.distributed.DistributedSampler`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from ...ranks.data import DataRead, are_whole
from ...ranks.job import Job, RankView
from ...records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..frameworks import LIGHTNING
from ..rule import threshold
from .dealing import exchange
from .gain import job_gain
from .losses import Loss

NOT_SPLIT = ("validation", "checkpoint", "worker_startup")
"""Buckets whose time does not go with the steps of an epoch."""

LEAST_WON = 0.85
"""Part of it that is won at the least: fewer batches of a pass are in memory already, say; our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnshardedData:
    """Fires when all ranks of a job go through the same whole dataset."""

    id: ClassVar[str] = "unsharded-data"
    title: ClassVar[str] = "Each rank goes through all of the data"

    drawn_pct: float = threshold(95.0, "%", "our choice: a rank that leaves a few items out has no part of its own")
    pass_off_pct: float = threshold(5.0, "%", "our choice: a pass of so many steps more or less goes to the end")
    warn_pct: float = threshold(10.0, "%", "our choice: as for what other rules over ranks find")

    def check(self, job: Job, found: Sequence[Loss]) -> list[Diagnosis]:  # noqa: ARG002 - as of all rules of a job
        """Compare what the ranks' loaders go through."""
        read = [view.trains_on for view in job.ranks]
        one = read[0] if read else None
        if one is None or not exchange(job) or not are_whole(read, least=self.drawn_pct / 100.0):
            return []
        if not all(self._goes_through(view, one) for view in job.ranks):
            return []
        ranks = len(job.ranks)
        stays_s = statistics.fmean(_not_split_s(view) for view in job.ranks)
        lost_s = max(0.0, job.training_s - stays_s) * (1.0 - 1.0 / ranks)
        share_pct = 100.0 * lost_s / job.training_s if job.training_s else 0.0
        if share_pct < self.warn_pct:
            return []
        steps = one.drawn / one.batch_size
        are_same = bool(one.order) and len({each.order for each in read if each is not None}) == 1
        return [
            Diagnosis(
                rule=self.id,
                severity=Severity.CRITICAL,
                title=self.title,
                summary=f"{'Both' if ranks == 2 else f'All {ranks}'} ranks draw {one.drawn:,} of {one.items:,} "
                f"items in each epoch{', the same in each step' if are_same else ''}. With an even split an epoch has "
                f"{math.ceil(steps / ranks):,} steps instead of {math.ceil(steps):,}, and the training is {lost_s:.1f} "
                "s shorter.",
                time_lost_s=lost_s,
                share_pct=100.0 * lost_s / job.wall_s if job.wall_s else 0.0,
                confidence=0.9,
                culprit=one.sampler,
                evidence=(
                    Evidence("items that a rank draws in a pass", 100.0 * one.share, "%", self.drawn_pct,
                             "our choice"),
                    Evidence("items of the dataset, the same on all ranks", float(one.items), "items"),
                    Evidence("ranks", float(ranks), "ranks"),
                    Evidence("validation, checkpoints and start of workers, which stay", stays_s, "s"),
                ),
                advice=(_split(job, one, lost_s),),
            )
        ]  # fmt: skip

    def lacks(self, job: Job) -> tuple[str, ...]:
        """Without an exchange among all ranks nobody can say that one pass is enough."""
        return () if exchange(job) else ("gradients that DistributedDataParallel exchanges among all ranks",)

    def _goes_through(self, view: RankView, read: DataRead) -> bool:
        """Whether a rank goes through its loader to the end: a loop that stops before takes as long with any split."""
        passes: list[int] = [after - before for before, after in pairwise(view.steps.starts)]
        if not passes and view.ledger is not None and not view.is_cut_short:
            passes = [view.ledger.steps]
        expected = read.drawn / read.batch_size
        off = max(1.0, self.pass_off_pct / 100.0 * expected)
        return bool(passes) and abs(statistics.median(passes) - expected) <= off


def _not_split_s(view: RankView) -> float:
    return sum(view.ledger.buckets.get(name, 0.0) for name in NOT_SPLIT) if view.ledger is not None else 0.0


def _split(job: Job, read: DataRead, lost_s: float) -> Advice:
    """Return the advice to split the items over the ranks, with what is gained."""
    ranks = len(job.ranks)
    # Who splits the training's data splits those of validation as well, as a rule.
    validation_s = min((view.ledger.buckets.get("validation", 0.0) for view in job.ranks if view.ledger), default=0.0)
    most_s = lost_s + validation_s * (1.0 - 1.0 / ranks)
    gain_pct, interval_pct = job_gain(job, lost_s, least_s=LEAST_WON * lost_s, most_s=most_s)
    framework = job.ranks[0].header.framework.partition(" ")[0]
    return Advice.of(
        "Give each rank a part: num_samples=len(dataset) // world_size, and a seed of its own."
        if read.sampler == "WeightedRandomSampler"
        else "Leave the sampler to Lightning: Trainer(use_distributed_sampler=True)."
        if framework in LIGHTNING
        else "Give the loader DistributedSampler(dataset) in place of shuffle, and call its set_epoch each epoch.",
        expect=f"Each of {ranks} ranks goes through its part of the items.",
        limit="An epoch then has fewer updates, each of larger batches: check the learning rate.",
        gain_pct=gain_pct,
        interval_pct=interval_pct,
    )
