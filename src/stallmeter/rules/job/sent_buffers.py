"""Before each forward pass the model's buffers are sent from rank 0 to all others.

**What it means.** `DistributedDataParallel` sends all buffers of the model, with `broadcast_buffers=True` as it is by
default: the running means of BatchNorm, and whatever else was registered as one, a queue of keys or a table of
positions, say. Nobody computes meanwhile. A large buffer takes as long as a large layer's gradients, and nothing hides
it behind a backward pass.

**Evidence.** The share of the steps in which looks at the training thread's stack find it in DDP's sending of buffers,
on the rank where that is least: another one may wait there for a late rank. DDP's own readings tell how large the
buffers are, and which is the largest.

**Advice.** `broadcast_buffers=False`, where the ranks compute the same buffers anyhow, or each can have its own. Else a
buffer that need not be sent is no buffer: a plain attribute is kept on each rank.

**When it is wrong.** BatchNorm's running means differ between the ranks then, and a checkpoint holds those of the rank
that saves it; `SyncBatchNorm` keeps them alike. On a GPU the host is found in the sending only as long as it waits for
it: there nothing may be seen.

**References.** PyTorch's documentation of `DistributedDataParallel` (`broadcast_buffers`). Read in torch 2.13:
`_sync_buffers`, before each forward pass with gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ranks.code import BUFFERS
from ...ranks.job import Job
from ...records import DdpTimes
from ...records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..frameworks import LIGHTNING
from ..rule import threshold
from .gain import job_gain
from .losses import Loss
from .straggler import own_work_s

LEAST_WON = 0.6
"""Part of it that is won at the least: our choice. A rank that is late waits in the next collective instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBuffers:
    """Fires when all ranks spend a tenth of their steps in sending buffers."""

    id: ClassVar[str] = "sent-buffers"
    title: ClassVar[str] = "The model's buffers are sent to all ranks before each forward pass"

    warn_pct: float = threshold(10.0, "%", "our choice: half of what XProf calls a high share of communication")
    critical_pct: float = threshold(40.0, "%", "our choice: nearly as long as all else")
    one: float = threshold(0.5, "1", "our choice: most of what is sent")

    def check(self, job: Job, found: Sequence[Loss]) -> list[Diagnosis]:  # noqa: ARG002 - as of all rules of a job
        """Compare what the rank spends in it that spends least with the training time."""
        spent = _spent_s(job)
        lost_s = min(spent, default=0.0)
        share = lost_s / job.training_s if job.training_s else 0.0
        if 100.0 * share < self.warn_pct:
            return []
        gain_pct, interval_pct = job_gain(job, lost_s, least_s=LEAST_WON * lost_s, most_s=max(spent))
        framework = job.ranks[0].header.framework.partition(" ")[0]
        known = [times for view in job.ranks for times in view.ddp]
        sent = max(known, key=lambda times: times.buffers_bytes, default=None)
        is_one = sent is not None and sent.largest_buffer_bytes >= self.one * sent.buffers_bytes > 0
        return [
            Diagnosis(
                rule=self.id,
                severity=Severity.CRITICAL if 100.0 * share >= self.critical_pct else Severity.WARNING,
                title=self.title,
                summary=f"Sending them took all ranks {lost_s:.1f} s or more, {100.0 * share:.0f} % of the training "
                "time."
                + (f" Most of them is {sent.largest_buffer}." if sent is not None and is_one else ""),
                time_lost_s=lost_s,
                share_pct=100.0 * lost_s / job.wall_s if job.wall_s else 0.0,
                confidence=0.8,
                culprit="broadcast_buffers",
                evidence=(
                    Evidence(
                        "sending of buffers, least share of a rank's training", 100.0 * share, "%", self.warn_pct,
                        "our choice",
                    ),
                    Evidence("the same, on the rank where it is most", max(spent), "s"),
                    *_sizes(sent),
                ),
                advice=(
                    Advice.of(
                        "Set DDPStrategy(broadcast_buffers=False)."
                        if framework in LIGHTNING
                        else "Set TrainingArguments(ddp_broadcast_buffers=False)."
                        if framework == "transformers"
                        else "Set broadcast_buffers=False in DistributedDataParallel.",
                        expect="Forward passes that begin at once.",
                        limit="Running means of BatchNorm differ between ranks then.",
                        gain_pct=gain_pct,
                        interval_pct=interval_pct,
                    ),
                    Advice.of("Keep large tensors that need not be sent in plain attributes, not in buffers."),
                ),
            )
        ]  # fmt: skip

    def lacks(self, job: Job) -> tuple[str, ...]:
        """Without looks at each rank's steps it is not known."""
        return () if _spent_s(job) else ("looks at the steps of each rank",)


def _sizes(sent: DdpTimes | None) -> tuple[Evidence, ...]:
    """Say how large the buffers are, and which is the largest."""
    if sent is None or not sent.buffers_bytes:
        return ()
    return (
        Evidence("buffers of the model", float(sent.buffers_bytes), "bytes"),
        Evidence(f"the largest of them, {sent.largest_buffer}", float(sent.largest_buffer_bytes), "bytes"),
    )


def _spent_s(job: Job) -> list[float]:
    """Return what each rank spends in sending buffers in the whole run; nothing where not all were looked at."""
    shares = [view.facts.get(BUFFERS) for view in job.ranks]
    known = [
        share * own_work_s(view) * view.ledger.steps
        for view, share in zip(job.ranks, shares, strict=True)
        if share is not None and view.ledger is not None
    ]
    return known if len(known) == len(job.ranks) else []
