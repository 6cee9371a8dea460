"""Workers send whole tensors of which their batches hold a part.

**What it means.** A tensor goes from a worker to the loop in shared memory, and all that it is a view of goes with it:
of a crop the picture, of a slice the whole series. The worker copies it there, the loop maps it and frees it again.
What is made new, as by collating into one tensor, has no more than it holds.

**Evidence.** `loader.content`: bytes that the batch's tensors lie in beyond what they hold, as workers see them before
a batch is sent, for some batches spread over the run. `spent.bucket_s`: the data wait, in which they are mapped. From
the num_workers model: what the steps lose to workers that compute on the same CPUs, and the copying's part of that.

**Advice.** Return a clone of the crop: it costs a copy of what is used. Of an array, `.copy()` before
`torch.from_numpy`. Or collate such items into tensors of their own, as `torch.stack` and `pad_sequence` do.

**When it is wrong.** A loop that waits for its device while CPUs are idle wins less: only the mapping is then in its
way. What lies in shared memory already is not copied, and not counted.

**References.** PyTorch, "Multiprocessing best practices" and `Tensor.share_memory_`: storages are shared, not tensors.
Our measurement: `python -m benchmarks.faults.views`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.spare import spare_s
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewsSentWhole:
    """Fires when workers hand over many bytes that the batches do not hold."""

    id: ClassVar[str] = "views-sent-whole"
    title: ClassVar[str] = "Workers send whole tensors of which a batch holds a part"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "ledger.training_s",
        "loader.content",
        "loader.num_workers",
    )
    optional: ClassVar[tuple[str, ...]] = ("ledger.record", "loader.info")
    family: ClassVar[str] = "input"
    rules_out: ClassVar[tuple[str, ...]] = ("more workers", "fewer workers")

    info_pct: float = threshold(5.0, "%", "our choice: twice the noise of a step time")
    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    of_wait: float = threshold(0.4, "1", "our choice: else most of the wait has another cause")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what the spare bytes take with the thresholds."""
        content, training_s = window.loader.content, window.ledger.training_s or 0.0
        if content is None or not content.spare_bytes or not window.loader.num_workers or not training_s:
            return None
        wait_s = window.spent.bucket_s("data_wait") or 0.0
        least_s, usual_s, most_s = spare_s(window)
        share = window.ledger.training_share_pct(usual_s) or 0.0
        if share < self.info_pct:
            return None
        is_cause = share >= self.warn_pct and usual_s >= self.of_wait * wait_s
        least, gain, most = (100.0 * (training_s / (training_s - s) - 1.0) for s in (least_s, usual_s, most_s))
        held, sent = content.bytes / 1e6, (content.bytes + content.spare_bytes) / 1e6
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if is_cause else Severity.INFO,
            title=self.title,
            summary=f"Workers hand over {sent:.3g} MB for a batch of {held:.3g} MB: with each view all of its tensor.",
            time_lost_s=usual_s,
            share_pct=window.ledger.share_pct(usual_s) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence("bytes sent with a batch that it does not hold", content.spare_bytes, "bytes"),
                Evidence("what sending them takes, share of training time", share, "%", self.warn_pct, "our choice"),
                Evidence("data wait", wait_s, "s"),
            ),
            advice=(
                Advice.of(
                    "Clone crops and slices before the dataset returns them: crop.clone().",
                    expect="Workers send what a batch holds, and nothing else.",
                    limit="Of an array call .copy() before torch.from_numpy.",
                    gain_pct=gain,
                    interval_pct=(least, most),
                ),
                Advice.of("Collate them into tensors of their own in the workers: torch.stack, pad_sequence."),
            ),
        )
