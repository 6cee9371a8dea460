"""The Tensor Cores have nothing to do: training computes in full precision.

**What it means.** From compute capability 7.0 on (Volta), NVIDIA's GPUs have Tensor Cores. They multiply matrices of
16-bit numbers, on newer GPUs of TF32 too. That is several times faster than the ordinary cores are with 32 bits. Here
they idle.

**Evidence.** `gpu.tensor_cores`: CUDA compute capability; the Trainer's precision; on Hopper and later the share of
time in percent in which Tensor Cores worked, from NVML's GPM counters. `gpu.utilization_pct`: mean utilization of the
GPU used most, in percent. `spent.largest_loss_pct`: what else holds the steps up, as a share of training time in
percent.

**Advice.** `Trainer(precision="bf16-mixed")` from Ampere (8.0) on, `"16-mixed"` on Volta and Turing; in a plain loop
`torch.autocast`. Where all must stay in 32 bits, `torch.set_float32_matmul_precision("high")` allows TF32 from 8.0 on.
Sizes of layers and batches should be multiples of 8.

**When it is wrong.** Before Hopper the use of Tensor Cores cannot be seen: `autocast` in the model's own code, or TF32,
may be on although the Trainer says 32 bits; it is then told as information only. A model without large matrix products
or convolutions gains little. The gain is not known before it is tried, so no time is claimed.

**References.** PyTorch Profiler's TensorBoard plugin: Tensor Cores unused although eligible operations ran, capability
7 or more. NVIDIA, "Train With Mixed Precision". Lightning, "N-Bit Precision".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .frameworks import Setting, said
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrecisionOff:
    """Fires when the GPU has Tensor Cores, is busy, and does not use them."""

    id: ClassVar[str] = "mixed-precision-off"
    title: ClassVar[str] = "The Tensor Cores have nothing to do: training computes in full precision"
    needs: ClassVar[tuple[str, ...]] = ("gpu.tensor_cores", "gpu.utilization_pct", "spent.largest_loss_pct")
    optional: ClassVar[tuple[str, ...]] = ("facts.framework",)

    capability: float = threshold(7.0, "1", "NVIDIA: Tensor Cores came with Volta, compute capability 7.0")
    tf32_capability: float = threshold(8.0, "1", "NVIDIA: bfloat16 and TF32 came with Ampere, compute capability 8.0")
    tensor_pct: float = threshold(1.0, "%", "our choice; PyTorch Profiler's TensorBoard plugin asks for none at all")
    busy_pct: float = threshold(
        50.0, "%", "PyTorch Profiler's TensorBoard plugin: below 50 % the GPU is not the matter"
    )
    loss_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the hardware, the setting and, where it can be seen, the use."""
        cores, busy, loss = window.gpu.tensor_cores, window.gpu.utilization_pct, window.spent.largest_loss_pct
        if cores is None or busy is None or loss is None or cores.full_precision is False:
            return None
        if cores.capability < self.capability or busy < self.busy_pct or loss >= self.loss_pct:
            return None
        seen = cores.active_pct
        if (seen is None and not cores.full_precision) or (seen is not None and seen >= self.tensor_pct):
            return None
        use = " are probably idle" if seen is None else f" worked {seen:.1f} % of the time"
        told = "; the Trainer computes in 32 bits or more" if cores.full_precision else ""
        modern = cores.capability >= self.tf32_capability
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO if seen is None else Severity.WARNING,
            title=self.title if seen is not None else "Mixed precision is off",
            summary=f"The GPU was busy {busy:.0f} % of the time, and its Tensor Cores (capability "
            f"{cores.capability:.1f}){use}{told}.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.6 if seen is None else 0.8,
            evidence=(
                Evidence("compute capability", cores.capability, "1", self.capability, "NVIDIA: Volta"),
                *(
                    (Evidence("Tensor Cores at work", seen, "%", self.tensor_pct, "our choice"),)
                    if seen is not None
                    else ()
                ),
                Evidence("utilization of the busiest GPU, mean", busy, "%", self.busy_pct, "PyTorch Profiler: 50 %"),
            ),
            advice=(
                Advice.of(
                    said("Use mixed precision", window.facts, Setting.BFLOAT16 if modern else Setting.FLOAT16),
                    expect="Tensor Cores at work: a shorter forward and backward.",
                    limit="Some models need more precision: compare the results.",
                ),
                *(
                    (
                        Advice.of(
                            'Allow TF32: torch.set_float32_matmul_precision("high").',
                            limit="For models that must stay in 32 bits.",
                        ),
                    )
                    if modern
                    else ()
                ),
                Advice.of("Make sizes of layers and batches multiples of 8."),
            ),
        )
