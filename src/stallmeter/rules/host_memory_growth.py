"""The job's memory keeps growing.

**What it means.** After the warm-up the memory of the training process or its workers should stay level. Here it rises
steadily and still does. If it goes on, the job meets its memory limit and is killed, often after hours.

**Evidence.** `host.rss_trend`: a robust straight line (Theil-Sen) through the resident memory of the job's processes,
in bytes, from the first steps on and without the first quarter. The growth must be large against the scatter around the
line, and go on at no less than half the pace in the second half. `uss`, memory held by one process alone, is looked at
as well: it shows workers whose shared pages become copies.

**Advice.** In the training process: keep no tensors with their graph (`loss.detach()`, `.item()`), no list of all
outputs of an epoch, no cache without a bound. In workers: Python lists and dicts of many objects are copied page by
page as their reference counts are touched (copy-on-write); hold them as numpy arrays or one tensor. Workers that are
started anew in each epoch hide a leak, they do not cure it.

**When it is wrong.** A cache that fills up, or a memory-mapped file whose pages are counted as resident, grows until it
is full and does no harm. Where the memory in use under the limit does not rise with the job's, this rule is silent.

**References.** TraceML calls growth of device memory confirmed from 1 GiB, or 6 % in its strict mode; SageMaker
GPUMemoryIncrease: 5 points. Copy-on-write growth of workers: pytorch/pytorch issue 13246.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemoryGrowth:
    """Fires when the job's memory rises steadily and still does."""

    id: ClassVar[str] = "host-memory-growth"
    title: ClassVar[str] = "The job's memory keeps growing"
    needs: ClassVar[tuple[str, ...]] = ("host.rss_trend",)
    optional: ClassVar[tuple[str, ...]] = ("host.memory_left_bytes",)

    min_growth_mb: float = threshold(100.0, "MB", "TraceML's first scale for growing memory is 100 MiB")
    min_growth_pct: float = threshold(5.0, "%", "near the 6 % of TraceML's strict mode; SageMaker: 5 points")
    min_signal: float = threshold(5.0, "x", "our choice: growth against the scatter around the line")
    critical_s: float = threshold(3600.0, "s", "our choice: the limit is met within an hour")

    def check(self, window: Window) -> Diagnosis | None:
        """Look for a steady rise of resident memory, else of private memory."""
        rss, used = window.host.rss_trend, window.host.trend("memory_limit_used_bytes")
        found = None
        for kind, trend in (("resident memory", rss), ("private memory", window.host.trend("job_uss_bytes"))):
            if found is None and trend is not None and trend.lasts:
                large = max(self.min_growth_mb * 1e6, self.min_growth_pct / 100.0 * trend.start)
                if trend.growth >= max(large, self.min_signal * trend.noise):
                    found = kind, trend
        if found is None:
            return None
        kind, grown = found
        if used is not None and used.growth + self.min_signal * used.noise < grown.growth / 2:
            return None
        main = window.host.trend("main_rss_bytes")
        in_main = main is not None and main.growth >= grown.growth / 2
        place = "training process" if in_main else "workers"
        left = window.host.memory_left_bytes
        until_s = None if left is None else left / grown.per_s
        when = "" if until_s is None else f"; at this pace the limit is met in {until_s / 60:.0f} min"
        copied = Advice.of(
            "Hold the dataset's index as numpy arrays or one tensor.",
            expect="Memory of the workers that stays level after the first epoch.",
            limit="Helps where it is a list of Python objects: workers copy that page by page.",
        )
        kept = Advice.of(
            "Use loss.detach() or loss.item(), and clear lists of outputs after each epoch.",
            expect="Memory of the process that stays level after the first epoch.",
        )
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if until_s is not None and until_s < self.critical_s else Severity.WARNING,
            title=f"Memory of the {place} keeps growing",
            summary=f"The {kind} of the job grew by {grown.growth / 1e6:,.0f} MB, "
            f"{grown.per_s * 60 / 1e6:,.1f} MB a minute, most of it in the {place}{when}.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.7,
            culprit=place,
            evidence=(
                Evidence(
                    f"growth of {kind}", grown.growth / 1e6, "MB", self.min_growth_mb, "TraceML's first scale: 100 MiB"
                ),
                Evidence("growth a minute", grown.per_s * 60 / 1e6, "MB/min"),
                *((Evidence("time to the memory limit", until_s, "s"),) if until_s is not None else ()),
            ),
            advice=(
                kept if in_main else copied,
                Advice.of("Give every cache a bound, callbacks and datasets included."),
                Advice.of(
                    "Compare two snapshots of tracemalloc, some hundred steps apart.",
                    expect="The line that allocates.",
                )
                if in_main
                else Advice.of(
                    "Compare with num_workers=0 for some hundred steps.",
                    expect="A leak that is easier to find, in one process.",
                ),
            ),
        )
