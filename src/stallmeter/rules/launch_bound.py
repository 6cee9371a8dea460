"""The device waits for the host to launch its kernels.

**What it means.** Each kernel is done before the host has launched the next one. The GPU idles inside the step, not
between steps, and a faster GPU would change nothing: the Python thread sets the pace. Usually the batch is small, or
the model consists of many small operations.

**Evidence.** `device.caught_up_share`: the share, 0 to 1, of the time between two steps' work in which the device had
nothing left to do, from CUDA events. Near 1 the device always catches up with the host. `gpu.utilization_pct`: mean
utilization of this rank's busiest GPU, in percent. `spent.idle_in_steps_s`: seconds in which the GPU idled and neither
data wait nor callbacks, loggers, checkpoints, validation or copies explain it.

**Advice.** A larger batch, if memory allows and the learning rate is adapted. `torch.compile` fuses small operations;
with `mode="reduce-overhead"` it replays the step as a CUDA graph where shapes are fixed. Fused or foreach optimizers.

**When it is wrong.** A step that reads results off the device (`.item()`) lets it idle too: `host-sync` names that
where the probe saw it. Communication between GPUs counts as work of the device.

**References.** PyTorch, "Accelerating PyTorch with CUDA Graphs". Chaim Rand, "TensorFlow Performance Analysis" (2020):
batch size 2, more than half of the time spent launching kernels; content with no less than 90 % utilization.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchBound:
    """Fires when the device keeps up with the host and idles inside the steps."""

    id: ClassVar[str] = "launch-bound"
    title: ClassVar[str] = "The device waits for the host to launch its kernels"
    needs: ClassVar[tuple[str, ...]] = (
        "device.caught_up_share",
        "gpu.utilization_pct",
        "spent.idle_in_steps_s",
        "ledger.training_s",
    )
    family: ClassVar[str] = "compute"

    caught_up: float = threshold(
        0.8, "1", "our choice: the device is done at nearly every step's end; not calibrated yet"
    )
    good_gpu_pct: float = threshold(90.0, "%", "Chaim Rand: below 90 % of the most expensive resource is waste")
    idle_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at who sets the pace and at the device's idle time inside the steps."""
        caught_up, busy, lost = window.device.caught_up_share, window.gpu.utilization_pct, window.spent.idle_in_steps_s
        idle = None if lost is None else window.ledger.training_share_pct(lost)
        if caught_up is None or busy is None or lost is None or idle is None:
            return None
        if caught_up < self.caught_up or busy >= self.good_gpu_pct or idle < self.idle_pct:
            return None
        # With twice the samples in a step there are half as many steps in which the device can idle.
        gain = gain_without(window, 0.5 * lost, least=0.5, most=1.5)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"The GPU idled {idle:.0f} % of the training time inside the steps' own work, and was done with "
            f"everything at {100 * caught_up:.0f} % of their ends.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.7,
            evidence=(
                Evidence("time beside the work with nothing queued", caught_up, "1", self.caught_up, "our choice"),
                Evidence("utilization of the busiest GPU, mean", busy, "%", self.good_gpu_pct, "Chaim Rand: 90 %"),
                Evidence("idle inside the steps, share of training time", idle, "%", self.idle_pct, "MLPerf Storage"),
            ),
            advice=(
                Advice.of(
                    "Double the batch size, and raise the learning rate with it.",
                    expect="Higher GPU utilization and more samples per second.",
                    limit="As far as the GPU's memory allows.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Compile the model: torch.compile(model, mode='reduce-overhead').",
                    limit="That mode needs fixed shapes; torch.compile(model) does not.",
                ),
                Advice.of("Use fused optimizers (fused=True) and batched operations instead of loops over tensors."),
            ),
        )
