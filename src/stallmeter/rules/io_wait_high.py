"""The host waits for storage.

**What it means.** Much of the host's CPU time is spent idle because something waits for a disk or a network file
system. When the loop waits for data as well, slow storage is a likely reason. It is a remark beside the verdict on the
wait; it claims no time of its own.

**Evidence.** `host.iowait_pct`: share of the host's CPU time that was idle with storage requests open, in percent,
median of the samples. `spent.data_wait_share_pct`: data wait as a share of training time in percent.
`workers.blocked_share`: share of the workers' time spent neither computing nor waiting for a CPU.

**Advice.** Copy the data to a local SSD. Read fewer, larger files (shards, HDF5, LMDB) in place of many small ones.
Cache what is read again. Use more parallel reads only when the storage is remote and answers slowly, not when a disk is
full to its limit.

**When it is wrong.** The number belongs to the whole host: another job's disk traffic raises it, and many idle CPUs
hide it. It stays for information where the loop does not wait for data, and where the workers were not seen to wait
rather than to compute.

**References.** SageMaker IOBottleneck: I/O wait above 50 % while the GPU is below 10 %, in half of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class IoWaitHigh:
    """Remarks high I/O wait of the host; warns when the loop waits for data too."""

    id: ClassVar[str] = "io-wait-high"
    title: ClassVar[str] = "The host waits for storage"
    needs: ClassVar[tuple[str, ...]] = ("host.iowait_pct", "spent.data_wait_share_pct")
    optional: ClassVar[tuple[str, ...]] = ("workers.blocked_share", "queue.ready_wait_share")

    iowait_pct: float = threshold(20.0, "%", "our choice; SageMaker IOBottleneck asks for 50 %, of far smaller hosts")
    wait_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    blocked: float = threshold(0.3, "of a worker's time", "our choice: below it workers compute, storage is not it")

    ready: float = threshold(0.5, "of the wait", "our choice: most of it was for batches that lay ready")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at I/O wait, data wait and the workers together."""
        iowait, wait, blocked = window.host.iowait_pct, window.spent.data_wait_share_pct, window.workers.blocked_share
        if iowait is None or wait is None or iowait < self.iowait_pct:
            return None
        # Workers that wait for storage and keep up all the same are not what the loop waits for.
        keeps_up = (window.queue.ready_wait_share or 0.0) >= self.ready
        felt = wait >= self.wait_pct and blocked is not None and blocked >= self.blocked and not keeps_up
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if felt else Severity.INFO,
            title=self.title,
            summary=f"{iowait:.0f} % of the host's CPU time was spent waiting for storage; "
            f"data wait took {wait:.0f} % of the training time.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.5,
            evidence=(
                Evidence("I/O wait of the host, median", iowait, "%", self.iowait_pct, "our choice"),
                Evidence("data wait, share of training time", wait, "%", self.wait_pct, "MLPerf Storage"),
            ),
            advice=(
                Advice.of(
                    "Copy the data to a local SSD before training.",
                    expect="Less I/O wait and less data wait.",
                    limit="Other programs on this host may cause the I/O wait.",
                ),
                Advice.of("Read fewer, larger files (shards, HDF5, LMDB) in place of many small ones."),
                Advice.of("Cache what is read in every epoch, in memory where it fits."),
            ),
        )
