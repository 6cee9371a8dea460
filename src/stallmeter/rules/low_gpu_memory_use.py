"""Most of the GPU's memory is free: a larger batch would fit.

**What it means.** Training needs less than half of the GPU's memory, and the GPU is not busy all the time. A larger
batch gives each step more work, so that less of the time goes into starting it.

**Evidence.** `gpu.memory.peak`: highest memory in use on this rank's fullest GPU, in percent of its memory, without
what PyTorch only kept cached where its allocator was measured. `gpu.sm_active_pct`, else `gpu.utilization_pct`: how
busy the GPU was, in percent. `spent.data_wait_share_pct`: data wait as a share of training time in percent.

**Advice.** Raise the batch size step by step, and adapt the learning rate. The factor told is a lower bound: it treats
all memory as if it grew with the batch, though weights and optimizer states do not. It keeps a tenth of the memory
free. Where results suffer from larger batches, run several trainings on the GPU instead.

**When it is wrong.** Training that waits for data gains nothing, so this rule is then silent. Peaks shorter than a
second are missed where PyTorch's allocator was not measured. A larger batch can take more epochs to the same result.

**References.** SageMaker BatchSize: 95th percentiles of CPU, GPU and its memory all below 70 %. neptune.ai, "How to
optimize GPU usage": low GPU memory use calls for a larger batch. Chaim Rand, "TensorFlow Performance Analysis" (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class LowGpuMemoryUse:
    """Says that a larger batch would fit, when the GPU is not full of work and data come in time."""

    id: ClassVar[str] = "low-gpu-memory-use"
    title: ClassVar[str] = "Most of the GPU's memory is free: a larger batch would fit"
    needs: ClassVar[tuple[str, ...]] = ("gpu.memory.peak", "gpu.utilization_pct", "spent.data_wait_share_pct")
    optional: ClassVar[tuple[str, ...]] = (
        "gpu.sm_active_pct",
        "loader.batch_size",
    )

    memory_pct: float = threshold(45.0, "%", "our choice: twice the batch still leaves a tenth free; SageMaker: 70 %")
    fill_pct: float = threshold(90.0, "%", "PyTorch Profiler's TensorBoard plugin: above 90 % is at the limit")
    busy_pct: float = threshold(90.0, "%", "Chaim Rand: below 90 % of the most expensive resource is waste")
    used_pct: float = threshold(10.0, "%", "SageMaker: below 10 % a GPU idles, which is not a matter of the batch")
    wait_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the peak of memory, GPU utilization and the data wait."""
        seen, used, wait = window.gpu.memory.peak, window.gpu.utilization_pct, window.spent.data_wait_share_pct
        if seen is None or used is None or wait is None or seen.needed_bytes <= 0 or used < self.used_pct:
            return None
        busy = used if window.gpu.sm_active_pct is None else window.gpu.sm_active_pct
        if seen.needed_pct >= self.memory_pct or busy >= self.busy_pct or wait >= self.wait_pct:
            return None
        factor = self.fill_pct / seen.needed_pct
        size = window.loader.batch_size
        room = (
            f"at least {factor:.1f} times the batch"
            if size is None
            else f"at least {factor * size:,.0f} instead of {size:,}"
        )
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title=self.title,
            summary=f"Training needed at most {seen.needed_pct:.0f} % of GPU {seen.index}'s "
            f"{seen.total_bytes / 1e9:.1f} GB, and the GPU was busy {busy:.0f} % of the time: {room} would fit.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.6 if seen.allocator is not None else 0.5,
            evidence=(
                Evidence("needed memory, highest share", seen.needed_pct, "%", self.memory_pct, "our choice"),
                Evidence("batch that fits, lower bound", factor, "x"),
                Evidence(
                    "busy multiprocessors, mean" if window.gpu.sm_active_pct is not None else "utilization, mean",
                    busy,
                    "%",
                    self.busy_pct,
                    "Chaim Rand: 90 %",
                ),
                Evidence("data wait, share of training time", wait, "%", self.wait_pct, "MLPerf Storage"),
            ),
            advice=(
                Advice.of(
                    "Double the batch size and adapt the learning rate.",
                    expect="More samples per second: compare the two runs.",
                    limit="Results may suffer from larger batches.",
                ),
                Advice.of(
                    "Run several trainings on this GPU, or use a smaller one.",
                    limit="Where results suffer from larger batches.",
                ),
            ),
        )
