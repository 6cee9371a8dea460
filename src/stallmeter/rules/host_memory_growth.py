"""The job's memory keeps growing.

**What it means.** After the warm-up the memory of the training process or its workers should stay level. Here it rises
steadily and still does. If it goes on, the job meets its memory limit and is killed, often after hours.

**Evidence.** `host.memory.main_trend` and `host.memory.workers_trend`: a robust straight line (Theil-Sen) through the
memory that the training process holds, and through what its child processes have taken since each began, in bytes. The
line begins with the first steps and leaves out the first quarter of the time. Memory is read five times a second at
first, so that eight seconds can be enough. More pairs of readings must rise than chance explains (Mann-Kendall, 3
standard deviations), the growth must be large against the scatter around the line, the second half must rise at two
thirds of the pace or more, and the last fifth at a third. Pages of files do not count where the kernel tells them apart
(Linux). `host.memory.private_trend`, memory held by one process alone, is looked at as well where there are child
processes and the training process holds less than half of what was added: it shows workers whose shared pages become
copies. Where the allocator tells what it keeps of memory that was freed (glibc 2.33 and later:
`host.memory.in_use_per_s`), the memory in use must rise as well; where it rises by less than half as much, it alone is
judged (`host.memory.in_use_trend`).

**Advice.** In the training process: keep no tensors with their graph (`loss.detach()`, `.item()`), no list of all
outputs of an epoch, no cache without a bound. In workers: Python lists and dicts of many objects are copied page by
page as their reference counts are touched (copy-on-write); hold them as numpy arrays or one tensor. Workers that are
started anew in each epoch hide a leak, they do not cure it.

**When it is wrong.** A cache of the dataset grows steadily while the first epoch fills it. Where the process that loads
the data grows and no later epoch has shown more, the verdict says so and is less sure. What fills all through a run
that ends before it is full looks like a leak. Batches of uneven length leave gaps in the heap that no later one fits
into, and the process holds more without using more; that is told apart in the training process, not in its workers,
and not where another allocator is loaded. Where files cannot be told apart, resident memory stands in, and the rule
is silent if the memory in use under the limit does not rise with it.

**References.** TraceML calls growth of device memory confirmed from 1 GiB, or 6 % in its strict mode; SageMaker
GPUMemoryIncrease: 5 points. Copy-on-write growth of workers: pytorch/pytorch issue 13246. Mann (1945), Kendall (1975).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold

MAIN, WORKERS, CHILDREN = "training process", "workers", "child processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemoryGrowth:
    """Fires when the job's memory rises steadily and still does."""

    id: ClassVar[str] = "host-memory-growth"
    title: ClassVar[str] = "The job's memory keeps growing"
    needs: ClassVar[tuple[str, ...]] = ("host.memory.main_trend", "host.memory.is_resident")
    optional: ClassVar[tuple[str, ...]] = (
        "host.memory.workers_trend",
        "host.memory.workers_bytes",
        "host.memory.private_trend",
        "host.memory.in_use_per_s",
        "host.memory.in_use_trend",
        "host.memory.used_trend",
        "host.memory.left_bytes",
        "host.memory.later_epochs_share",
        "host.memory.steps_per_s",
        "loader.num_workers",
    )

    min_growth_mb: float = threshold(100.0, "MB", "TraceML's first scale for growing memory is 100 MiB")
    min_growth_pct: float = threshold(5.0, "%", "near the 6 % of TraceML's strict mode; SageMaker: 5 points")
    min_signal: float = threshold(5.0, "x", "our choice: growth against the scatter around the line")
    in_use: float = threshold(0.5, "of 1", "our choice: what the allocator keeps is the larger part below it")
    of_main: float = threshold(0.5, "of 1", "our choice: private memory grows mostly in the training process above it")
    critical_s: float = threshold(3600.0, "s", "our choice: the limit is met within an hour")
    later_epochs: float = threshold(
        0.3, "of 1", "our choice: the last fifth of the time lies well in later epochs then"
    )

    def check(self, window: Window) -> Diagnosis | None:
        """Look for a steady rise in the training process and in its children, else of private memory."""
        memory, left = window.host.memory, window.host.memory.left_bytes
        main, children = self._of_main(memory), memory.workers_trend
        with_workers = bool(window.loader.num_workers)
        named = WORKERS if with_workers else CHILDREN
        grown: list[tuple[Any, str]] = [
            (trend, place)
            for trend, place, level in (
                (main, MAIN, None if main is None else main.start),
                (children, named, memory.workers_bytes),
            )
            if self._grows(trend, level, left)
        ]
        if not grown and self._copies(memory, left):
            grown = [(memory.private_trend, named)]
        if not grown or (memory.is_resident and self._is_file_cache(window, sum(trend.growth for trend, _ in grown))):
            return None
        worst, place = max(grown, key=lambda found: found[0].growth)
        per_s = sum(trend.per_s for trend, _ in grown)
        # In the process that loads the data it may be a cache, until an epoch has been seen that adds to a full one.
        loads = place == (WORKERS if with_workers else MAIN)
        filling = loads and (memory.later_epochs_share or 0.0) < self.later_epochs
        return self._tell(window, worst, place, filling, None if left is None else left / per_s)

    def _of_main(self, memory: Any) -> Any:
        """Return the trend of the training process: of all that it holds, unless most of what grows was freed."""
        held, used = memory.main_trend, memory.in_use_per_s
        return held if held is None or used is None or used >= self.in_use * held.per_s else memory.in_use_trend

    def _copies(self, memory: Any, left: float | None) -> bool:
        """Whether private memory grows in child processes: the training process's own was judged before."""
        private, held = memory.private_trend, memory.main_trend
        if not memory.workers_bytes or not self._grows(private, None if private is None else private.start, left):
            return False
        return bool(held is None or held.growth <= self.of_main * private.growth)

    def _grows(self, trend: Any, level: float | None, left: float | None) -> bool:
        """Whether a rise is sure, lasts and is large: against what there was, or against what is left."""
        if trend is None or not (trend.lasts and trend.is_sure):
            return False
        large = trend.growth >= max(self.min_growth_mb * 1e6, self.min_signal * trend.noise)
        near = left is not None and left / trend.per_s < self.critical_s
        return bool(large and (near or trend.growth >= self.min_growth_pct / 100.0 * (level or 0.0)))

    def _is_file_cache(self, window: Window, growth: float) -> bool:
        used = window.host.memory.used_trend
        return used is not None and used.growth + self.min_signal * used.noise < growth / 2

    def _tell(self, window: Window, grown: Any, place: str, filling: bool, until_s: float | None) -> Diagnosis:
        steps_per_s = window.host.memory.steps_per_s
        step_mb = grown.per_s / steps_per_s / 1e6 if steps_per_s else None
        step = "" if step_mb is None else f", {step_mb:.2g} MB a step"
        when = "" if until_s is None else f"; at this pace the limit is met in {_duration(until_s)}"
        cache = " It may be a cache of the dataset that the first epoch fills: then it ends with it." if filling else ""
        later = (window.host.memory.later_epochs_share or 0.0) >= self.later_epochs
        # What may be a cache, or gaps in a worker's heap, is no reason to stop a run.
        near = until_s is not None and until_s < self.critical_s
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if near and not filling else Severity.WARNING,
            title=f"Memory of the {place} keeps growing",
            summary=f"The memory of the {place} grew by {grown.growth / 1e6:,.0f} MB, "
            f"{grown.per_s * 60 / 1e6:,.1f} MB a minute{step}{when}.{cache}",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.55 if filling else 0.85 if later else 0.75,
            culprit=place,
            evidence=(
                Evidence("growth", grown.growth / 1e6, "MB", self.min_growth_mb, "TraceML's first scale: 100 MiB"),
                Evidence("growth a minute", grown.per_s * 60 / 1e6, "MB/min"),
                *((Evidence("growth a step", step_mb, "MB"),) if step_mb is not None else ()),
                Evidence("surety that it rises (Mann-Kendall)", grown.z, "sigma"),
                *((Evidence("time to the memory limit", until_s, "s"),) if until_s is not None else ()),
            ),
            advice=_advice(place, filling),
        )


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


def _advice(place: str, filling: bool) -> tuple[Advice, ...]:
    bound = Advice.of(
        "Give every cache a bound, callbacks and datasets included.",
        expect="Memory that stays level once the caches are full.",
        limit="Not needed where the whole dataset fits into the memory that is left.",
    )
    if place == MAIN:
        found = (
            Advice.of(
                "Use loss.detach() or loss.item(), and clear lists of outputs after each epoch.",
                expect="Memory of the process that stays level after the first epoch.",
            ),
            bound,
            Advice.of(
                "Compare two snapshots of tracemalloc, some hundred steps apart.", expect="The line that allocates."
            ),
        )
    else:
        found = (
            Advice.of(
                "Hold the dataset's index as numpy arrays or one tensor.",
                expect="Memory of the workers that stays level after the first epoch.",
                limit="Helps where it is a list of Python objects: workers copy that page by page.",
            ),
            bound,
            Advice.of(
                "Compare with some hundred steps without worker processes.",
                expect="A leak that is easier to find, in one process.",
            ),
        )
    return (found[1], found[0], found[2]) if filling else found
