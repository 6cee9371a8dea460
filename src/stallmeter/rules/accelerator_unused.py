"""A GPU is there, and training does not use it.

**What it means.** The job may see at least one GPU, but the steps run on the CPU. Usually `accelerator="cpu"` is left
over from a test, or the installed PyTorch is a build without CUDA.

**Evidence.** `gpu.count`: GPUs that the job may see (NVML, cut down to `CUDA_VISIBLE_DEVICES`). `facts.accelerator`:
what the Trainer chose. `gpu.trace_pct`: highest GPU utilization, and highest share of memory in use, that any of them
ever showed, in percent. With several ranks on the node only this rank's GPU counts.

**Advice.** Let the Trainer choose (`accelerator="auto"`), or move model and batches to the GPU. If it is not found,
install a build of PyTorch with CUDA that fits the driver. A model so small that a GPU would not help needs none: hide
it from the job, so that others can use it.

**When it is wrong.** The time lost is not known before it is tried, so none is claimed. A GPU of another maker than
NVIDIA, in use beside an idle NVIDIA one, is not seen.

**References.** Chaim Rand, "TensorFlow Performance Analysis" (2020): verify first that you are, in fact, running on the
GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .frameworks import Setting, name_of
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorUnused:
    """Fires when visible GPUs stay idle, or when the Trainer was told to use the CPU."""

    id: ClassVar[str] = "accelerator-unused"
    title: ClassVar[str] = "A GPU is there, and training does not use it"
    family: ClassVar[str] = "compute"
    needs: ClassVar[tuple[str, ...]] = ("gpu.count", "gpu.trace_pct", "ledger.record")
    optional: ClassVar[tuple[str, ...]] = ("facts.accelerator", "facts.framework")

    trace_pct: float = threshold(3.0, "%", "our choice: a driver alone holds 2 % of a small GPU's memory")
    min_steps: float = threshold(20.0, "steps", "our choice: enough for the device to have been used")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the Trainer's choice and at any trace of use."""
        count, trace, ledger = window.gpu.count, window.gpu.trace_pct, window.ledger.record
        if count is None or trace is None or ledger is None or ledger.steps < self.min_steps:
            return None
        on_cpu = window.facts.accelerator == "CPUAccelerator"
        if not on_cpu and trace > self.trace_pct:
            return None
        setting = name_of(window.facts, Setting.USE_GPU)
        why = "the Trainer runs on the CPU" if on_cpu else f"none was ever used more than {trace:.0f} %"
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"{count} visible {'GPU' if count == 1 else 'GPUs'}, and {why} "
            f"({ledger.steps} steps in {ledger.wall_s:.0f} s).",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.9 if on_cpu else 0.7,
            evidence=(
                Evidence("visible GPUs", float(count), "GPUs"),
                Evidence("highest utilization or memory share of any", trace, "%", self.trace_pct, "our choice"),
            ),
            advice=(
                Advice.of(
                    f"Set {setting}, or move model and batches to the GPU."
                    if setting
                    else "Move model and batches to the GPU.",
                    expect=f"GPU utilization above {self.trace_pct:.0f} % in the next run.",
                    limit="A very small model may be as fast on the CPU.",
                ),
                Advice.of(
                    "Install a build of PyTorch that fits the driver.",
                    limit="Only if torch.cuda.is_available() is False.",
                ),
                Advice.of(
                    'Hide the GPU from the job: CUDA_VISIBLE_DEVICES="".',
                    limit="Only for a model too small to gain from it.",
                ),
            ),
        )
