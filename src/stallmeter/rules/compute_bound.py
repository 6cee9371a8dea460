"""The training step itself sets the pace.

**What it means.** Most of the time goes into the steps, and nothing beside them costs much. That is how it should be:
to go faster, the step itself has to become cheaper or do more at once.

**Evidence.** `spent.step_share_pct`: copy, forward, backward, optimizer, the loop's body and the framework's own
code, as a share of training time without validation, in percent, from the wall-clock ledger. Every other bucket takes
less than `loss_pct`, but for a data wait that no change of the loader would shorten by `gain_pct`, by the num_workers
model: the hand-over of a batch belongs to a step. Where the loop asks no loader, what its steps do before they call the
model (`code.before_model`) takes less than `loss_pct`, by looks at the stack. `gpu.utilization_pct`: mean utilization
of this rank's busiest GPU, in percent, if any. Where that is not known, a device that follows the host closely
(`device.caught_up_share`, `device.queued_share`) may idle in the steps, and nothing is said. `gpu.count`: whether there
are GPUs that can be measured.

**Advice.** On a GPU with Tensor Cores mixed precision, on any GPU a larger batch while memory allows and the results
stay as good; without one, ask for one. Compile the model (`torch.compile`) when steps are many and shapes fixed: on a
CPU steps were 1.04, 1.11, 0.95 and 0.72 times as fast in four programs of others, and a fifth did not compile.
Without a GPU, a fused optimizer (`spent.optimizer`). Where convolutions (`spent.tensors.convolutions`) take most of the
steps on a CPU, channels that lie last, and bfloat16 if the CPU has instructions for it (`facts.computes_16_bits`) and
nothing of 16 bits is in use (`spent.cpu_autocast`). Where the framework's own code is a large part of a step, only
larger steps help. Cores that torch's threads leave idle are told of by too-few-threads.

**When it is wrong.** Times are the host's: a step that waits for the device looks like one that works. On a GPU,
utilization above 70 % is generally called good, and below 90 % of an expensive card is still money lost.

**References.** TraceML: compute above 90 % of a step. neptune.ai, "How to optimize GPU usage": above 70 % is good.
Chaim Rand, "TensorFlow Performance Analysis" (2020): be content with no less than 90 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from .convolving import cheaper_convolutions
from .frameworks import Setting, has_gpu, said
from .fusing import fusing
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeBound:
    """Says that the steps themselves take the time, when nothing else takes much."""

    id: ClassVar[str] = "compute-bound"
    title: ClassVar[str] = "The training step itself sets the pace"
    family: ClassVar[str] = "compute"
    needs: ClassVar[tuple[str, ...]] = ("spent.step_share_pct", "spent.largest_loss_pct", "steps.step_time_s")
    optional: ClassVar[tuple[str, ...]] = (
        "code.before_model",
        "device.caught_up_share",
        "device.pace_s",
        "device.queued_share",
        "facts.accelerator",
        "facts.computes_16_bits",
        "facts.framework",
        "gpu.count",
        "gpu.utilization_pct",
        "loader.asks_none",
        "loader.num_workers",
        "ledger.training_s",
        "spent.cpu_autocast",
        "spent.data_wait_share_pct",
        "spent.optimizer",
        "spent.tensors.convolutions",
    )

    step_pct: float = threshold(70.0, "%", "our choice; TraceML asks for 90 %, without the framework's own code")
    loss_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")
    quick_s: float = threshold(0.003, "s", "A batch made in less costs no more than its hand-over would")
    good_gpu_pct: float = threshold(70.0, "%", "neptune.ai: utilization above 70 % is generally considered good")
    caught_up: float = threshold(0.5, "1", "As for launch-bound; our choice")
    queued: float = threshold(0.1, "1", "As for launch-bound; our choice")
    full_gpu_pct: float = threshold(90.0, "%", "Chaim Rand: below 90 % of the most expensive resource is waste")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the share of the steps, and at what is beside them."""
        share, loss, step, gpu = (
            window.spent.step_share_pct,
            window.spent.largest_loss_pct,
            window.steps.step_time_s,
            window.gpu.utilization_pct,
        )
        if share is None or loss is None or step is None or share < self.step_pct:
            return None
        if loss >= self.loss_pct and not self._is_left(window, loss):
            return None
        if window.loader.asks_none and not self._is_looked_at(window):
            return None
        if gpu is None and self._follows_the_host(window):
            return None
        seen = ""
        if gpu is not None:
            rest = f"the other {100.0 - gpu:.0f} % of it are paid for as well"
            mark = f"fair, and {rest}" if gpu >= self.good_gpu_pct else f"low: {rest}"
            seen = f"; the GPU was in use {gpu:.0f} % of the time, which is "
            seen += "good" if gpu >= self.full_gpu_pct else mark
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title=self.title,
            summary=f"{share:.0f} % of the training time{_apart(window)} went into the steps themselves "
            f"({step.median * 1e3:.1f} ms in a typical one){seen}.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.8,
            evidence=(
                Evidence("steps' own work, share of training time", share, "%", self.step_pct, "our choice"),
                Evidence("largest loss beside it, share of training time", loss, "%", self.loss_pct, "MLPerf Storage"),
                *(
                    (Evidence("utilization of the busiest GPU, mean", gpu, "%", self.full_gpu_pct, "Chaim Rand: 90 %"),)
                    if gpu is not None
                    else ()
                ),
            ),
            advice=(
                *self._fewer_threads(window),
                *_fused(window),
                *cheaper_convolutions(window),
                *_cheaper_steps(window),
            ),
        )

    def _follows_the_host(self, window: Window) -> bool:
        """Whether a device is done as soon as the host is: then it may idle in the steps, for all that is known."""
        caught_up, queued = window.device.caught_up_share, window.device.queued_share
        return caught_up is not None and queued is not None and caught_up >= self.caught_up and queued <= self.queued

    def _is_looked_at(self, window: Window) -> bool:
        """Whether looks at the steps of a loop without a loader found little that goes into its batches."""
        before = window.code.before_model
        share = None if before is None else window.ledger.training_share_pct(before.seconds)
        return share is not None and share < self.loss_pct

    def _is_left(self, window: Window, loss_pct: float) -> bool:
        """Whether the largest loss is a data wait that no change of the loader would shorten enough.

        So it is where the loop makes a batch itself, and in less than handing one over would take.
        """
        wait_pct = window.spent.data_wait_share_pct
        if wait_pct is None or wait_pct < loss_pct:
            return False
        wait = window.steps.data_wait_s
        if window.loader.num_workers == 0 and wait is not None and wait.median < self.quick_s:
            return True
        predicted = forecast(window)
        return predicted is not None and predicted.without.most_gain_pct < self.gain_pct

    def _fewer_threads(self, window: Window) -> tuple[Advice, ...]:
        """What to do where workers and the loop's threads share the CPUs: their crowd makes each operation longer."""
        predicted = forecast(window) if window.loader.num_workers else None
        return () if predicted is None else predicted.fewer_threads


def _fused(window: Window) -> tuple[Advice, ...]:
    """What to do where the optimizer goes over its numbers many times."""
    found = fusing(window)
    return () if found is None else (found.advice,)


def _apart(window: Window) -> str:
    """Say that validation is no part of that time, where there is some."""
    share = window.ledger.training_share_pct(window.spent.bucket_s("validation") or 0.0)
    return ", validation left out," if share is not None and share >= 1.0 else ""


def _cheaper_steps(window: Window) -> tuple[Advice, ...]:
    gpu = has_gpu(window)
    compiled = Advice.of(
        "Compile the model: torch.compile(model).",
        limit="Only when shapes are fixed and the run is long."
        if gpu
        else "Only when shapes are fixed and the run is long; compare, for on a CPU steps may get longer.",
    )
    if not gpu:
        return (Advice.of("Ask for a GPU, or for more CPUs.", limit="A small model does not fill a GPU."), compiled)
    return (
        Advice.of(
            said("Use mixed precision", window.facts, Setting.BFLOAT16),
            expect="A shorter forward and backward.",
            limit="Only on a GPU with Tensor Cores.",
        ),
        Advice.of(
            "Raise the batch size.",
            expect="More samples per second.",
            limit="While memory allows it and the results stay as good.",
        ),
        compiled,
    )
