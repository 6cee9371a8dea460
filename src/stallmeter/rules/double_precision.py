"""The model computes with 64 bits.

**What it means.** NumPy makes numbers of 64 bits where it is told nothing. "Expected Float but found Double" is then
often answered with `model.double()`. Each number takes twice the memory and its way to the processor, and a vector
instruction computes half as many of them; the GPUs that most people train on do 32 to 64 times fewer of them a second.

**Evidence.** `spent.optimizer`: which part of the numbers that are trained has 64 bits, read from the optimizer when it
is first met. `spent.step_work_s`: seconds of the steps' own work.

**Advice.** 32 bits: `model.float()`, and the batches as well, best where they are made.

**When it is wrong.** Where results need more than seven digits: some solvers, physics-informed networks, sums over many
numbers. What of the steps is not the model's takes as long as before. On an accelerator the gain depends on its kind,
which nobody measured here: it is told for information, without a gain.

**References.** PyTorch, "torch.set_default_dtype". NVIDIA, "CUDA C++ Programming Guide": throughput of arithmetic
instructions by compute capability. Our measurement, `benchmarks/faults/precision.py`, with `--bits 64`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import Setting, on_cpu, said
from .rule import threshold

SAVES = (0.2, 0.45, 0.75)
"""Least, usual and most of the steps' own work that 32 bits save on a CPU. Measured: 0.34, 0.40 and 0.74 of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoublePrecision:
    """Fires when most of the numbers that are trained have 64 bits."""

    id: ClassVar[str] = "double-precision"
    title: ClassVar[str] = "The model computes with 64 bits"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "spent.optimizer", "spent.step_work_s")
    optional: ClassVar[tuple[str, ...]] = (
        "device.pace_s",
        "facts.accelerator",
        "facts.framework",
        "gpu.count",
        "ledger.wall_s",
    )

    weights: float = threshold(0.5, "1", "most of the numbers that are trained; our choice")
    step_pct: float = threshold(50.0, "%", "most of the training time must be the steps' own; our choice")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the type of the weights, and at what part of the time the steps work."""
        info, work_s, training_s = window.spent.optimizer, window.spent.step_work_s, window.ledger.training_s
        share = None if info is None else info.double_share
        if share is None or share < self.weights or not work_s or not training_s:
            return None
        pct = 100.0 * work_s / training_s
        if pct < self.step_pct:
            return None
        here = on_cpu(window)
        least, usual, most = SAVES
        lost_s = usual * work_s if here else 0.0
        gain = gain_without(window, lost_s, least=least / usual, most=most / usual) if here else None
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if here else Severity.INFO,
            title=self.title,
            summary=f"{100.0 * share:.0f} % of the numbers that are trained have 64 bits, and {pct:.0f} % of the "
            "training time are steps that compute with them.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            culprit="float64",
            evidence=(
                Evidence("trained numbers of 64 bits", share, "1", self.weights, "our choice"),
                Evidence("steps' own work, share of training time", pct, "%", self.step_pct, "our choice"),
            ),
            advice=(
                Advice.of(
                    said(
                        "Use 32 bits",
                        window.facts,
                        Setting.NOT_FLOAT64,
                        ": model.float(), and float32 where batches are made",
                    ),
                    expect="Twice as many numbers for each instruction, in half of the memory.",
                    limit="Not where results need more than seven digits.",
                    gain_pct=None if gain is None else gain.pct,
                    interval_pct=None if gain is None else gain.interval_pct,
                ),
            ),
            supersedes=("compute-bound", "mixed-precision-off"),
        )
