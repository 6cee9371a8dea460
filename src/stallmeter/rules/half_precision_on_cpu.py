"""A CPU without instructions for numbers of 16 bits computes with them.

**What it means.** bfloat16 and float16 make training faster on a GPU, and on a CPU that has instructions for them. On
another one libraries convert each operand to 32 bits and back, or compute number by number: less memory, more time. A
setting that came with a program for GPUs is easily left on.

**Evidence.** `spent.optimizer`: which part of the numbers that are trained has 16 bits and lies on the CPU, read from
the optimizer when it is first met. `spent.cpu_autocast`: whether `torch.autocast("cpu")` was on where modules
were called, asked by the training thread in up to three steps. `facts.computes_16_bits`: what Linux tells of the CPU's
instructions (`avx512_bf16`, `amx_bf16`, `avx512_fp16`, `amx_fp16`; on Arm `bf16`, `asimdhp`). `facts.wide_vectors`:
whether it has vectors of 512 bits, with which a library imitates 16 bits less slowly. `spent.step_work_s`: seconds of
the steps' own work.

**Advice.** Train with 32 bits: `model.float()`, no autocast. On a CPU with the instructions both may stay.

**When it is wrong.** Where a model fits into memory with 16 bits alone. Operations that wait for memory may gain from
smaller numbers all the same. What is gained depends on the operations and on the library, so the interval is wide. On
macOS and Windows nothing is known of the CPU, and nothing is said. Autocast is not asked for once torch has compiled
something, which a hook would make it compile again; nor is it seen where no module is called.

**References.** PyTorch, "Automatic Mixed Precision", CPU. oneDNN, "Data Types": bf16 and f16 by instruction set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import Setting, computes_on_device, said
from .rule import threshold

TIMES = {True: (1.2, 2.5, 6.0), False: (2.5, 9.0, 25.0), None: (1.2, 4.0, 25.0)}
"""How many times as fast steps are with 32 bits, at least, as a rule and at most: on a CPU with vectors of 512 bits, on
one without, and where that is not known. Our measurement, benchmarks/faults/precision: 2.3 and 3.3 times where oneDNN
was kept to such vectors, 6 to 25 times on a CPU of 256 bits; the bounds are our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPrecisionOnCpu:
    """Fires when most numbers have 16 bits, or autocast is on, on a CPU that cannot compute with them."""

    id: ClassVar[str] = "half-precision-on-cpu"
    title: ClassVar[str] = "The CPU has no instructions for the 16 bits that it computes with"
    needs: ClassVar[tuple[str, ...]] = ("facts.computes_16_bits", "ledger.training_s", "spent.step_work_s")
    optional: ClassVar[tuple[str, ...]] = (
        "device.pace_s",
        "facts.accelerator",
        "facts.framework",
        "facts.wide_vectors",
        "ledger.wall_s",
        "spent.cpu_autocast",
        "spent.optimizer",
    )

    weights: float = threshold(0.5, "1", "most of the numbers that are trained; our choice")
    step_pct: float = threshold(50.0, "%", "most of the training time must be the steps' own; our choice")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the type in use, and at what the CPU has."""
        known, work_s, training_s = window.facts.computes_16_bits, window.spent.step_work_s, window.ledger.training_s
        if known is None or not work_s or not training_s:
            return None
        if computes_on_device(window):
            return None
        kind, share = self._in_use(window)
        pct = 100.0 * work_s / training_s
        if known.get(kind, True) or pct < self.step_pct:
            return None
        least_s, saved_s, most_s = ((1.0 - 1.0 / times) * work_s for times in TIMES[window.facts.wide_vectors])
        gain = gain_without(window, saved_s, least=least_s / saved_s, most=most_s / saved_s)
        by = "torch.autocast" if share is None else f"{100.0 * share:.0f} % of the weights"
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"{pct:.0f} % of the training time are steps that compute with {kind} ({by}), which this CPU "
            "converts to 32 bits and back.",
            time_lost_s=saved_s,
            share_pct=window.ledger.share_pct(saved_s) or 0.0,
            confidence=0.7,
            culprit=kind,
            evidence=(
                Evidence("steps' own work, share of training time", pct, "%", self.step_pct, "our choice"),
                *(
                    ()
                    if share is None
                    else (Evidence(f"trained numbers of {kind}", share, "1", self.weights, "our choice"),)
                ),
                Evidence(f"instructions of the CPU for {kind}", 0.0, "1"),
            ),
            advice=(
                Advice.of(
                    said(
                        "Use 32 bits",
                        window.facts,
                        Setting.FLOAT32,
                        ", without torch.autocast" if share is None else ": model.float(), and the batches as well",
                    ),
                    expect="Operations for which the CPU has instructions.",
                    limit="Weights and activations take up to twice the memory.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Ask for a CPU with these instructions, or for a GPU, to keep 16 bits."),
            ),
            supersedes=("compute-bound", "mixed-precision-off"),
        )

    def _in_use(self, window: Window) -> tuple[str, float | None]:
        """Return the type of 16 bits, and which part of the weights has it: None where autocast makes it."""
        info, autocast = window.spent.optimizer, window.spent.cpu_autocast
        if info is not None and info.half_share is not None and info.half_share >= self.weights:
            return info.half, info.half_share
        return ("" if autocast is None else autocast.kind), None
