"""The device waits for the host to launch its kernels.

**What it means.** Each kernel is done before the host has launched the next one. The GPU idles inside the step, not
between steps, and a faster GPU would change nothing: the Python thread sets the pace. Usually the batch is small, or
the model consists of many small operations.

**Evidence.** `spent.idle_in_steps_s`: seconds in which the GPU idled inside the steps' own work, as a share of
`ledger.training_s`, without what of it falls into functions beside the model (`code.beside_model`, where a device is
timed at all: `device.pace_s`). From CUDA events: `device.caught_up_share`, the share, 0 to 1, of the time between two
steps' work in which the device had nothing left to do, and `device.queued_share`, the share of a step's device time
that was still to be done when the host was through with the step. The device follows the host closely where it catches
up and little is left; one that needs long to catch up, while the host waits for data, has its own pace.
`gpu.utilization_pct`: mean utilization of this rank's busiest GPU, in percent.

**Advice.** A larger batch, if memory allows and the learning rate is adapted. `torch.compile` fuses small operations;
with `mode="reduce-overhead"` it replays the step as a CUDA graph where shapes are fixed. Fused or foreach optimizers.

**When it is wrong.** A step that reads results off the device (`.item()`) lets it idle too: `host-sync` names that
where the probe saw it. Communication between GPUs counts as work of the device.

**References.** PyTorch, "Accelerating PyTorch with CUDA Graphs". Chaim Rand, "TensorFlow Performance Analysis" (2020):
batch size 2, more than half of the time spent launching kernels; content with no less than 90 % utilization.
"""

from __future__ import annotations

import math
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
        "device.queued_share",
        "gpu.utilization_pct",
        "spent.idle_in_steps_s",
        "ledger.training_s",
    )
    optional: ClassVar[tuple[str, ...]] = ("code.beside_model", "device.pace_s")
    family: ClassVar[str] = "compute"

    caught_up: float = threshold(
        0.5, "1", "our choice: 0 to 0.2 where the device set the pace (H200), and no wait for data"
    )
    queued: float = threshold(0.1, "1", "our choice: 0.02 in small batches, 0.7 where the device set the pace (H200)")
    good_gpu_pct: float = threshold(90.0, "%", "Chaim Rand: below 90 % of the most expensive resource is waste")
    idle_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at who sets the pace and at the device's idle time inside the steps."""
        caught_up, queued = window.device.caught_up_share, window.device.queued_share
        busy, lost = window.gpu.utilization_pct, window.spent.idle_in_steps_s
        if caught_up is None or queued is None or busy is None or lost is None:
            return None
        beside = math.fsum(one.seconds for one in window.code.beside_model or ())
        lost -= min(lost, window.spent.lost_in_steps_s(beside) or 0.0)
        idle = window.ledger.training_share_pct(lost)
        if idle is None or idle < self.idle_pct or busy >= self.good_gpu_pct:
            return None
        if caught_up < self.caught_up or queued > self.queued:
            return None
        # With twice the samples in a step there are half as many steps in which the device can idle.
        gain = gain_without(window, 0.5 * lost, least=0.5, most=2.0, larger_kernels=True)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"The GPU idled {idle:.0f} % of the training time while the host was at work on the steps, and was "
            f"busy {busy:.0f} % of it.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.7,
            evidence=(
                Evidence("time beside the work with nothing queued", caught_up, "1", self.caught_up, "our choice"),
                Evidence("work left when the host was through with a step", queued, "1", self.queued, "our choice"),
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
