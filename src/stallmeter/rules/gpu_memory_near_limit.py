"""The GPU's memory is nearly used up.

**What it means.** The memory that training needs came close to what the GPU has. A longer sequence, another shape or
fragmentation is then enough for an out-of-memory error. Shortly before, PyTorch empties its cache and tries again: each
such retry waits for the device.

**Evidence.** `gpu.memory.peak`: highest memory in use on this rank's fullest GPU, in percent of its memory. What
PyTorch's allocator only kept cached at its peak is taken off where the allocator was measured. `alloc_retries` and
`ooms`: how often PyTorch had to empty its cache, and how often even that did not help.

**Advice.** A smaller batch with gradient accumulation, mixed precision, or gradient checkpointing, which pays with
time. `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` against fragmentation. Optimizer states can be sharded over
several GPUs.

**When it is wrong.** Without the allocator's numbers PyTorch's cache counts as used, and it grows until the memory is
full. TensorFlow and JAX take all memory at once unless told otherwise. Memory of other jobs on the same GPU counts.

**References.** PyTorch Profiler's TensorBoard plugin: 90 % of the device's memory. TraceML: 92 % and 97 % of a step's
peak. gpuprof: 90 % and 97 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .frameworks import Setting, said
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemoryNearLimit:
    """Fires when needed memory came close to what the GPU has, or PyTorch had to empty its cache."""

    id: ClassVar[str] = "gpu-memory-near-limit"
    title: ClassVar[str] = "The GPU's memory is nearly used up"
    needs: ClassVar[tuple[str, ...]] = ("gpu.memory.peak",)
    optional: ClassVar[tuple[str, ...]] = ("facts.framework",)

    warn_pct: float = threshold(90.0, "%", "PyTorch Profiler's TensorBoard plugin and gpuprof: 90 %")
    critical_pct: float = threshold(97.0, "%", "TraceML and gpuprof: 97 % is critical")
    retries: float = threshold(1.0, "retries", "Composer's MemoryMonitor: any retry is worth telling")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the peak with the thresholds, and look at the allocator's retries."""
        seen = window.gpu.memory.peak
        if seen is None or (seen.needed_pct < self.warn_pct and not seen.retries >= max(1.0, self.retries)):
            return None
        measured = seen.allocator is not None
        again = f"; PyTorch emptied its cache {seen.retries} times to find room" if seen.retries else ""
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if seen.needed_pct >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"Up to {seen.needed_pct:.0f} % of GPU {seen.index}'s {seen.total_bytes / 1e9:.1f} GB were "
            f"{'needed' if measured else 'taken'}{again}.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.8 if measured else 0.5,
            culprit=f"GPU {seen.index}",
            evidence=(
                Evidence(
                    "memory in use, without PyTorch's cache" if measured else "memory in use, caches included",
                    seen.needed_pct,
                    "%",
                    self.warn_pct,
                    "PyTorch Profiler's TensorBoard plugin: 90 %",
                ),
                Evidence(
                    "allocations that needed an empty cache", float(seen.retries), "retries", self.retries, "Composer"
                ),
            ),
            advice=(
                Advice.of(
                    said(
                        "Use mixed precision, or smaller batches and accumulate their gradients",
                        window.facts,
                        Setting.ACCUMULATE,
                    ),
                    expect="A lower peak, and no allocation that has to empty the cache.",
                    limit="A smaller batch may train fewer samples per second.",
                ),
                Advice.of(
                    "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
                    limit="Helps against fragmentation only.",
                ),
                Advice.of(
                    "Use gradient checkpointing.",
                    expect="Much less memory for activations.",
                    limit="It costs about a third more time.",
                ),
            ),
        )
