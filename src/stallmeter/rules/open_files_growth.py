"""Ever more files are open.

**What it means.** A process may have a limited number of files open, 1024 by default on many systems. Sockets, pipes
and batches in shared memory count as well. Beyond it the run ends with "Too many open files" or "received 0 items of
ancdata", often after hours.

**Evidence.** `host.files.main` and `host.files.workers`: open file descriptors of the training process, and the most
of one child process, against the soft limit (`host.files.limit`, RLIMIT_NOFILE). And their trends since the first
steps: a robust straight line that is sure to rise and still does (see host-memory-growth), with the time until it
meets the limit.

**Advice.** Close files in the dataset, with `with`. Keep no batches: each tensor that came from a worker keeps a file
open under PyTorch's sharing strategy `file_descriptor`; `torch.multiprocessing.set_sharing_strategy("file_system")`
keeps none. `ulimit -n` raises the limit and buys time.

**When it is wrong.** A dataset that opens each of its shards once and keeps them open grows until it has met all of
them. Workers that start anew in each epoch begin at nothing again, so that the limit is only met in a longer epoch.

**References.** pytorch/pytorch issues 973 and 11201.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold

MAIN, WORKERS = "training process", "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFilesGrowth:
    """Fires when open files rise towards the limit, or have nearly met it."""

    id: ClassVar[str] = "open-files-growth"
    title: ClassVar[str] = "Ever more files are open"
    needs: ClassVar[tuple[str, ...]] = ("host.files.main", "host.files.limit")
    optional: ClassVar[tuple[str, ...]] = (
        "host.files.main_trend",
        "host.files.workers",
        "host.files.workers_trend",
    )

    near_pct: float = threshold(80.0, "%", "our choice: a fifth of the limit is left")
    critical_pct: float = threshold(
        95.0, "%", "our choice: the next epoch's workers do not fit under the limit any more"
    )
    min_growth: float = threshold(32.0, "files", "our choice: more than a dozen workers' pipes and queues")
    min_signal: float = threshold(5.0, "x", "as for growing memory: growth against the scatter around the line")
    warn_s: float = threshold(86400.0, "s", "our choice: the limit is met within a day")
    critical_s: float = threshold(3600.0, "s", "as for growing memory: the limit is met within an hour")

    def check(self, window: Window) -> Diagnosis | None:
        """Judge the training process and its children, and tell the one that is nearer to the limit."""
        files, limit = window.host.files, window.host.files.limit
        if not limit:
            return None
        found = []
        for place, count, trend in (
            (MAIN, files.main, files.main_trend),
            (WORKERS, files.workers, files.workers_trend),
        ):
            if count is None:
                continue
            until_s = max(0.0, limit - count) / trend.per_s if trend is not None and self._grows(trend) else None
            share = 100.0 * count / limit
            if share >= self.near_pct or (until_s is not None and until_s < self.warn_s):
                found.append((float("inf") if until_s is None else until_s, -share, place, count, trend))
        if not found:
            return None
        until_s, share, place, count, trend = min(found, key=lambda f: f[:2])
        return self._tell(place, count, limit, trend if until_s < float("inf") else None)

    def _grows(self, trend: Any) -> bool:
        large = trend.growth >= max(self.min_growth, self.min_signal * trend.noise)
        return bool(large and trend.lasts and trend.is_sure)

    def _tell(self, place: str, count: int, limit: int, grown: Any) -> Diagnosis:
        share = 100.0 * count / limit
        until_s = None if grown is None else max(0.0, limit - count) / grown.per_s
        critical = share >= self.critical_pct or (until_s is not None and until_s < self.critical_s)
        rise = when = ""
        if grown is not None and until_s is not None:
            rise = f", {grown.per_s * 60:,.0f} more a minute"
            pace = f"{until_s / 60:.0f} min" if until_s < 7200 else f"{until_s / 3600:.0f} h"
            when = f"; at this pace the limit is met in {pace}"
        whose = "The training process" if place == MAIN else "A worker"
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if critical else Severity.WARNING,
            title=f"Open files of the {place} keep growing"
            if grown is not None
            else f"The {place} may open few more files",
            summary=f"{whose} has {count:,} files open{rise}, {share:.0f} % of the {limit:,} that are allowed{when}.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.75 if grown is not None else 0.85,
            culprit=place,
            evidence=(
                Evidence("open files, share of the limit", share, "%", self.near_pct, "our choice: a fifth is left"),
                Evidence("limit (RLIMIT_NOFILE, soft)", float(limit), "files"),
                *((Evidence("growth a minute", grown.per_s * 60, "files/min"),) if grown is not None else ()),
                *((Evidence("time to the limit", until_s, "s"),) if until_s is not None else ()),
            ),
            advice=(
                Advice.of(
                    "Close what the dataset opens: use with, or one handle per worker.",
                    expect="A number of open files that stays level after the first steps.",
                ),
                Advice.of(
                    'Call torch.multiprocessing.set_sharing_strategy("file_system"), or keep no batches.',
                    expect="No open file for each tensor that came from a worker.",
                    limit="Only where batches are kept; a crash may leave files in /dev/shm.",
                ),
                Advice.of("Raise the limit: ulimit -n 65536.", limit="Buys time where files are never closed."),
            ),
        )
