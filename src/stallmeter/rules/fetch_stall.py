"""The workers wait for storage or the network.

**What it means.** Most of a worker's time for a batch it neither computes nor queues for a CPU: it waits for bytes.
The loop waits with it.

**Evidence.** `spent.data_wait_share_pct`: data wait as a share of training time, percent. `workers.blocked_share`:
share of a worker's time for a batch in which it was blocked, 0 to 1. `workers.service_s`: that time, seconds.

**Advice.** Read more in parallel: waiting workers need no CPU, so there may be more of them than CPUs. Then read less
or nearer: cache on a local SSD, larger files (shards) instead of many small ones, uncompressed or array formats,
prefetch. When a batch takes longer the more workers there are, the storage itself is the limit and more readers do
not help.

**When it is wrong.** A worker that waits for a lock or for another process looks the same.

**References.** Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021 (fetch stall, prep
stall).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStall:
    """Fires when the loop waits for workers that are mostly blocked."""

    id: ClassVar[str] = "fetch-stall"
    title: ClassVar[str] = "The workers wait for storage or the network"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "workers.blocked_share",
        "workers.service_s",
        "loader.num_workers",
    )
    family: ClassVar[str] = "input"
    cure: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    blocked: float = threshold(0.6, "1", "More than half, with room for noise; our measurement, benchmarks/faults")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait and the blocked share with the thresholds."""
        share, service = window.spent.data_wait_share_pct or 0.0, window.workers.service_s
        blocked = window.workers.blocked_share or 0.0
        if service is None or share < self.warn_pct or blocked < self.blocked:
            return None
        lost = window.spent.bucket_s("data_wait") or 0.0
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= 2 * self.warn_pct else Severity.WARNING,
            title=self.title,
            summary=f"{share:.0f} % of the training time was spent waiting for data; the workers were blocked for "
            f"{100 * blocked:.0f} % of the {service.mean * 1e3:.0f} ms that a batch takes.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.85,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("share of a batch's time blocked", blocked, "1", self.blocked, "benchmarks/faults"),
                Evidence("a worker's time for a batch, mean", service.mean, "s"),
            ),
            advice=(*self._more_readers(window), *self._less_reading()),
        )

    def _more_readers(self, window: Window) -> tuple[Advice, ...]:
        predicted = forecast(window)
        if predicted is None or predicted.recommended <= (window.loader.num_workers or 0):
            return ()
        return (
            Advice.of(
                f"Set num_workers={predicted.recommended}{predicted.place} to read more in parallel.",
                expect=predicted.expect,
                limit="Helps until the storage itself is busy; blocked workers need no CPU.",
                gain_pct=predicted.gain_pct,
            ),
        )

    def _less_reading(self) -> tuple[Advice, ...]:
        return (
            Advice.of(
                "Keep the data on a local SSD or in a cache.",
                expect="Workers that are blocked less, and less data wait.",
                limit="The first epoch fills a cache, later ones read it.",
            ),
            Advice.of("Pack many small files into larger ones (shards), uncompressed or as arrays."),
            Advice.of("Read several items at once: __getitems__, threads or asynchronous reads in the dataset."),
        )
