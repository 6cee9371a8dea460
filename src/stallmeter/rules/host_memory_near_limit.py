"""Memory is nearly used up.

**What it means.** The memory in use came close to the limit that the system enforces for this job. Beyond it the kernel
kills a process: often a worker, which shows as "DataLoader worker is killed by signal", or the whole job.

**Evidence.** `host.memory.peak_pct`: highest share of the memory limit that was in use, in percent. The limit is the
least of the host's memory and the cgroup's (a container's or batch job's). File cache that can be taken back does not
count.

**Advice.** Prefetch fewer batches (`prefetch_factor`) or use fewer workers, unless training already waits for data.
Hold less per worker: an index as arrays, files opened when they are needed. Ask for more memory.

**When it is wrong.** Without a cgroup limit the memory of every process on the host counts, not just this job's. File
cache that is in active use is counted although the kernel would give it up under pressure.

**References.** PyTorch Profiler's TensorBoard plugin: 90 % of device memory. TraceML: 90 % is very high, and 97 % of a
step's peak critical.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemoryNearLimit:
    """Fires when the memory in use came close to the limit."""

    id: ClassVar[str] = "host-memory-near-limit"
    title: ClassVar[str] = "Memory is nearly used up"
    needs: ClassVar[tuple[str, ...]] = ("host.memory.peak_pct",)

    warn_pct: float = threshold(90.0, "%", "PyTorch Profiler's TensorBoard plugin and TraceML: 90 %")
    critical_pct: float = threshold(97.0, "%", "TraceML: 97 % of a step's memory is critical")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the peak with the thresholds."""
        peak, job = window.host.memory.peak_pct, window.host.median(lambda s: s.job_rss_bytes)
        if peak is None or peak < self.warn_pct:
            return None
        held = "" if job is None else f"; this job's processes hold {job / 1e9:.1f} GB"
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if peak >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"Up to {peak:.0f} % of the memory that this job may use was taken{held}.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.8,
            evidence=(
                Evidence(
                    "memory in use, highest share of the limit",
                    peak,
                    "%",
                    self.warn_pct,
                    "PyTorch Profiler's TensorBoard plugin: 90 %",
                ),
                *((Evidence("resident memory of the job, median", job / 1e9, "GB"),) if job is not None else ()),
            ),
            advice=(
                Advice.of(
                    "Lower prefetch_factor; lower num_workers where training does not wait for data.",
                    expect="A lower peak of memory in use.",
                    limit="Where training waits for data, this makes it slower.",
                ),
                Advice.of("Keep an index as arrays, open files when needed, and cache nothing decoded."),
                Advice.of("Ask for more memory, or look at what else runs under the same limit."),
            ),
        )
