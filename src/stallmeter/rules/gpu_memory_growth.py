"""The memory in use on the GPU keeps growing.

**What it means.** After the warm-up the memory in use on a GPU should stay level. Here it rises steadily and still
does. If it goes on, training ends with an out-of-memory error, often after hours.

**Evidence.** `gpu.memory.trends`: for each GPU of this rank a robust straight line (Theil-Sen) through the memory in
use, in bytes. It begins with the first steps and leaves out the first quarter of the time. More pairs of samples must
rise than chance explains (Mann-Kendall, 3 standard deviations; a rise without a step back is sure after nine seconds).
The growth must be large against the scatter around the line, and go on at two thirds of the pace in the second half and
a third in the last fifth.

**Advice.** Keep no tensors with their graph: sum `loss.detach()` or `.item()`, not `loss`. Clear lists of outputs after
each epoch, and move what must be kept to the CPU. `torch.cuda.memory._record_memory_history` shows which line allocated
what is still held.

**When it is wrong.** PyTorch's cache grows as long as it meets new shapes: inputs of varying length look like a slow
leak. Where PyTorch's allocator can be asked and its tensors do not hold more, this rule is silent; so it is where this
job's own memory is known and does not rise, for another process grows then.

**References.** TraceML: growth of device memory from 256 MiB is compared, from 1 GiB confirmed. SageMaker
GPUMemoryIncrease: 5 points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemoryGrowth:
    """Fires when the memory in use on a GPU rises steadily and still does."""

    id: ClassVar[str] = "gpu-memory-growth"
    title: ClassVar[str] = "The memory in use on the GPU keeps growing"
    needs: ClassVar[tuple[str, ...]] = ("gpu.memory.trends",)

    min_growth_mb: float = threshold(268.0, "MB", "TraceML compares memory from 256 MiB on")
    min_growth_pct: float = threshold(5.0, "%", "SageMaker GPUMemoryIncrease: 5 points; here of the value at the start")
    min_signal: float = threshold(5.0, "x", "our choice: growth against the scatter around the line")
    critical_s: float = threshold(3600.0, "s", "our choice: the memory is full within an hour")

    def check(self, window: Window) -> Diagnosis | None:
        """Look for the steadiest large rise."""
        found = None
        for index, trend in sorted((window.gpu.memory.trends or {}).items()):
            large = max(
                self.min_growth_mb * 1e6, self.min_growth_pct / 100.0 * trend.start, self.min_signal * trend.noise
            )
            own, tensors = window.gpu.memory.trend(index, "job_memory_bytes"), window.gpu.memory.tensor_trend(index)
            foreign = own is not None and own.growth < trend.growth / 2
            # The allocator's cache grows with each new shape, and is given back before memory runs out.
            cached = tensors is not None and tensors.growth + self.min_signal * tensors.noise < trend.growth / 2
            rises = trend.lasts and trend.is_sure and trend.growth >= large
            if rises and not foreign and not cached and (not found or trend.growth > found[1].growth):
                found = index, trend
        if found is None:
            return None
        index, grown = found
        left = window.gpu.memory.left_bytes(index)
        until_s = None if left is None else left / grown.per_s
        when = "" if until_s is None else f"; at this pace it is full in {until_s / 60:.0f} min"
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if until_s is not None and until_s < self.critical_s else Severity.WARNING,
            title=self.title,
            summary=f"The memory in use on GPU {index} grew by {grown.growth / 1e6:,.0f} MB, "
            f"{grown.per_s * 60 / 1e6:,.1f} MB a minute{when}.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.6,
            culprit=f"GPU {index}",
            evidence=(
                Evidence("growth of memory in use", grown.growth / 1e6, "MB", self.min_growth_mb, "TraceML: 256 MiB"),
                Evidence("growth a minute", grown.per_s * 60 / 1e6, "MB/min"),
                *((Evidence("time until the memory is full", until_s, "s"),) if until_s is not None else ()),
            ),
            advice=(
                Advice.of(
                    "Keep no tensor with its graph: add up loss.detach() or loss.item().",
                    expect="GPU memory in use that stays level after the first epoch.",
                ),
                Advice.of("Clear lists of outputs after each epoch; move what you keep to the CPU."),
                Advice.of(
                    "Pad inputs to a few lengths.",
                    limit="Only where shapes vary: each new one makes PyTorch's cache grow.",
                ),
            ),
        )
